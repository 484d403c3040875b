"""onnxruntime's ways to run a model: ``InferenceSession``, so that a script changes its import alone.

``import convdispatch.onnx as onnxruntime``. What is the same: sessions, their inputs and outputs, feeds and results,
providers, options. What differs: all outputs are computed, whichever are asked for, and there are no bindings.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

from .. import runtime
from ..api.errors import ConvDispatchWarning, InvalidArgument, NoDevice
from ..api.policy import PROMISES
from .model import OnnxNet, Port, load

_TYPES = {"float32": "float", "float64": "double", "object": "string"}
"""ONNX's names of dtypes that differ from NumPy's names."""


class NodeArg(NamedTuple):
    """An input or output as onnxruntime describes it."""

    name: str
    type: str
    """The type in ONNX's notation, such as ``"tensor(float)"``."""
    shape: list[int | str | None]
    """The sizes: numbers, names of symbolic axes, None for unnamed axes; also empty if the file declares no shape."""


class ModelMetadata(NamedTuple):
    """The model's metadata: producer, domain, version, description, graph name and custom entries."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class InferenceSession:
    """A model file made ready.

    ``path_or_bytes`` is a file's path, its bytes, or a ModelProto. ``providers`` names devices in the order in which
    they are tried, as onnxruntime's: ``"CUDAExecutionProvider"`` an NVIDIA device, ``"CPUExecutionProvider"`` the
    processor; None is the default device. Calls may come from several threads.

    Raises InvalidArgument for a file that is no model or asks for operators that are not here (all of them, with their
    nodes), and where no provider is here.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | PathLike[str],
        sess_options: SessionOptions | Sequence[Any] | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **_: Any,
    ) -> None:
        # The call is InferenceSession(model, providers), without session options.
        if isinstance(sess_options, list | tuple):
            sess_options, providers = None, sess_options
        self._options = sess_options or SessionOptions()
        # onnxruntime's own SessionOptions are accepted too, but have no ``warn``.
        if isinstance(self._options, SessionOptions):
            self._options.warn()
        self._provider, self._provider_options, device = chosen_provider(providers, provider_options)
        # Options of onnxruntime's own class have no such attributes.
        promises = {name: getattr(self._options, name, None) for name in PROMISES}
        self.net: OnnxNet = load(path_or_bytes, device=device, **promises)
        """The net behind the session: forms, layers, times."""

    # --- what the model file says ------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """Return the model's inputs, which ``run`` takes."""
        return [self._described(port) for port in self.net.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the model's outputs, which ``run`` returns."""
        return [self._described(port) for port in self.net.outputs]

    def _described(self, port: Port) -> NodeArg:
        sizes = getattr(self._options, "free_dimensions", {})
        shape = [sizes.get(each, each) if isinstance(each, str) else each for each in port.shape or ()]
        return NodeArg(port.name, f"tensor({_TYPES.get(port.dtype.name, port.dtype.name)})", shape)

    def get_modelmeta(self) -> ModelMetadata:
        """The model's metadata: producer, domain, version, description, graph name and custom entries."""
        proto = self.net.model
        return ModelMetadata(
            proto.producer_name, proto.graph.name, proto.domain, proto.doc_string, proto.graph.doc_string,
            proto.model_version, {each.key: each.value for each in proto.metadata_props},
        )  # fmt: skip

    # --- execution providers -----------------------------------------------------------------------------------------

    def get_providers(self) -> list[str]:
        """The provider that runs everything."""
        return [self._provider]

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """Return the options of the execution provider."""
        return {self._provider: dict(self._provider_options)}

    def get_session_options(self) -> SessionOptions:
        """Return the session options with which the session was made."""
        return self._options

    def disable_fallback(self) -> None:
        """Nothing to do: no other engine ever takes over."""

    enable_fallback = disable_fallback

    # --- running the model -------------------------------------------------------------------------------------------

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """The results in the order of ``output_names``, or all for None or an empty list.

        Feeds are NumPy arrays, lists, torch tensors or anything with DLPack; results are of the first one's kind, and
        lie where it does. Any batch that the file allows. Raises InvalidArgument for names, shapes and types that do
        not fit.
        """
        names = self._names(output_names)
        if not isinstance(input_feed, Mapping):
            raise InvalidArgument(f"run takes a dict of arrays by name, got {type(input_feed).__name__}")
        results = self.net.run(input_feed)
        return [results[name] for name in names]

    def _names(self, requested: Sequence[str] | None) -> list[str]:
        output_names = [port.name for port in self.net.outputs]
        unknown = [name for name in requested or () if name not in output_names]
        if unknown:
            raise InvalidArgument(
                f"there is no output {', '.join(map(repr, unknown))}; outputs are {', '.join(output_names)}"
            )
        return list(requested) if requested else output_names


_DEVICES = {"CUDAExecutionProvider": "nvidia", "CPUExecutionProvider": "cpu"}
"""The argument of ``runtime.find_device`` for each execution provider, the fastest provider first."""


class GraphOptimizationLevel(enum.IntEnum):
    """onnxruntime's; a net is optimised wholly under each of them."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """onnxruntime's; whether branches overlap is measured when a net is built."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class _Entries:
    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _add(self, key: str, value: str) -> None:
        """Keep an entry."""
        self._entries[key] = value

    def _get(self, key: str) -> str:
        """Return an entry that was added. Raises InvalidArgument for a missing one."""
        if key not in self._entries:
            raise InvalidArgument(f"there is no entry {key!r}; there are: {', '.join(self._entries) or 'none'}")
        return self._entries[key]


class SessionOptions(_Entries):
    """onnxruntime's attributes, and two promises of ``policy``. Those that say how its engine works (threads, arenas,
    optimisation, logs) are kept and change nothing here; one that asks for a file or for another result warns when a
    session is made."""

    def __init__(self) -> None:
        super().__init__()
        self.graph_optimization_level: Any = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode: Any = ExecutionMode.ORT_SEQUENTIAL
        self.intra_op_num_threads = self.inter_op_num_threads = 0
        self.enable_cpu_mem_arena = self.enable_mem_pattern = self.enable_mem_reuse = True
        self.use_deterministic_compute, self.use_per_session_threads = False, True
        self.batch_invariant: bool | None = None
        self.strict_nan: bool | None = None
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.enable_profiling, self.profile_file_prefix, self.optimized_model_filepath = False, "", ""
        self.free_dimensions: dict[str, int] = {}

    add_session_config_entry, get_session_config_entry = _Entries._add, _Entries._get

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """The size of a symbolic axis, which ``get_inputs`` then tells; arrays decide in any case."""
        self.free_dimensions[name] = int(value)

    def register_custom_ops_library(self, path: str) -> None:
        """Raises InvalidArgument: kernels for onnxruntime cannot run here."""
        raise InvalidArgument(f"{path}: kernels for onnxruntime cannot run here; a model's own functions do")

    def warn(self) -> None:
        """Say what was asked for and is not done."""
        requested = {name: getattr(self, name) for name in ("enable_profiling", "optimized_model_filepath")}
        for name, value in requested.items():
            if value:
                hint = "; for layers' times: convdispatch bench MODEL" if name == "enable_profiling" else ""
                warnings.warn(f"SessionOptions.{name} does nothing here{hint}", ConvDispatchWarning, stacklevel=4)


class RunOptions(_Entries):
    """onnxruntime's attributes; they change nothing here."""

    def __init__(self) -> None:
        super().__init__()
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.only_execute_path_to_fetches = self.terminate = False

    add_run_config_entry, get_run_config_entry = _Entries._add, _Entries._get


def get_available_providers() -> list[str]:
    """Names of those of onnxruntime's providers for whose devices there is an OpenCL device that works."""
    return [name for name, device in _DEVICES.items() if _found(device) is not None]


def get_device() -> str:
    """``"GPU"`` or ``"CPU"``: what a session without providers runs on."""
    return runtime.device_info(runtime.find_device(None)).type.upper()


def chosen_provider(
    providers: Sequence[Any] | None, options: Sequence[Mapping[str, Any]] | None = None
) -> tuple[str, dict[str, Any], Any]:
    """``(provider, its options, device)``: the first of ``providers`` that is here, or the default device's for None.

    A provider is a name, or a name with a mapping, of which ``device_id`` counts the devices of its kind. Raises
    InvalidArgument where none of them is here, NoDevice without a device.
    """
    if not providers:
        device = runtime.find_device(None)
        kind = runtime.device_info(device).type
        return ("CPUExecutionProvider" if kind == "cpu" else "CUDAExecutionProvider"), {}, device
    listed = [(each, {}) if isinstance(each, str) else (each[0], dict(each[1])) for each in providers]
    if options is not None:
        if len(options) != len(listed):
            raise InvalidArgument(f"there are {len(listed)} providers and {len(options)} provider_options")
        listed = [(name, own_options | dict(more)) for (name, own_options), more in zip(listed, options, strict=True)]
    for name, own_options in listed:
        chosen_device = _found(_DEVICES[name], int(own_options.get("device_id", 0))) if name in _DEVICES else None
        if chosen_device is not None:
            return name, own_options, chosen_device
    available = ", ".join(get_available_providers()) or "none"
    raise InvalidArgument(
        f"none of the providers {', '.join(name for name, _ in listed)} is here; here are: {available}"
    )


def _found(kind: str, number: int = 0) -> Any:
    """The device of a kind with a number; None where there is none."""
    try:
        first_device = runtime.find_device(kind)
    except NoDevice:
        return None
    if number == 0:
        return first_device
    same_kind = [
        each for each in runtime.devices() if each.platform == first_device.platform and each.type == first_device.type
    ]
    return same_kind[number] if number < len(same_kind) else None
