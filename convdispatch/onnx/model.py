"""``load`` turns a model file into a net that is called with arrays; a form is built and cached for each set of
shapes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from .. import inference, runtime
from ..api.dtypes import numpy_dtype
from ..api.errors import InvalidArgument
from ..api.policy import promising
from ..api.problem import ConvProblem
from ..device.programs.kernels import Programs
from ..elementwise.tensor import Tensor
from . import operators  # noqa: F401 (importing the module registers the operators)
from .arrays import Caller
from .call import NeedsValue
from .interpreter import Interpreter, Scope, check_operators, standard
from .qoperators import in_onnxs_words
from .reading import Storage, dense, dtype_of, onnx_package, read, supported, to_array

_MOST_VALUES = 4096
"""The most elements of an input whose values a form may depend on."""
_NEWEST_KNOWN = 7
"""The oldest operator set of ONNX whose semantics are implemented; older files are read by the same rules."""


def load(
    model: str | PathLike[str] | bytes | Any,
    *,
    device: Any = None,
    math: str = "float32",
    dtype: Any = None,
    batch_invariant: bool | None = None,
    strict_nan: bool | None = None,
) -> OnnxNet:
    """The net of an ONNX file, its bytes, or a ModelProto.

    ``device`` is what ``runtime.find_device`` takes; ``math`` is ``conv()``'s, for float32 data. With ``dtype`` all
    floating-point numbers of the net, inputs and results too, are of that type. ``batch_invariant`` and
    ``strict_nan`` are ``policy``'s; None is what is in force where the net is called.

    Raises InvalidArgument for what is no model, lies about its sizes or asks for what is not there: all missing
    operators at once, with their nodes' names. NoDevice where there is no device.
    """
    proto, storage = read(model)
    net = OnnxNet(proto, storage, device, math, dtype)
    net.promises = {"batch_invariant": batch_invariant, "strict_nan": strict_nan}
    return net


class Port(NamedTuple):
    """An input or output as the file declares it."""

    name: str
    dtype: np.dtype
    shape: tuple[int | str | None, ...] | None
    """The sizes: numbers, names of symbolic sizes, None for unnamed sizes; None instead of a tuple if the rank is
    unknown."""
    declared: Any = None
    """The type that the file declares, which ``dtype`` may replace."""

    def __str__(self) -> str:
        shape = (
            "any shape" if self.shape is None else f"[{', '.join('?' if s is None else str(s) for s in self.shape)}]"
        )
        return f"{self.name} {self.dtype.name} {shape}"


class _Form(NamedTuple):
    """The net for one set of shapes."""

    net: inference.InferenceNet | None
    outputs: list[Any]
    """For each output a constant array, or its index among the net's results."""


