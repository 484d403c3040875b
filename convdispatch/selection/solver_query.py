"""Queries solvers, guarded: whatever a solver returns or raises, the caller gets values of the right type or a reason.

A solver is queried once for each problem: whether it refuses, and the default configuration with its cost and
workspace. The other configurations are listed on demand, because a solver may rate hundreds to list them. The problem's
``math`` is the least accuracy: for ``"tf32"`` and ``"fast"`` a solver is also queried for the same problem in float32,
and its configurations for that are offered too. Breaking the contract is a *fault*: it is reported once, by a warning,
and the solver is set aside for the problem. Only KeyboardInterrupt and Frozen are passed on.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import numbers
import reprlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..api.declared import outside_declaration
from ..api.device import DeviceInfo
from ..api.errors import Frozen, PluginError
from ..api.fault_text import plain, words
from ..api.problem import ConvProblem
from ..api.solver import Solver
from ..device.runtime import device_info
from ..device.size_limits import workspace_room
from .defensive_copy import MOST_CONFIGS, ArgumentsChanged, ask, banned, copied
from .plugins import answer_trial
from .plugins.loader import plugins, warn_once
from .reach import out_of_reach
from .visible_problem import unfused_seconds, visible_problem

FLOORS = {"tf32": ("float32", "ieee"), "fast": ("float32", "ieee")}
"""For each ``math`` of a problem, the more accurate maths for which a solver is queried too, the first preferred."""
_MAX_ANSWERS = 8192
"""The most cached replies of solvers: those of some fifty solvers, including derived ones, for 160 problems."""

_lock = threading.Lock()
_answers: OrderedDict[tuple[Any, ConvProblem, DeviceInfo], SolverAnswers] = OrderedDict()
_refused_kinds: dict[tuple[Any, ...], str] = {}
"""Reasons of solvers that compute no problem of a kind, see ``refuses_kind``."""
_unbounded_kinds: set[tuple[Any, ...]] = set()
"""Kinds of problems about which a solver did not know its least seconds."""


class Fault(Exception):
    """A solver broke its contract; a warning was given, and the solver is set aside for the problem."""


class SolverAnswers:
    """The cached replies of a solver for a problem, without the parts of the epilogue that it does not fuse."""

    def __init__(self, solver: Solver, problem: ConvProblem, device: DeviceInfo) -> None:
        self.solver, self.problem, self.device = solver, problem, device
        self.refused: str | None = None
        """The solver's own reason why it cannot compute the problem; None if it accepts, or has a fault."""
        self.fault: str | None = None
        """How the solver broke its contract; it is set aside for the problem then."""
        self.elsewhere: str | None = None
        """The solver's reason to refuse every problem of this dtype on this device."""
        self.default: Mapping[str, Any] = {}
        """The configuration to use without measuring, where the solver accepts."""
        self._configs: tuple[Mapping[str, Any], ...] | None = ()
        """All offered configurations; None until they are needed."""
        self._accurate: SolverAnswers | None = None
        """The replies for more accurate math whose configurations are offered too."""
        self._refuses_own_math = False
        self._texts: frozenset[str] | None = None
        self._answered: dict[tuple[str, str], Any] = {}
        self._shown: dict[str, ConvProblem] = {}
        self.fault = banned(solver)
        self.refused = outside_declaration(solver, problem, device)
        if self.refused is not None:
            # Where dtypes differ by direction, a rewriting may turn the direction into one that takes this dtype.
            self.elsewhere = None if isinstance(solver.dtypes, Mapping) else self.refused
            _refused_kinds[_kind(solver, problem, device)] = self.refused
            return
        if self.fault is None and "chain" not in vars(solver):
            self.fault = answer_trial.fault(solver.name, problem, device)
            self._kind = "no answer"
        try:
            self.elsewhere = self._answer("serves", _checked_reason)
            if self.elsewhere:
                _refused_kinds[_kind(solver, problem, device)] = self.elsewhere
            self.refused = self.elsewhere or out_of_reach(problem) or self._answer("rejects", _checked_reason)
            if self.refused is None:
                self.default, self._configs = self._answer("configs", _checked_default)
                self.cost(self.default)
                self.workspace(self.default)
        except Fault:
            self._configs = ()
        if problem.dtype == "float32" and self.fault is None and self.elsewhere is None:
            self._admit_more_accurate()

    def _admit_more_accurate(self) -> None:
        """Offer the configurations for more accurate math too; their default is taken if predicted to be faster."""
        for math_ in FLOORS.get(self.problem.math, ()):
            accurate = SolverAnswers(self.solver, _with_math(self.problem, math_), self.device)
            if accurate.accepts:
                break
        else:
            return
        own_cost, accurate_cost = (
            self._answered.get(("cost", canonical(self.default))) or 0.0,
            accurate.cost(accurate.default),
        )
        self._refuses_own_math, self.refused = self.refused is not None, None
        if self._refuses_own_math or own_cost > (accurate_cost or math.inf):
            self.default, text = accurate.default, canonical(accurate.default)
            self._answered["cost", text] = accurate_cost
            self._answered["workspace", text] = accurate.workspace(accurate.default)
            self._shown[text] = accurate.problem
        self._accurate, self._configs = accurate, None

    @property
    def configs(self) -> tuple[Mapping[str, Any], ...]:
        """All configurations that the solver offers, the default first; at least one where it accepts."""
        if self._configs is None:
            self._configs = self._list_configs()
        return self._configs

    def _list_configs(self) -> tuple[Mapping[str, Any], ...]:
        try:
            own = () if self._refuses_own_math else self._answer("configs", _checked_configs)
        except Fault:
            return ()
        if self._accurate is None:
            return own
        own_texts, default_text = set(map(canonical, own)), canonical(self.default)
        added = [config for config in self._accurate.configs if canonical(config) not in own_texts]
        self._shown |= {canonical(config): self._accurate.problem for config in added}
        return self.default, *(config for config in (*own, *added) if canonical(config) != default_text)

    def shown(self, config: Mapping[str, Any]) -> ConvProblem:
        """The problem as the solver plans it with a configuration: perhaps in more accurate math."""
        if self._accurate is None:
            return self.problem
        text = canonical(config)
        if self._configs is None and text not in (*self._shown, canonical(self.default)):
            self._configs = self._list_configs()
        return self._shown.get(text, self.problem)

    @property
    def accepts(self) -> bool:
        """Whether the solver can compute the problem, and has no fault."""
        return self.refused is None and self.fault is None

    def offers(self, config: Mapping[str, Any]) -> bool:
        """Whether a configuration, for instance one from a file, is among those that the solver offers."""
        try:
            text = canonical(config)
        except (TypeError, ValueError, RecursionError):  # The configuration holds values that JSON does not have.
            return False
        if self.accepts and text == canonical(self.default):
            return True
        if self._texts is None:
            self._texts = frozenset(map(canonical, self.configs))
        return text in self._texts

    def cost(self, config: Mapping[str, Any]) -> float | None:
        """The predicted cost of an offered configuration. Raises Fault."""
        return self._cached("cost", config, checked_cost)

    def workspace(self, config: Mapping[str, Any]) -> int | None:
        """Bytes of workspace that an offered configuration needs; None when unknown. Raises Fault."""
        return self._cached("workspace", config, checked_size)

    def refuses_batches(self, sizes: Iterable[int]) -> str | None:
        """Why the solver refuses the problem for one of these numbers of images, or None."""
        of_sizes = (query(self.solver, self.problem.replace(mb=images), self.device) for images in sizes)
        return next((answers.refused or answers.fault for answers in of_sizes if not answers.accepts), None)

    def is_invariant(self, config: Mapping[str, Any]) -> bool:
        """Whether an offered configuration sums each image in an order independent of the batch; weight gradients,
        which are sums over the batch, count as if they did. Raises Fault."""
        if self.problem.direction == "bwd_weights" or not self.solver.batch_invariant:
            return self.problem.direction == "bwd_weights"
        return not self._cached("sums_by_batch", config, _checked_bool)

    def within(self, limit: int | None) -> Iterator[Mapping[str, Any]]:
        """The offered configurations whose stated workspace is at most ``limit`` bytes. Without a limit: all of them if
        the default fits on the device, else those that fit. Raises Fault."""
        default_size = self.workspace(self.default)
        if limit is None:
            limit = workspace_room(self.problem, self.device)
            if limit is None or default_size is None or default_size <= limit:
                limit = math.inf
        if default_size is None or default_size <= limit:
            yield self.default
        for config in self.configs[1:]:
            size = self.workspace(config)
            if size is None or size <= limit:
                yield config

    def _cached(self, method: str, config: Mapping[str, Any], check: Callable[[Any], Any]) -> Any:
        key = method, canonical(config)
        if key not in self._answered:
            self._answered[key] = self._answer(method, check, config)
        return self._answered[key]

    def _answer(self, method: str, check: Callable[[Any], Any], *extra_arguments: Any) -> Any:
        if self.fault is not None:
            raise Fault(self.fault)
        problem = self.shown(extra_arguments[0]) if extra_arguments else self.problem
        arguments = (self.device,) if method == "serves" else (problem, self.device, *extra_arguments)
        try:
            return check(ask(self.solver, method, *arguments))
        except (KeyboardInterrupt, Frozen):
            raise
        except ArgumentsChanged as error:  # The warning of the changed argument has named the plugin already.
            self.fault, self._configs = str(error), ()
            raise Fault(str(error)) from None
        except answer_trial.Hang as hang:
            fault_text, self._kind = f"its {method}() {hang}", "no answer"
            answer_trial.note_hang(self.solver.name, fault_text)
        except _InvalidAnswer as wrong:
            fault_text, self._kind = f"its {method}() answered {wrong}", f"{method} answered"
        except BaseException as error:
            fault_text, self._kind = f"its {method}() raised {words(error)}", f"{method} raised {type(error).__name__}"
        self.fault, self._configs = fault_text, ()
        if self._said:
            self._warn_of_fault()
        raise Fault(fault_text)

    def ban(self, why: str) -> None:
        """Mark the answers as faulty, because the solver's plugin was set aside after it was asked."""
        self.fault, self._configs = self.fault or why, ()

    _kind = ""
    _said = False
    """Whether these answers are in the cache; a fault that occurs later is then reported immediately."""

    def _warn_of_fault(self) -> None:
        plugin = plugins().provider(self.solver.name)
        message = (
            f"solver {self.solver.name} of plugin {plugin} is set aside for {self.problem} on {self.device}, and "
            f"wherever else it does this: {self.fault}; tell the plugin's author, or shut it out with "
            f"CONVDISPATCH_BLOCK={plugin}"
        )
        warn_once(self.solver.name, self._kind, message, stacklevel=6)


