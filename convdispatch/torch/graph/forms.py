"""Inference forms of one graph of Dynamo's: a recorded program per set of input shapes, in least-recently-used order.

``GraphForms`` is what the back end returns for a graph without gradients on a CPU. It is called with the graph's flat
inputs. Those that are weights (``constants``) are packed into the form; the form holds for as long as they are
unchanged. A call that has no form runs the graph operator by operator, by ``unfused``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ...api import settings
from ...api.errors import ConvDispatchError
from ...api.policy import policy
from ...calls.framework.fallback import Fallback, cpu_device
from ...device import runtime
from ...device.places.stream import KINDS
from .. import counting, ranks
from ..dispatch import engine
from ..dispatch.routing import settings_in_force
from ..geometry import DTYPES, FORMATS
from ..settings import DEFAULT, math_of, policy_of, switches
from . import inductor
from .aten_net import AtenNet, Missing
from .constants import Constants, WeightSets, packed_inputs
from .engine_choice import Race, may_lose
from .quantized import QUANTIZING
from .specialised import alias, forget_originals, specialised, without_fakes
from .tuning import is_tuned, tune

MAX_FORMS = 12
"""The number of forms that one graph caches; the least recently used one is freed for a further one. Ten sizes in turn
must not evict each other."""
MAX_DIFFERENCE = 1e-3
"""Largest relative difference (norm) between a form's first result and PyTorch's, under ``CONVDISPATCH_CHECK=1``."""
MAX_INTEGER_DIFFERENCE = 2e-2
"""The largest relative difference (norm) if the graph rounds to integers: a tie may be rounded to the other side."""
MAX_COMPILED = 2
"""The number of shape sets of one graph that inductor compiles, because each takes seconds; further ones run operator
by operator."""
ENGINES = ("form", "inductor", "operators")
"""Engines for a graph without gradients: a recorded form, inductor with convdispatch's convolutions, or operators one
by one."""
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_TYPES = {
    "cpu": (torch.float32, torch.float64, *_INTEGERS),
    **dict.fromkeys(KINDS, (torch.float32, torch.float64, torch.float16, torch.bfloat16, *_INTEGERS)),
}
"""The types of inputs for which forms are built, by device."""


class Form:
    """A recorded program with its prologue and results: ``form(inputs)`` returns the graph's results."""

    def __init__(self, net: AtenNet, program: Any) -> None:
        self._net, self._program = net, program
        self._layout, self._solvers = program.layout, _solvers(program)

    @property
    def layout(self) -> str | None:
        """The layout in which the program computes now."""
        return self._program.layout  # type: ignore[no-any-return]

    def __str__(self) -> str:
        program = self._program
        return f"{program.layout or 'as traced'}, {program.commands} commands, {len(self._solvers)} convolutions"

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        input_by_node = self._net.given(inputs)
        computed = self._program(*(each.detach().contiguous() for each in self._net.feeds(input_by_node)))
        if self._program.layout != self._layout:  # another layout of the same net has proved faster
            self._layout, self._solvers = self._program.layout, _solvers(self._program)
        counting.several("convolution", self._solvers)
        return self._net.results(computed, input_by_node)


def _solvers(program: Any) -> list[str]:
    return [layer.solver for layer in program.layers if layer.problem is not None]


class OperatorForm:
    """A graph for one set of shapes with frozen weights and our convolutions: compiled by inductor, or run operator by
    operator."""

    def __init__(self, run: Callable[..., Any], engine: str, words: str) -> None:
        self._run, self.engine, self._words = run, engine, words

    def __str__(self) -> str:
        return self._words

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        with torch.no_grad():
            return list(self._run(*inputs))