class OnnxNet:
    """``net(feeds)`` takes arrays by name and returns a dict of results; ``net(*arrays)`` takes them in the file's
    order and returns the result, or a tuple of several.

    Arrays are NumPy's, torch's, a device's (Tensor, pyopencl) or anything with DLPack; results are of the first one's
    kind. Calls may come from several threads.
    """

    promises: Mapping[str, bool | None] = {}
    """The promises that ``load`` was asked for; None leaves them to the policy in force."""

    def __init__(self, proto: Any, storage: Storage, device: Any, math: str, dtype: Any) -> None:
        proto = in_onnxs_words(proto)
        self.model, self.math = proto, math
        self.queue = runtime.queue(runtime.find_device(device))
        self.dtype = None if dtype is None else _float_type(dtype)
        self.opsets = {"" if standard(o.domain) else o.domain: o.version for o in proto.opset_import} or {"": 1}
        _check_opset(self.opsets)
        check_operators(proto, self.opsets)
        initializer_names = {tensor.name for tensor in proto.graph.initializer}
        self.inputs = [self._port(value) for value in proto.graph.input if value.name not in initializer_names]
        self.outputs = [_output(value) for value in proto.graph.output]
        self._constants = {each.name: self._converted(to_array(each, storage)) for each in proto.graph.initializer}
        for sparse in proto.graph.sparse_initializer:
            self._constants[sparse.values.name] = self._converted(dense(sparse))
        self._memory: dict[Any, Any] = {"lasting": {id(value) for value in self._constants.values()}}
        self._forms = Programs.of(self)
        self._latest: inference.InferenceNet | None = None
        self._by_value: set[str] = set()
        self._lock = threading.RLock()

    # --- inputs, outputs and constants of the file -------------------------------------------------------------------

    def _port(self, value: Any) -> Port:
        kind = value.type.tensor_type
        if value.type.WhichOneof("value") != "tensor_type":
            raise InvalidArgument(f"the input {value.name!r} is no tensor but a {value.type.WhichOneof('value')}")
        declared = dtype_of(kind.elem_type)
        return Port(value.name, self.computed(declared), _shape(kind), declared)

    def computed(self, dtype: np.dtype) -> np.dtype:
        """The type in which a type's numbers are computed."""
        floating = dtype.kind == "f" or dtype.name == "bfloat16"
        return self.dtype if self.dtype is not None and floating else dtype

    def _converted(self, array: np.ndarray) -> np.ndarray:
        dtype = self.computed(array.dtype) if supported(array.dtype) else array.dtype
        return array if dtype == array.dtype else array.astype(dtype)

    # --- calling the model -------------------------------------------------------------------------------------------

    def __call__(self, *given: Any) -> Any:
        """The results; see the class. Raises InvalidArgument for arrays that do not fit the file's inputs."""
        if len(given) == 1 and isinstance(given[0], Mapping):
            return self.run(given[0])
        if len(given) != len(self.inputs):
            raise InvalidArgument(f"the net takes {len(self.inputs)} arrays ({self._listed()}), got {len(given)}")
        results = self._run(list(given))
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Results by name for arrays by name; initialisers that the file lists among its inputs keep their values.

        Raises InvalidArgument for arrays that do not fit the file's inputs.
        """
        results = self._run(self._ordered(feeds))
        return dict(zip((port.name for port in self.outputs), results, strict=True))

    def _listed(self) -> str:
        return ", ".join(map(str, self.inputs)) or "none"

    def _ordered(self, feeds: Mapping[str, Any]) -> list[Any]:
        input_names = {port.name for port in self.inputs}
        missing, spare = input_names - feeds.keys(), feeds.keys() - input_names
        if missing or spare:
            faults = [f"lacks {', '.join(sorted(missing))}"] * bool(missing)
            faults += [f"has no input {', '.join(sorted(map(str, spare)))}"] * bool(spare)
            raise InvalidArgument(f"the call {' and '.join(faults)}; inputs are {self._listed()}")
        return [feeds[port.name] for port in self.inputs]

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        caller = Caller(inputs, self.queue)
        arrays = [caller.taken(value, port) for value, port in zip(inputs, self.inputs, strict=True)]
        for array, port in zip(arrays, self.inputs, strict=True):
            _check_shape(array, port)
        with self._lock:
            form, fed = self._form(arrays)
            results = [] if form.net is None else form.net(*fed)
            outputs = [results[place] if isinstance(place, int) else np.array(place) for place in form.outputs]
        return [caller.given(output) for output in outputs]

    def _form(self, arrays: Sequence[Any]) -> tuple[_Form, list[Any]]:
        """The form for these arrays, and those among them that it is fed."""
        with promising(self.promises) as chosen:
            return self._form_under(tuple(chosen.promises.values()), arrays)

    def _form_under(self, promises: tuple[bool, ...], arrays: Sequence[Any]) -> tuple[_Form, list[Any]]:
        while True:
            key: Any = tuple(self._key(array, port) for array, port in zip(arrays, self.inputs, strict=True))
            key = (key, promises)
            fed = [a for a, port in zip(arrays, self.inputs, strict=True) if port.name not in self._by_value]
            try:
                form = self._forms.get(key) or self._forms.make(key, lambda: self._build(arrays), None, self._nbytes)
            except NeedsValue as request:
                self._depend(request, arrays)
                continue
            self._latest = form.net
            return form, fed

    def _nbytes(self, form: _Form) -> int:
        """Return the approximate bytes of a form on the device, because weights may be packed for it."""
        weights = sum(value.nbytes for value in self._constants.values())
        return 0 if form.net is None else weights + form.net.nbytes

    def _key(self, array: Any, port: Port) -> Any:
        if port.name in self._by_value:
            host = array if isinstance(array, np.ndarray) else array.numpy()
            return (host.shape, host.tobytes())
        return tuple(array.shape)

    def _depend(self, request: NeedsValue, arrays: Sequence[Any]) -> None:
        """From now on forms depend on the values of these inputs: shapes, indices, numbers of repeats."""
        sizes = {port.name: int(np.prod(a.shape)) for port, a in zip(self.inputs, arrays, strict=True)}
        large = {name: sizes[name] for name in request.names if sizes[name] > _MOST_VALUES}
        if large or not request.names - self._by_value:
            culprits = (
                ", ".join(f"{name} ({n} elements)" for name, n in large.items()) or "values that the net computes"
            )
            raise InvalidArgument(f"{request.why} when it is built, and that depends on {culprits}")
        self._by_value |= request.names
        self._forms.drop()

    # --- building inference nets -------------------------------------------------------------------------------------

    def build(self, *shapes: Sequence[int]) -> inference.InferenceNet:
        """The inference form for inputs of ``shapes``, to look at: layers, solvers, memory.

        Raises InvalidArgument where the net computes nothing, or depends on its inputs' values.
        """
        with self._lock:
            form, _ = self._form(self._zeros(shapes))
        if form.net is None:
            raise InvalidArgument("every output of the net is a constant: nothing is computed")
        return form.net

    @property
    def latest(self) -> inference.InferenceNet | None:
        """The form that ran or was built last; None before, and where every output is a constant."""
        return self._latest

    def problems(self, *shapes: Sequence[int], layout: str | None = None) -> list[ConvProblem]:
        """The convolutions that the inference form asks for with inputs of ``shapes``, in order, in one layout or both
        after each other; nothing is planned or computed."""
        arrays = self._zeros(shapes)
        while True:
            try:
                net, fed, _ = self._traceable(arrays)
                shapes_and_dtypes = [a.shape for a, _ in fed], [p.dtype for _, p in fed]
                return inference.problems(
                    net, *shapes_and_dtypes[0], dtype=shapes_and_dtypes[1], queue=self.queue, layout=layout
                )
            except NeedsValue as request:
                self._depend(request, arrays)

    def _zeros(self, shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
        if len(shapes) != len(self.inputs):
            raise InvalidArgument(
                f"the net takes {len(self.inputs)} inputs ({self._listed()}), got {len(shapes)} shapes"
            )
        arrays = [np.zeros(tuple(shape), port.dtype) for shape, port in zip(shapes, self.inputs, strict=True)]
        for array, port in zip(arrays, self.inputs, strict=True):
            _check_shape(array, port)
        return arrays

    def _build(self, arrays: Sequence[Any]) -> _Form:
        net, fed, outputs = self._traceable(arrays)
        if not fed and not self.model.graph.node:
            net()
            return _Form(None, outputs)
        shapes, dtypes = [a.shape for a, _ in fed], [p.dtype for _, p in fed]
        read = {name for node in self.model.graph.node for name in node.input}
        if any(0 in a.shape and port.name in read for a, port in fed):
            return _Form(None, self._without_elements(net, shapes, dtypes, outputs))
        built = inference.build(net, *shapes, dtype=dtypes, queue=self.queue, recall=True)
        return _Form(built if any(isinstance(output, int) for output in outputs) else None, outputs)

    def _without_elements(self, net: Any, shapes: Any, dtypes: Any, outputs: list[Any]) -> list[np.ndarray]:
        """The outputs for inputs of which one has no elements: shapes alone, as nothing is computed."""
        traced: list[Any] = []

        def recording(*tensors: Tensor) -> list[Tensor]:
            traced[:] = net(*tensors)
            return traced

        inference.problems(recording, *shapes, dtype=dtypes, queue=self.queue)
        values = [traced[output] if isinstance(output, int) else output for output in outputs]
        for value, port, output in zip(values, self.outputs, outputs, strict=True):
            if isinstance(output, int) and 0 not in value.shape:
                raise InvalidArgument(
                    f"an input has no elements, and the output {port.name!r} would have {value.shape}"
                )
        return [np.empty(value.shape, value.dtype) if 0 in value.shape else value for value in values]

    def _traceable(self, arrays: Sequence[Any]) -> tuple[Callable[..., Any], list[tuple[Any, Port]], list[Any]]:
        """``(net of tensors, what it is fed, outputs)``: the outputs' list is filled when the net is called."""
        fed = [(a, p) for a, p in zip(arrays, self.inputs, strict=True) if p.name not in self._by_value]
        known_inputs = {
            port.name: array if isinstance(array, np.ndarray) else array.numpy()
            for array, port in zip(arrays, self.inputs, strict=True)
            if port.name in self._by_value
        }
        output_places: list[Any] = []

        def net(*tensors: Tensor) -> list[Tensor]:
            output_places.clear()
            scope = Scope(self.opsets)
            for name, value in (self._constants | known_inputs).items():
                scope.values[name] = value
                scope.sources[name] = frozenset({name} & known_inputs.keys())
            for tensor, (_, port) in zip(tensors, fed, strict=True):
                scope.values[port.name], scope.sources[port.name] = tensor, frozenset({port.name})
            interpreter = Interpreter(self.model, self.queue, self.math, self._memory)
            interpreter.computed = self.computed
            interpreter.run(self.model.graph.node, scope)
            results: list[Tensor] = []
            for port in self.outputs:
                value, _ = scope.find(port.name)
                if isinstance(value, Tensor):
                    output_places.append(len(results))
                    results.append(value)
                else:
                    output_places.append(np.asarray(value))
            return results

        return net, fed, output_places


