"""Prints a product with a constant matrix as straight-line OpenCL C with few operations.

The code computes ``out = M in`` over named variables, scalars or vectors. Interpolation points of opposite sign make
pairs of columns or rows of M that differ only in signs; their sums and differences are computed once. Multiplications
by 1 are omitted, and others are combined with an addition (``a * b + c``, which compilers contract to one instruction).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Form = dict[str, Fraction]
"""A sum of named values, each with a factor other than 0."""


@dataclass(frozen=True)
class Program:
    """OpenCL statements, and their number of operations (a multiply-add counts as one)."""

    text: str
    operations: int


def literal(value: Fraction, dtype: str = "float") -> str:
    """A constant as OpenCL C text, rounded to the type once."""
    number = repr(float(value))
    return number + ("" if dtype == "double" else "h" if dtype == "half" else "f")


def program(
    matrix: Sequence[Sequence[Fraction]],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    type: str = "float",
    dtype: str = "float",
    prefix: str = "t",
    declare: bool = False,
    indent: str = "",
) -> Program:
    """Statements that set ``outputs[i] = sum over j of matrix[i][j] * inputs[j]``.

    ``inputs`` are expressions without side effects, which are evaluated many times (usually variables); ``outputs`` are
    variables, which ``declare`` declares, or elements of arrays. ``type`` is the type of the temporaries (``float16``,
    ``V``), ``dtype`` that of the constants; names of temporaries begin with ``prefix``. Outputs must be other variables
    than inputs, because an output may be written before all inputs are read. Raises ValueError if the sizes differ.
    """
    if len(matrix) != len(outputs) or any(len(row) != len(inputs) for row in matrix):
        raise ValueError(
            f"a matrix of {len(outputs)} rows by {len(inputs)} columns, "
            f"got {len(matrix)} by {sorted({len(row) for row in matrix})}"
        )
    writer = _Writer(type, dtype, prefix, indent)
    forms = [{name: value for name, value in zip(inputs, row, strict=True) if value} for row in matrix]
    writer.share_columns(forms)
    for output, (shared, scaled, sign) in zip(outputs, writer.share_rows(forms), strict=True):
        total = dict(shared)
        if scaled:
            name, factor = scaled
            total[name] = total.get(name, Fraction(0)) + sign * factor
        writer.assign(output, total, declare)
    return Program("".join(writer.lines), writer.operations)


def _dyadic(value: Fraction) -> bool:
    return value.denominator & (value.denominator - 1) == 0


def _outside(form: Form) -> Fraction:
    """The factor to take out of a form's sum: most remaining factors are then 1, or else exact in floats."""

    def quality(by: Fraction) -> tuple[int, int, bool]:
        quotients = [abs(value / by) for value in form.values()]
        return quotients.count(Fraction(1)), sum(_dyadic(value) for value in quotients), abs(by) == 1

    return max(form.values(), key=quality)


class _Writer:
    def __init__(self, type_: str, dtype: str, prefix: str, indent: str) -> None:
        self.type, self.dtype, self.prefix, self.indent = type_, dtype, prefix, indent
        self.lines: list[str] = []
        self.operations = 0
        self._temporaries: dict[tuple[tuple[str, Fraction], ...], str] = {}
        self._names = 0

    def share_columns(self, forms: list[Form]) -> None:
        """Replace two values that are in several forms, with factors equal up to sign, by their sum and difference."""
        while True:
            names = sorted({name for form in forms for name in form})
            columns = {name: [form.get(name, 0) for form in forms] for name in names}
            sizes = {name: [abs(value) for value in column] for name, column in columns.items()}
            best: tuple[int, str, str] | None = None
            for i, a in enumerate(names):
                for b in names[i + 1 :]:
                    if sizes[a] != sizes[b]:
                        continue
                    signs = [x == y for x, y in zip(columns[a], columns[b], strict=True) if x]
                    saved = len(signs) - len(set(signs))
                    if saved > 0 and (best is None or saved > best[0]):
                        best = saved, a, b
            if best is None:
                return
            _, a, b = best
            for form in forms:
                if a in form:
                    x, y = form.pop(a), form.pop(b)
                    form[self._temporary({a: Fraction(1), b: Fraction(1 if x == y else -1)})] = x

    def share_rows(self, forms: list[Form]) -> list[tuple[Form, tuple[str, Fraction] | None, int]]:
        """Find pairs of forms that are ``even + odd`` and ``even - odd``, and compute both halves only once."""
        result: list[tuple[Form, tuple[str, Fraction] | None, int] | None] = [None] * len(forms)
        for i, first in enumerate(forms):
            for j in range(i + 1, len(forms)):
                second = forms[j]
                if result[i] or result[j] or first.keys() != second.keys() or len(first) < 3:
                    continue
                even = {name: value for name, value in first.items() if second[name] == value}
                odd = {name: value for name, value in first.items() if second[name] == -value}
                if len(even) + len(odd) < len(first) or not even or not odd:
                    continue
                factors = _outside(even), _outside(odd)
                if len(even) > 1 and all(abs(factor) != 1 for factor in factors):
                    # The factor is applied within the shared sum: once, not once for each of the two forms.
                    factors = Fraction(1), factors[1]
                shared, factor = self._scaled(even, factors[0])
                scaled = self._scaled(odd, factors[1])
                for k, sign in ((i, 1), (j, -1)):
                    result[k] = {shared: factor}, scaled, sign
        return [half or (form, None, 1) for half, form in zip(result, forms, strict=True)]

    def _scaled(self, form: Form, factor: Fraction) -> tuple[str, Fraction]:
        """Return a value's name and a factor whose product is the form."""
        if len(form) == 1:
            return next(iter(form.items()))
        return self._temporary({name: value / factor for name, value in form.items()}), factor

    def _temporary(self, form: Form) -> str:
        key = tuple(sorted(form.items()))
        if key not in self._temporaries:
            name = f"{self.prefix}{self._names}"
            self._names += 1
            self.lines.append(f"{self.indent}const {self.type} {name} = {self._expression(form)};\n")
            self._temporaries[key] = name
        return self._temporaries[key]

    def assign(self, output: str, form: Form, declare: bool) -> None:
        """Append the statement that assigns one output."""
        target = f"const {self.type} {output}" if declare else output
        self.lines.append(f"{self.indent}{target} = {self._expression(form)};\n")

    def _expression(self, form: Form) -> str:
        """A chain of additions and multiply-adds, which begins with a term of factor 1 if there is one."""
        if not form:
            return "0"
        items = sorted(form.items(), key=lambda item: (item[1] != 1, item[1] != -1))
        (name, factor), *other_terms = items
        if factor == 1:
            text = name
        elif factor == -1:
            text = f"-{name}"
            if other_terms and other_terms[0][1] > 0:  # print a - b instead of -b + a
                term, coefficient = other_terms.pop(0)
                text = f"{literal(coefficient, self.dtype)} * {term} - {name}"
                self.operations += 1
        else:
            text = f"{literal(factor, self.dtype)} * {name}"
            self.operations += 1
        for name, factor in other_terms:
            self.operations += 1
            if abs(factor) == 1:
                text = f"{text} {'+' if factor > 0 else '-'} {name}"
            else:
                text = (
                    f"{literal(factor, self.dtype)} * {name} + ({text})"
                    if " " in text
                    else (f"{literal(factor, self.dtype)} * {name} + {text}")
                )
        return text