class GraphForms:
    """A graph's callable: ``forms(inputs)`` takes the flat inputs of ``graph`` as a list and returns its flat results.

    ``static`` holds the positions of inputs that are the model's own tensors. Safe from several threads; the forms of
    one graph run one at a time.
    """

    _boxed_call = True

    def __init__(self, graph: fx.GraphModule, static: Sequence[int], backend: Any) -> None:
        """``backend`` says the "engine", or None for the best one, and inductor's "patches"."""
        self._backend = backend
        self._packed = packed_inputs(graph, static)
        self._graph, self._is_static = without_fakes(graph)
        with unset_fake_temporarily():
            self._unfused = inductor.operator_by_operator(self._graph)
        packed = set(self._packed)
        count = sum(node.op == "placeholder" for node in graph.graph.nodes)
        self._dynamic = [index for index in range(count) if index not in packed]
        self._weight_sets = WeightSets()
        self._constants: Constants | None = None
        """The weights of the call that is looking for its form; between calls a graph references weights only in its
        sets."""
        self._compiled = 0
        self._engines: dict[Any, tuple[str, str | None]] = {}
        """The engine, and a form's layout, that the first weight set got, by the key of a call: further sets get the
        same, and nothing is timed again."""
        self._shared: dict[Any, Any] = {}
        """The graph as inductor compiled it for all further weight sets, by the key of a call."""
        self._lock = threading.RLock()

    def descriptions(self) -> dict[str, str]:
        """The form for each set of input shapes, or the reason why there is none."""
        forms = [each for weights in self._weight_sets.sets for each in list(weights.forms.items())]
        return {_shapes_of(key): str(form) for key, form in forms}

    def free(self) -> None:
        """Free all forms and weights; a later call builds new ones."""
        with self._lock:
            self._weight_sets.free()

    def __call__(self, inputs: list[Any]) -> Any:
        with self._lock:
            try:
                form = self._find(inputs)
            finally:
                self._constants = None
            if form is not None:
                dynamic = [inputs[index] for index in self._dynamic]
                inputs.clear()
                return form([each for each in dynamic if isinstance(each, torch.Tensor)])
        return self._unfused(inputs)

    def _find(self, inputs: Sequence[Any]) -> Form | OperatorForm | None:
        """The form for a call, built now if its shapes are new; None where the call runs operator by operator."""
        dynamic = [inputs[index] for index in self._dynamic]
        tensors = [each for each in dynamic if isinstance(each, torch.Tensor)]
        settings = settings_in_force() or DEFAULT
        if not _can_serve(tensors) or settings.min_flops is not None:
            return None
        self._constants = self._weight_sets.find([inputs[index] for index in self._packed])
        if self._constants is None:
            return None
        forms = self._constants.forms
        switched = switches(tensors[0].is_cuda)
        chosen = policy_of(settings, switched)
        dtype = _dtype(tensors, self._constants.tensors)
        key = (tuple(map(_kind, dynamic)), math_of(settings, switched, DTYPES[dtype]), chosen)
        form = forms.get(key)
        if form is None:
            from torch._dynamo.convert_frame import compile_lock

            with compile_lock:  # other threads' tracers patch PyTorch's classes
                form = forms[key] = self._build(inputs, dynamic, key, dtype)
            self._constants.forget_reads()
            while len(forms) > MAX_FORMS:
                forms.popitem(last=False)
        forms.move_to_end(key)
        return form

    def _build(
        self, inputs: Sequence[Any], dynamic: Sequence[Any], key: Any, dtype: torch.dtype
    ) -> Form | OperatorForm:
        """Build what computes the graph for such inputs; for a further weight set, as for the first."""
        forget_originals()
        tensors = [each for each in dynamic if isinstance(each, torch.Tensor)]
        engine, layout = self._engines.get(key, ("", None))
        if engine == "inductor":
            return self._build_shared(inputs, key)
        if engine == "form":
            built = self._build_form(inputs, tensors, key, dtype, layout)
            if not isinstance(built, str):
                return built
        form = self._build_first(inputs, tensors, key, dtype)
        engine = "form" if isinstance(form, Form) else form.engine
        self._engines[key] = engine, form.layout if isinstance(form, Form) else None
        return form

    def _build_first(
        self, inputs: Sequence[Any], tensors: Sequence[torch.Tensor], key: Any, dtype: torch.dtype
    ) -> Form | OperatorForm:
        """Build what computes the graph for such inputs with its first weight set, by the engine that is fastest."""
        device = tensors[0].device.type
        engine = self._backend.engine or ("inductor" if device in KINDS else "")
        race = self._race(inputs, key) if not engine else None
        form, why = None, ""
        if engine == "form" or (not engine and (race is None or race.winner != "inductor")):
            built_form = self._build_form(inputs, tensors, key, dtype)
            form, why = (None, f" ({built_form})") if isinstance(built_form, str) else (built_form, "")
            if form is not None and (race is None or race.winner == "form"):
                return form
        # On a CPU inductor would compute convolutions by oneDNN, whose sums depend on the batch.
        race_only = engine != "inductor" and device == "cpu" and key[2].is_invariant
        may_compile = engine != "operators" and not race_only and self._compiled < MAX_COMPILED
        if may_compile and inductor.available(device):
            inductor_form = self._build_by_inductor(inputs, tensors, why, key[2].is_strict_nan)
            return (
                inductor_form
                if form is None or race is None
                else race.fastest({"form": form, "inductor": inductor_form}, tensors)
            )
        if form is not None:
            return form
        run = inductor.with_our_operators(self._specialised(inputs), tensors[0].device, self._backend.mode)
        return OperatorForm(run, "operators", f"operator by operator, convolutions ours{why}")

    def _build_shared(self, inputs: Sequence[Any], key: Any) -> OperatorForm:
        """The graph for a further weight set: inductor compiles it once for all of them, with weights as inputs:
        a compilation takes seconds and a net may have a set for each of its blocks."""
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        ours = self._takes_our_convolutions(tensors, key[2].is_strict_nan)
        if key not in self._shared:
            graph = specialised(self._graph, self._is_static, inputs, ())
            with torch.inference_mode(False):
                aliases = [alias(each) for each in tensors]
                self._shared[key] = inductor.compiled_for_any_weights(graph, aliases, self._backend, ours)
        indices = [index for index, each in enumerate(inputs) if isinstance(each, torch.Tensor)]
        fixed = dict(zip(self._packed, map(alias, self._constants.tensors), strict=True))  # type: ignore[union-attr]
        run = self._shared[key]

        def with_weights(*dynamic: torch.Tensor) -> Any:
            rest = iter(dynamic)
            return run(*(fixed[index] if index in fixed else next(rest) for index in indices))

        return OperatorForm(
            with_weights, "inductor", f"by inductor{', convolutions ours' if ours else ''}, for any weights"
        )

    def _takes_our_convolutions(self, tensors: Sequence[torch.Tensor], strict_nan: bool) -> bool:
        """Whether inductor's code has our convolutions: on a GPU and if that was requested, or the policy holds them to
        spread no NaN. Else the whole graph is inductor's, because on a CPU it fuses what follows oneDNN's convolutions,
        and calls of ours cost the host more."""
        return self._backend.engine == "inductor" or not tensors[0].is_cpu or strict_nan

    def _specialised(self, inputs: Sequence[Any]) -> fx.GraphModule:
        """The graph specialised for the sizes and weights of a call."""
        return specialised(self._graph, self._is_static, inputs, self._packed)

    def _race(self, inputs: Sequence[Any], key: Any) -> Race | None:
        """The timed choice between a form and inductor; None if there is no choice: inductor is unavailable, results
        must repeat from process to process or spread no NaN, or nearly all is convolutions and no search was asked
        for."""
        if not inductor.available("cpu") or self._compiled >= MAX_COMPILED or key[2].binds:
            return None
        graph = self._specialised(inputs)
        return Race(graph) if is_tuned(self._backend.mode) or may_lose(graph) else None

    def _build_by_inductor(
        self, inputs: Sequence[Any], tensors: Sequence[torch.Tensor], why: str, strict_nan: bool
    ) -> OperatorForm:
        """The graph with its weights compiled by inductor."""
        self._compiled += 1
        ours = self._takes_our_convolutions(tensors, strict_nan)
        graph = self._specialised(inputs)
        with torch.inference_mode(False):
            run = inductor.compiled_frozen(graph, [each.detach() for each in tensors], self._backend, ours)
        return OperatorForm(run, "inductor", f"by inductor{', convolutions ours' if ours else ''}{why}")

    def _build_form(
        self,
        inputs: Sequence[Any],
        tensors: Sequence[torch.Tensor],
        key: Any,
        dtype: torch.dtype,
        layout: str | None = None,
    ) -> Form | str:
        """A form for the graph, or the reason why there is none, as text; without ``layout``, in the fastest."""
        from ... import inference

        _, math, chosen = key
        if tensors[0].device.type != "cpu":
            return "forms run on CPUs"
        try:
            queue = runtime.queue(cpu_device())
            net = AtenNet(self._specialised(inputs), queue, math)
            net.check(dtype)
            if net.lies_otherwise():
                net.lie_as(self._unfused(list(inputs)))
            with policy(solver=chosen.solver, **chosen.promises), torch.inference_mode(False):
                feeds = net.feeds(net.given(tensors))
                # The layout is fixed: timing might choose another one in each process.
                if chosen.deterministic and feeds[0].ndim == 4:
                    layout = "nchw"
                shapes, dtypes = [tuple(x.shape) for x in feeds], [DTYPES[x.dtype] for x in feeds]
                if is_tuned(self._backend.mode):
                    tune(inference.problems(net, *shapes, dtype=dtypes, queue=queue, layout=layout), queue.device)
                build_options: dict[str, Any] = {"queue": queue, "layout": layout, "recall": True, "threads": "pytorch"}
                form = Form(net, inference.build(net, *shapes, dtype=dtypes, **build_options))
        except (Missing, Fallback, ConvDispatchError) as error:
            return str(error).splitlines()[0]
        if settings.CHECK.value():
            self._compare(form, inputs, tensors)
        return form

    def _compare(self, form: Form, inputs: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
        """Raises ConvDispatchError if a form's results differ from those of the graph itself."""
        rounds = any(str(node.target) in QUANTIZING for node in self._graph.graph.nodes)
        limit = MAX_INTEGER_DIFFERENCE if rounds else MAX_DIFFERENCE
        for form_result, graph_result in zip(form(tensors), self._graph(*inputs), strict=True):
            if not isinstance(graph_result, torch.Tensor):
                continue
            difference = (form_result.double() - graph_result.double()).norm() / graph_result.double().norm().clamp_min(
                1e-30
            )
            # Infinities and NaN must be at the same indices.
            close = torch.allclose(form_result, graph_result, rtol=limit, equal_nan=True)
            if not difference <= limit and not close:
                raise ConvDispatchError(
                    f"CONVDISPATCH_CHECK: a form's result differs from PyTorch's by {difference:.1e} of its norm "
                    f"(at most {limit:g} was expected), for inputs {[tuple(x.shape) for x in tensors]}: "
                    "please report it"
                )


def _can_serve(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a form can run: plain tensors in host memory, and no watcher of operators."""
    if not tensors or ranks.many() or engine.watched() or runtime.forked:
        return False
    for x in tensors:
        if x.dtype not in _TYPES.get(x.device.type, ()) or type(x) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if x.layout is not torch.strided or x.is_neg() or x.numel() == 0:
            return False
    return True


def _kind(x: Any) -> Any:
    """The cache key of an input: its shape, type and device, and whether it is channels last, as its results will
    be."""
    if not isinstance(x, torch.Tensor):
        return x
    channels_last = x.ndim in FORMATS and not x.is_contiguous() and x.is_contiguous(memory_format=FORMATS[x.ndim])
    return tuple(x.shape), x.dtype, channels_last if x.is_cpu else x.stride(), x.device


def _dtype(tensors: Sequence[torch.Tensor], constants: Sequence[torch.Tensor]) -> torch.dtype:
    """The dtype in which a form computes: that of the first floating input, else of the weights."""
    dtypes = (x.dtype for x in (*tensors, *constants) if x.dtype in DTYPES)
    return next(dtypes, torch.get_default_dtype())


def _shapes_of(key: Any) -> str:
    return " ".join("x".join(map(str, kind[0])) for kind in key[0] if isinstance(kind, tuple))