def query(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> SolverAnswers:
    """The solver's replies for ``problem``, from the cache or queried now. A solver's fault is not raised."""
    visible = visible_problem(solver, problem)
    # A derived solver is a new object at each call, so it is identified by its root solver and its chain of rewritings.
    chain = vars(solver).get("chain", ())
    key = (id(solver.root) if chain else id(solver), chain), visible, device  # type: ignore[attr-defined]
    with _lock:
        cached_answers = _answers.get(key)
        if cached_answers is not None:
            _answers.move_to_end(key)
    if cached_answers is not None:
        if why := banned(solver):
            cached_answers.ban(why)
        return cached_answers
    new_answers = SolverAnswers(solver, visible, device)
    with _lock:
        cached_answers = _answers.setdefault(key, new_answers)
        while len(_answers) > _MAX_ANSWERS:
            _answers.popitem(last=False)
    if cached_answers is new_answers:
        new_answers._said = True
        if new_answers.fault is not None and banned(solver) is None:
            new_answers._warn_of_fault()
    return cached_answers


def refuses_kind(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> str | None:
    """Why a solver refuses all problems of this dtype and direction on the device; None if it takes some, and before
    it was queried about the first of them."""
    return _refused_kinds.get(_kind(solver, problem, device)) if _refused_kinds else None


def _kind(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> tuple[Any, ...]:
    root = vars(solver).get("root", solver)
    return id(root), root is solver, problem.dtype, problem.direction, problem.math == "reproducible", device


def admits(problem: ConvProblem, math_: str) -> bool:
    """Whether a solver may plan a problem in this math: its own or, of float32 data, a more accurate one."""
    return math_ == problem.math or (problem.dtype == "float32" and math_ in FLOORS.get(problem.math, ()))


def planned_as(candidate: Any, problem: ConvProblem, seen: ConvProblem, context: Any) -> ConvProblem:
    """The problem that is passed to a candidate's ``plan``; ``seen`` is the problem as its solver sees it.

    It has the math that the configuration was offered for (``FLOORS``); if the candidate does not hold that, the solver
    is queried.
    """
    if candidate.math:
        return _with_math(seen, candidate.math)
    if seen.math not in FLOORS:
        return seen
    return query(candidate.solver, problem, device_info(context.devices[0])).shown(candidate.config)


def forget() -> None:
    """Drop the cached replies, so that every solver is queried again."""
    with _lock:
        _answers.clear()
        _refused_kinds.clear()
        _unbounded_kinds.clear()


def serves(solver: Solver, device: DeviceInfo) -> bool:
    """Whether a solver says that it runs on a device at all: its libraries and instructions are there."""
    try:
        return _checked_reason(ask(solver, "serves", device)) is None
    except (KeyboardInterrupt, Frozen):
        raise
    except BaseException:  # ``query`` meets the same error when it asks the solver, and reports it.
        return False


def predicted(
    solver: Solver, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any], math_: str = ""
) -> float | None:
    """The time that a solver predicts for a configuration; None if that is invalid or nothing is predicted.

    ``math_`` is the math that the configuration was offered for, if known; then only its cost is queried.
    """
    visible = visible_problem(solver, problem)
    if math_:
        visible = _with_math(visible, math_)
    elif visible.math in FLOORS:
        return _least_cost(solver, visible, device, config)
    try:
        cost = checked_cost(ask(solver, "cost", visible, device, config))
        return None if cost is None else cost + unfused_seconds(solver, problem, device)
    except (KeyboardInterrupt, Frozen):
        raise
    except BaseException:  # The configuration is invalid for this problem, so there is no prediction.
        return None


def least_seconds(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> float:
    """Seconds that a solver, if it accepts the problem, predicts at least for every configuration, passes for what it
    does not fuse included; 0.0 if unknown, or unknown for an earlier problem of this dtype and direction."""
    kind = _kind(solver, problem, device)
    if kind in _unbounded_kinds or outside_declaration(solver, problem, device) or not plugins().proven(solver.name):
        return 0.0
    seen = visible_problem(solver, problem)
    maths = (seen.math, *FLOORS.get(seen.math, ())) if seen.dtype == "float32" else (seen.math,)
    try:
        least = min(checked_cost(ask(solver, "least_seconds", _with_math(seen, each), device)) or 0.0 for each in maths)
    except (KeyboardInterrupt, Frozen):
        raise
    except BaseException:  # ``query`` will ask the solver itself
        least = 0.0
    if not least:
        _unbounded_kinds.add(kind)
        return 0.0
    return least + unfused_seconds(solver, problem, device)


def _least_cost(solver: Solver, seen: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
    """The cost of a configuration that may have been offered for more accurate math."""
    answers = query(solver, seen, device)
    if answers.offers(config):
        try:
            return answers.cost(config)
        except Fault:
            pass
    return None


@functools.lru_cache(maxsize=256)
def _with_math(problem: ConvProblem, math_: str) -> ConvProblem:
    return problem if problem.math == math_ else problem.replace(math=math_)


def canonical(config: Mapping[str, Any]) -> str:
    """A text that is equal for equal configurations, including one that was read from a file."""
    return json.dumps(dict(config), sort_keys=True, allow_nan=False)


def guarded(what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``call(*arguments)``; a BaseException such as SystemExit becomes a PluginError whose message starts with
    ``what``."""
    try:
        return call(*arguments)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"{what} raised {words(error)}") from error


def checked_plan(solver: Solver, plan: Any) -> Any:
    """``plan``, if it fulfils the contract. Raises PluginError."""
    size = guarded(f"{solver.name}'s plan", getattr, plan, "workspace_size", None)
    if type(size) is not int or size < 0 or not callable(getattr(plan, "enqueue", None)):
        raise PluginError(
            f"{solver.name}.plan must return workspace_size (bytes) and enqueue(...), got {reprlib.repr(plan)}"
        )
    packed = getattr(plan, "packed_size", 0)
    if type(packed) is not int or packed < 0 or (packed and not callable(getattr(plan, "pack", None))):
        raise PluginError(
            f"{solver.name}'s plan must state packed_size in bytes and have pack(...), got {reprlib.repr(packed)}"
        )
    key = getattr(plan, "pack_key", None)
    if not isinstance(key, str | None):
        raise PluginError(f"{solver.name}'s plan must give a text as pack_key, got {reprlib.repr(key)}")
    return plan


# --- checks of what each method of a solver may return ---------------------------------------------------------------


class _InvalidAnswer(Exception):
    """A solver returned a value of the wrong kind; the message says what it was and what was expected."""


def _invalid_answer(answer: Any, expected: str) -> _InvalidAnswer:
    try:
        shown = reprlib.repr(answer)
    except BaseException:
        shown = f"a {type(answer).__name__}"
    return _InvalidAnswer(f"{plain(shown)}, where {expected} was expected")


def _checked_reason(answer: Any) -> str | None:
    if answer is None or (isinstance(answer, str) and answer):
        return answer and plain(answer)
    raise _invalid_answer(answer, "None or a reason in words")


def _checked_configs(answer: Any) -> tuple[dict[str, Any], ...]:
    expected = "an iterable of mappings of names to JSON values, at least one of them,"
    if isinstance(answer, str | bytes | Mapping) or not hasattr(answer, "__iter__"):
        raise _invalid_answer(answer, expected)
    configs = []
    for config in answer:
        if not isinstance(config, Mapping) or not all(isinstance(name, str) for name in config):
            raise _invalid_answer(answer if isinstance(answer, list | tuple | set) else config, expected)
        try:
            canonical(config)
        except (TypeError, ValueError):
            raise _invalid_answer(config, expected) from None
        configs.append(copied(config))
        if len(configs) > MOST_CONFIGS:
            raise _InvalidAnswer(f"more than {MOST_CONFIGS} configurations")
    if not configs:
        raise _invalid_answer(answer, expected)
    return tuple(configs)


def _checked_default(answer: Any) -> tuple[dict[str, Any], tuple[dict[str, Any], ...] | None]:
    """The first configuration, and all of them unless they are listed only as far as they are needed."""
    if isinstance(answer, Iterator):  # Plugins that are not trusted have returned a list (``defensive_copy.ask``).
        return _checked_configs(list(itertools.islice(answer, 1)))[0], None
    configs = _checked_configs(answer)
    return configs[0], configs


def checked_cost(answer: Any) -> float | None:
    if answer is None:
        return None
    if isinstance(answer, numbers.Real) and not isinstance(answer, bool):
        try:
            cost = float(answer)
        except OverflowError:
            cost = math.inf
        if math.isfinite(cost) and cost >= 0:
            return cost
    raise _invalid_answer(answer, "None or a finite number of 0 or more")


def _checked_bool(answer: Any) -> bool:
    if isinstance(answer, bool):
        return answer
    raise _invalid_answer(answer, "True or False")


def checked_size(answer: Any) -> int | None:
    if answer is None:
        return None
    if isinstance(answer, numbers.Integral) and not isinstance(answer, bool) and answer >= 0:
        return int(answer)
    raise _invalid_answer(answer, "None or a whole number of bytes, 0 or more,")