def _check_opset(opsets: Mapping[str, int]) -> None:
    newest = onnx_package().defs.onnx_opset_version()
    if opsets.get("", 1) > newest:
        raise InvalidArgument(
            f"the model needs operator set {opsets['']}, the onnx package knows those up to {newest}: update it"
        )


def _float_type(dtype: Any) -> np.dtype:
    float_type = numpy_dtype(dtype)
    if float_type.name not in ("float16", "bfloat16", "float32", "float64"):
        raise InvalidArgument(f"dtype must be float16, bfloat16, float32 or float64, got {float_type.name}")
    return float_type


def _output(value: Any) -> Port:
    kind = value.type.tensor_type
    try:
        dtype = dtype_of(kind.elem_type)
    except InvalidArgument:
        dtype = np.dtype(object)
    return Port(value.name, dtype, _shape(kind))


def _shape(kind: Any) -> tuple[int | str | None, ...] | None:
    if not kind.HasField("shape"):
        return None
    sizes = (d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim)
    return tuple(None if isinstance(size, int) and size < 0 else size for size in sizes)


def _check_shape(array: Any, port: Port) -> None:
    """Rank and fixed sizes, but for the first: a net written for one picture may take more."""
    if port.shape is None:
        return
    shape = tuple(array.shape)
    fits = len(shape) == len(port.shape) and all(
        not isinstance(want, int) or want == have or axis == 0
        for axis, (want, have) in enumerate(zip(port.shape, shape, strict=False))
    )
    if not fits:
        raise InvalidArgument(f"the net takes {port}, got shape {shape}")
