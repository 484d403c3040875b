"""Element-wise expressions: Python's syntax to OpenCL C, and their derivatives.

A formula is text such as ``"max(x, 0) * scale"``, or statements such as ``"v = 0.9 * v + g; p = p - lr * v"``. It is
parsed by Python's own grammar; only arithmetic, comparisons, conditions and the functions of FUNCTIONS pass, so that a
text can do nothing but compute. Operators mean what they mean in NumPy: ``/`` is true division, ``%`` has the sign of
the divisor, comparisons of NaN are false, ``max`` and ``min`` give NaN when an operand is NaN.
"""

from __future__ import annotations

import ast
import functools
from typing import NamedTuple

from ...api.errors import InvalidArgument


class Function(NamedTuple):
    """One function of formulas."""

    arity: int
    """The number of arguments; 0 stands for two or more."""
    opencl: str
    """The function in OpenCL C, with the arguments ``{0}``, ``{1}`` and the type ``T``."""
    slope: tuple[str, ...]
    """The derivative by each argument, as a formula of the arguments."""
    integer: bool = False
    """Whether integer arguments give an integer result."""


FUNCTIONS: dict[str, Function] = {
    "abs": Function(1, "({0} < 0 ? -({0}) : {0})", ("sign({0})",), True),
    "sign": Function(1, "(T)(({0} > 0) - ({0} < 0))", ("0",), True),
    "square": Function(1, "({0}) * ({0})", ("2 * ({0})",), True),
    "exp": Function(1, "exp({0})", ("exp({0})",)),
    "expm1": Function(1, "expm1({0})", ("exp({0})",)),
    "log": Function(1, "log({0})", ("1 / ({0})",)),
    "log1p": Function(1, "log1p({0})", ("1 / (1 + ({0}))",)),
    "sqrt": Function(1, "sqrt({0})", ("0.5 / sqrt({0})",)),
    # A CPU computes rsqrt in vectors with other bits than alone, which would depend on where an element lies.
    "rsqrt": Function(1, "(1 / sqrt({0}))", ("-0.5 * rsqrt({0}) / ({0})",)),
    "sin": Function(1, "sin({0})", ("cos({0})",)),
    "cos": Function(1, "cos({0})", ("-sin({0})",)),
    "tan": Function(1, "tan({0})", ("1 + square(tan({0}))",)),
    "asin": Function(1, "asin({0})", ("rsqrt(1 - square({0}))",)),
    "acos": Function(1, "acos({0})", ("-rsqrt(1 - square({0}))",)),
    "atan": Function(1, "atan({0})", ("1 / (1 + square({0}))",)),
    "sinh": Function(1, "sinh({0})", ("cosh({0})",)),
    "cosh": Function(1, "cosh({0})", ("sinh({0})",)),
    "asinh": Function(1, "asinh({0})", ("rsqrt(square({0}) + 1)",)),
    "acosh": Function(1, "acosh({0})", ("rsqrt(square({0}) - 1)",)),
    "atanh": Function(1, "atanh({0})", ("1 / (1 - square({0}))",)),
    "tanh": Function(1, "tanh({0})", ("1 - square(tanh({0}))",)),
    "sigmoid": Function(1, "((T)1 / ((T)1 + exp(-({0}))))", ("sigmoid({0}) * (1 - sigmoid({0}))",)),
    "erf": Function(1, "erf({0})", ("1.1283791670955126 * exp(-square({0}))",)),
    "floor": Function(1, "floor({0})", ("0",)),
    "ceil": Function(1, "ceil({0})", ("0",)),
    "round": Function(1, "rint({0})", ("0",)),
    "trunc": Function(1, "trunc({0})", ("0",)),
    # Where both operands are equal the second one's slope counts, so that max(x, 0) has slope 0 at x = 0.
    "max": Function(0, "(({0}) != ({0}) || ({0}) > ({1}) ? ({0}) : ({1}))", ("({0}) > ({1})", "({0}) <= ({1})"), True),
    "min": Function(0, "(({0}) != ({0}) || ({0}) < ({1}) ? ({0}) : ({1}))", ("({0}) < ({1})", "({0}) >= ({1})"), True),
    "pow": Function(2, "pow({0}, {1})", ("({1}) * pow({0}, ({1}) - 1)", "pow({0}, {1}) * log({0})")),
}
_CONSTANTS = {"pi": "3.141592653589793", "inf": "INFINITY", "nan": "NAN"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_FLOAT_ONLY = {
    "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "pow", "floor", "ceil", "round", "trunc",
}  # fmt: skip
_TESTS = {"isnan": "({0} != {0})", "isinf": "({0} == INFINITY || {0} == -INFINITY)"}
"""The functions of one argument whose result is a truth value, in OpenCL C."""


class Formula:
    """A parsed text: ``statements`` in order, ``result`` (None if the last statement is an assignment), ``names``."""

    def __init__(self, text: str, statements: list[tuple[str, ast.expr]], result: ast.expr | None) -> None:
        self.text, self.statements, self.result = text, statements, result
        self.assigned = tuple(dict.fromkeys(target for target, _ in statements))
        # ``seen`` says of each name whether it is read before it is assigned.
        read_before_written: dict[str, bool] = {}
        assigned_names: set[str] = set()
        for target, value in [*statements, ("", result)]:
            for name in _names_in(value):
                read_before_written[name] = read_before_written.get(name, False) or name not in assigned_names
            assigned_names.add(target)
        self.names = tuple(read_before_written) + tuple(
            name for name in self.assigned if name not in read_before_written
        )
        self.read = frozenset(name for name, is_read_first in read_before_written.items() if is_read_first)

    @functools.cached_property
    def integral(self) -> bool:
        """Nothing in it leaves the integers when the operands are integers."""
        return not any(
            isinstance(node, ast.Div)
            or (isinstance(node, ast.Constant) and isinstance(node.value, float))
            or (isinstance(node, ast.Name) and node.id in _CONSTANTS)
            or (isinstance(node, ast.Call) and getattr(node.func, "id", "") in _FLOAT_ONLY)
            for value in [*(value for _, value in self.statements), self.result]
            if value is not None
            for node in ast.walk(value)
        )

    @functools.cached_property
    def truth(self) -> bool:
        """The result is a comparison or a condition."""
        node = self.result
        return isinstance(node, ast.Compare | ast.BoolOp) or (
            (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
            or (isinstance(node, ast.Call) and getattr(node.func, "id", "") in _TESTS)
        )

    def opencl(self, kind: str) -> tuple[list[tuple[str, str]], str | None]:
        """Statements and result as OpenCL C over variables ``v_<name>`` of type ``kind`` (float, double or long)."""
        writer = _Writer(kind)
        statements = [(target, writer.number(value)) for target, value in self.statements]
        return statements, None if self.result is None else writer.number(self.result)

    @functools.lru_cache(maxsize=1024)  # noqa: B019 (Formula objects are never freed, because they are cached)
    def derivative(self, name: str) -> str | None:
        """The result's derivative by ``name`` as a formula's text; None where it is 0 everywhere."""
        if self.result is None:
            raise InvalidArgument(f"only an expression has a derivative, got statements: {self.text!r}")
        result, values = self.result, {}
        for target, value in self.statements:
            values[target] = _Substitute(dict(values)).visit(_copy(value))
        slope = _slope(_Substitute(values).visit(_copy(result)), name)
        return None if slope == "0" else slope


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Formula:
    """Read a formula. Raises InvalidArgument that quotes what is no part of one."""
    lines = "\n".join(part.strip() for part in text.replace("\n", ";").split(";") if part.strip())
    try:
        tree = ast.parse(lines)
    except (SyntaxError, ValueError) as error:
        raise InvalidArgument(f"cannot read the formula {text!r}: {error}") from None
    statements: list[tuple[str, ast.expr]] = []
    result = None
    for index, node in enumerate(tree.body):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            statements.append((node.targets[0].id, node.value))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            old = ast.Name(node.target.id, ast.Load())
            statements.append((node.target.id, ast.BinOp(old, node.op, node.value)))
        elif isinstance(node, ast.Expr) and index == len(tree.body) - 1:
            result = node.value
        else:
            raise InvalidArgument(
                f"a formula is assignments and at the end one expression; {ast.unparse(node)!r} in {text!r} is neither"
            )
    if not statements and result is None:
        raise InvalidArgument(f"a formula needs an expression, got {text!r}")
    for value in [*(value for _, value in statements), result]:
        if value is not None:
            # Writing the expression as OpenCL C raises an error for whatever is no part of a formula.
            _Writer("float").number(value)
    return Formula(text, statements, result)


def _names_in(value: ast.expr | None) -> list[str]:
    if value is None:
        return []
    called = {id(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)}
    names = [n.id for n in ast.walk(value) if isinstance(n, ast.Name) and id(n) not in called]
    return list(dict.fromkeys(name for name in names if name not in _CONSTANTS))


class _Writer:
    """Turns expression nodes into OpenCL C of one arithmetic type."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.integer = kind == "long"

    def number(self, node: ast.expr) -> str:
        text, truth = self._write(node)
        return f"({self.kind})({text})" if truth else text

    def truth(self, node: ast.expr) -> str:
        text, truth = self._write(node)
        return text if truth else f"({text} != 0)"

    def _write(self, node: ast.expr) -> tuple[str, bool]:
        """(text, whether it is a truth value)."""
        match node:
            case ast.Constant(value=bool() as value):
                return str(int(value)), True
            case ast.Constant(value=int() | float() as value):
                return self._constant(value), False
            case ast.Name(id=name):
                return (f"({self.kind}){_CONSTANTS[name]}" if name in _CONSTANTS else f"v_{name}"), False
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return f"(!{self.truth(inner)})", True
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=inner):
                return f"({'-' if isinstance(op, ast.USub) else ''}{self.number(inner)})", False
            case ast.BoolOp(op=op, values=values):
                sign = " && " if isinstance(op, ast.And) else " || "
                return f"({sign.join(self.truth(value) for value in values)})", True
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
                sides = [self.number(side) for side in (left, *others)]
                pairs = zip(sides, ops, sides[1:], strict=False)
                return "(" + " && ".join(f"({a} {_COMPARISONS[type(op)]} {b})" for a, op, b in pairs) + ")", True
            case ast.IfExp(test=test, body=body, orelse=other):
                return f"({self.truth(test)} ? {self.number(body)} : {self.number(other)})", False
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(left, op, right), False
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._call(node, name, arguments)
        raise InvalidArgument(
            f"a formula holds numbers, names, arithmetic, comparisons, conditions and the functions "
            f"{', '.join(sorted([*FUNCTIONS, *_TESTS, 'where', 'clip']))}; got {ast.unparse(node)!r}"
        )

    def _constant(self, value: float) -> str:
        if self.integer:
            return f"{int(value)}L"
        return f"{float(value)!r}{'f' if self.kind == 'float' else ''}"

    def _binary(self, left: ast.expr, op: ast.operator, right: ast.expr) -> str:
        a, b = self.number(left), self.number(right)
        match op:
            case ast.Add() | ast.Sub() | ast.Mult() | ast.Div():
                sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(op)]
                return f"({a} {sign} {b})"
            case ast.FloorDiv():
                return f"floordiv({a}, {b})" if self.integer else f"floor({a} / {b})"
            case ast.Mod():
                return f"({a} - floordiv({a}, {b}) * {b})" if self.integer else f"({a} - floor({a} / {b}) * {b})"
            case ast.Pow() if isinstance(right, ast.Constant) and right.value in (1, 2, 3, 4):
                return f"({' * '.join([a] * right.value)})" if isinstance(right.value, int) else f"pow({a}, {b})"
            case ast.Pow() if not self.integer:
                has_integer_power = isinstance(right, ast.Constant) and isinstance(right.value, int)
                return f"pown({a}, {right.value})" if has_integer_power else f"pow({a}, {b})"  # type: ignore[attr-defined]
        raise InvalidArgument(f"a formula has + - * / // % **, got {type(op).__name__}")

    def _call(self, node: ast.Call, name: str, arguments: list[ast.expr]) -> tuple[str, bool]:
        argument_count = {"where": 3, "clip": 3, **dict.fromkeys(_TESTS, 1)}.get(name)
        if name in FUNCTIONS:
            argument_count = FUNCTIONS[name].arity
        if argument_count is None:
            known_functions = ", ".join(sorted([*FUNCTIONS, *_TESTS, "where", "clip"]))
            raise InvalidArgument(f"no function {name!r}; there are {known_functions}")
        if len(arguments) != argument_count if argument_count else len(arguments) < 2:
            raise InvalidArgument(
                f"{name} takes {argument_count or 'two or more'} arguments, got {ast.unparse(node)!r}"
            )
        if name == "where":
            test, *rest = arguments
            return f"({self.truth(test)} ? {self.number(rest[0])} : {self.number(rest[1])})", False
        values = [self.number(argument) for argument in arguments]
        if name in _TESTS:
            return _TESTS[name].format(values[0]), True
        if name == "clip":
            value, low, high = values
            return f"({value} < {low} ? {low} : {value} > {high} ? {high} : {value})", False
        text = values[0]
        if not FUNCTIONS[name].arity:
            for value in values[1:]:
                text = FUNCTIONS[name].opencl.format(text, value)
            return text, False
        return "(" + FUNCTIONS[name].opencl.replace("(T)", f"({self.kind})").format(*values) + ")", False


# --- derivatives of formulas -----------------------------------------------------------------------------------------


class _Substitute(ast.NodeTransformer):
    """Replaces names by expressions: what a statement assigned, into what follows."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node)


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


def _slope(node: ast.expr, name: str) -> str:
    """Derivative of an expression by a name, as text; ``"0"`` where the name does not bear on it."""
    if name not in _names_in(node):
        return "0"
    match node:
        case ast.Name():
            return "1"
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return f"-({_slope(inner, name)})"
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _slope(inner, name)
        case ast.BinOp(left=left, op=op, right=right):
            return _binary_slope(left, op, right, name)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _either(ast.unparse(test), _slope(body, name), _slope(other, name))
        case ast.Call(func=ast.Name(id="where"), args=[test, body, other]):
            return _either(ast.unparse(test), _slope(body, name), _slope(other, name))
        case ast.Call(func=ast.Name(id="clip"), args=[value, low, high]):
            v, a, b = map(ast.unparse, (value, low, high))
            inside = _either(f"({v}) > ({b})", _slope(high, name), _slope(value, name))
            return _either(f"({v}) < ({a})", _slope(low, name), inside)
        case ast.Call(func=ast.Name(id=called), args=[first, *rest]) if called in FUNCTIONS:
            # max(a, b, c) is differentiated as max(max(a, b), c).
            if not FUNCTIONS[called].arity and len(rest) > 1:
                first = ast.Call(ast.Name(called, ast.Load()), [first, *rest[:-1]], [])
                rest = rest[-1:]
            arguments = [first, *rest]
            words = [ast.unparse(argument) for argument in arguments]
            terms = [
                _times(slope.format(*words), _slope(argument, name))
                for slope, argument in zip(FUNCTIONS[called].slope, arguments, strict=True)
            ]
            return _plus(terms)
    return "0"  # The derivative of a comparison or condition is 0, because it is constant between its jumps.


def _binary_slope(left: ast.expr, op: ast.operator, right: ast.expr, name: str) -> str:
    a, b = f"({ast.unparse(left)})", f"({ast.unparse(right)})"
    da, db = _slope(left, name), _slope(right, name)
    match op:
        case ast.Add():
            return _plus([da, db])
        case ast.Sub():
            return _plus([da, "0" if db == "0" else f"-({db})"])
        case ast.Mult():
            return _plus([_times(da, b), _times(a, db)])
        case ast.Div():
            return _plus([_times(da, f"(1 / {b})"), "0" if db == "0" else f"-({_times(f'{a} / square({b})', db)})"])
        case ast.Pow():
            power = f"{b} * {a} ** ({ast.unparse(right)} - 1)"
            if isinstance(right, ast.Constant):
                power = f"{b} * {a} ** {right.value - 1!r}" if right.value != 2 else f"2 * {a}"  # type: ignore
            return _plus([_times(power, da), _times(f"({a} ** {b}) * log({a})", db)])
        case ast.Mod():
            return _plus([da, "0" if db == "0" else f"-({_times(f'({a} // {b})', db)})"])
    return "0"


def _times(a: str, b: str) -> str:
    if "0" in (a, b):
        return "0"
    return b if a == "1" else a if b == "1" else f"({a}) * ({b})"


def _plus(terms: list[str]) -> str:
    present = [term for term in terms if term != "0"]
    return present[0] if len(present) == 1 else " + ".join(f"({term})" for term in present) or "0"


def _either(test: str, yes: str, no: str) -> str:
    return yes if yes == no else f"where({test}, {yes}, {no})"
