"""What a script for onnxruntime names before it makes a session: options, providers, their devices."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .. import runtime
from ..api.errors import ConvDispatchWarning, InvalidArgument, NoDevice

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
        self._entries[key] = value

    def _get(self, key: str) -> str:
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

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry."""
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry that was added. Raises InvalidArgument for a missing one."""
        return self._get(key)

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
                hint = "; for layers' times: convdispatch run MODEL --profile" if name == "enable_profiling" else ""
                warnings.warn(f"SessionOptions.{name} does nothing here{hint}", ConvDispatchWarning, stacklevel=4)


class RunOptions(_Entries):
    """onnxruntime's attributes; they change nothing here."""

    def __init__(self) -> None:
        super().__init__()
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.only_execute_path_to_fetches = self.terminate = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry."""
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Return an entry that was added. Raises InvalidArgument for a missing one."""
        return self._get(key)


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
