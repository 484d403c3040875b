"""A problem as oneDNN's primitive: descriptors of its tensors, the layouts that are chosen, the implementation's name.

In oneDNN dilations count from 0, groups are a separate axis of the weights, and sums, activations and who allocates
the scratch memory are attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_int64, c_void_p
from typing import Any

from convdispatch.api import ConvDispatchError, ConvProblem, TensorLayout, kernel_erratum
from convdispatch.api.activations import onednn_eltwise

from .library import library

DTYPES = {"float16": 1, "bfloat16": 2, "float32": 3}
"""Numbers of ``dnnl_data_type_t``."""
_TAG_ANY = 1  # dnnl_format_tag_any: oneDNN chooses the layout
_USER_SCRATCHPAD = 1  # dnnl_scratchpad_mode_user: the caller passes the scratchpad
_DIRECT = 1  # dnnl_convolution_direct: no Winograd
_IMPLEMENTATION = 8  # dnnl_query_impl_info_str: the name of the implementation
_BLOCKED = {"blocked": (16, {3: 56, 4: 78, 5: 121}), "blocked8": (8, {3: 69, 4: 102, 5: 142})}
"""Layout: (channels per block, oneDNN's format tags ``dnnl_aBc16b`` or ``dnnl_aBc8b`` and their like by tensor
rank)."""
_INFERENCE = 96  # dnnl_forward_inference, a dnnl_prop_kind_t
_TRAINING = 64  # dnnl_forward_training, a dnnl_prop_kind_t
_QUERY = {"x": 129, "dx": 130, "w": 131, "dw": 132, "y": 133, "dy": 134, "scratch": 136}


class Descriptor:
    """An owned oneDNN memory descriptor: a tensor's layout; ``size`` is the tensor's size in bytes."""

    def __init__(self, handle: c_void_p) -> None:
        loaded = library().handle
        # The function is stored: when Python exits, module names may be gone.
        self.handle, self._destroy = handle, loaded.dnnl_memory_desc_destroy
        self.size: int = loaded.dnnl_memory_desc_get_size(handle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descriptor) and bool(
            library().handle.dnnl_memory_desc_equal(self.handle, other.handle)
        )

    __hash__ = None  # type: ignore[assignment]

    def __del__(self) -> None:
        self._destroy(self.handle)

    @classmethod
    def strided(cls, dims: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Descriptor:
        """The descriptor of a tensor with strides in elements."""
        handle = library().make(
            "memory_desc_create_with_strides", len(dims), _longs(dims), DTYPES[dtype], _longs(strides)
        )
        return cls(handle)

    @classmethod
    def tagged(cls, dims: tuple[int, ...], dtype: str, tag: int) -> Descriptor:
        """A descriptor by oneDNN's format tag; tag 1 leaves the layout to oneDNN."""
        return cls(library().make("memory_desc_create_with_tag", len(dims), _longs(dims), DTYPES[dtype], tag))


def _longs(values: Any) -> Any:
    return (c_int64 * len(values))(*values)


def dims_of(problem: ConvProblem, name: str, layout: str | None = None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(sizes, strides in elements) of x, w or y in oneDNN's order of axes: groups first, channels before space."""
    field, relaid = {"x": "i", "w": "k", "y": "o"}[name], problem.replace(layout=layout) if layout else problem
    tensor, axes = TensorLayout.of(relaid, name), problem.axes
    channels = problem.oc if name == "y" else problem.ic // (problem.g if name == "w" else 1)
    sizes = (problem.oc if name == "w" else problem.mb, channels, *(getattr(problem, field + axis) for axis in axes))
    strides = (tensor.image, tensor.channel, *tensor.axes[-len(axes) :])
    if name == "w" and problem.g > 1:
        return (problem.g, problem.oc // problem.g, *sizes[1:]), (strides[0] * (problem.oc // problem.g), *strides)
    return sizes, strides


class Convolution:
    """The primitive descriptor of one problem in one configuration, with the layouts it chose.

    ``config["data"]`` is the layout of x and y: ``any`` leaves it to oneDNN, ``plain`` is the caller's layout, and
    ``nhwc``, ``blocked`` and ``blocked8`` (16 and 8 channels together) request one. oneDNN always chooses the layout of
    weights. Implementations that errata call wrong are skipped. Raises OneDNNError if no implementation is left.
    """

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.lib = problem, library()
        self.user = {name: Descriptor.strided(*dims_of(problem, name), problem.dtype) for name in "xwy"}
        self.handle = self._hint = c_void_p()
        wanted = {name: self._requested_layout(name, config["data"]) for name in "xwy"}
        attributes = self._attributes()
        direction = {"fwd": ("x", "w", "y"), "bwd_data": ("dx", "w", "dy"), "bwd_weights": ("x", "dw", "dy")}
        self.roles = dict(zip("xwy", direction[problem.direction], strict=True))
        try:
            self.handle = self._create(wanted, attributes)
            while kernel_erratum("onednn.gradient", problem, self._kernel()):
                self.lib.call("primitive_desc_next_impl", self.handle)
        finally:
            self.lib.call("primitive_attr_destroy", attributes)
            if self._hint:  # the next implementation needs the forward hint: destroy it when one is chosen
                self.lib.call("primitive_desc_destroy", self._hint)
        self.chosen = {name: self._descriptor_of(role) for name, role in self.roles.items()}
        self.scratch = self._descriptor_of("scratch")

    def _kernel(self) -> str:
        """The current implementation as errata name it: with the suffix ``channels-last`` if x and y are NHWC, by the
        caller's choice or by oneDNN's."""
        channels_last = all(
            self._descriptor_of(self.roles[name])
            == Descriptor.strided(*dims_of(self.problem, name, "nhwc"), self.problem.dtype)
            for name in "xy"
        )
        return f"{self.implementation} channels-last" if channels_last else self.implementation

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.lib.call("primitive_desc_destroy", self.handle)

    @property
    def implementation(self) -> str:
        """oneDNN's name of the implementation, such as ``jit:avx512_core``."""
        return self._implementation_name(self.handle)

    def primitive(self) -> c_void_p:
        """Create the primitive; the caller destroys it. Raises ConvDispatchError if oneDNN returns a different one.

        oneDNN's primitive cache confuses layouts that differ only in strides of axes of length 1, and returned
        primitives of other descriptors: wrong results, or a crash. ``Library`` sets its capacity to 0.
        """
        created, descriptor = self.lib.make("primitive_create", self.handle), c_void_p()
        self.lib.call("primitive_get_primitive_desc", created, byref(descriptor))
        name, scratch_bytes = self._implementation_name(descriptor), self._scratch_bytes(descriptor)
        if (name, scratch_bytes) == (self.implementation, self.scratch.size):
            return created
        self.lib.call("primitive_destroy", created)
        raise ConvDispatchError(
            f"oneDNN: it describes {self.implementation}, {self.scratch.size} bytes, and makes {name}, {scratch_bytes}"
        )

    def _implementation_name(self, descriptor: c_void_p) -> str:
        text = c_char_p()
        self.lib.call("primitive_desc_query", descriptor, _IMPLEMENTATION, 0, byref(text))
        return (text.value or b"").decode()

    def _scratch_bytes(self, descriptor: c_void_p) -> int:
        scratch = self.lib.handle.dnnl_primitive_desc_query_md(descriptor, _QUERY["scratch"], 0)
        return int(self.lib.handle.dnnl_memory_desc_get_size(scratch))

    def same(self, other: Convolution) -> bool:
        """Whether ``other`` runs the same implementation on the same layouts."""
        return self.implementation == other.implementation and self.chosen == other.chosen

    def _requested_layout(self, name: str, data: str) -> Descriptor:
        sizes, _ = dims_of(self.problem, name)
        dtype = self.problem.dtype
        if name == "w" or data == "any":
            return Descriptor.tagged(sizes, dtype, _TAG_ANY)
        if data in _BLOCKED:
            block, tags = _BLOCKED[data]
            channels = self.problem.ic if name == "x" else self.problem.oc
            if channels >= block:
                return Descriptor.tagged(sizes, dtype, tags[len(sizes)])
            return Descriptor.strided(*dims_of(self.problem, name, "nchw"), dtype)
        return Descriptor.strided(*dims_of(self.problem, name, None if data == "plain" else data), dtype)

    def _attributes(self) -> c_void_p:
        lib, problem = self.lib, self.problem
        attributes = lib.make("primitive_attr_create")
        lib.call("primitive_attr_set_scratchpad_mode", attributes, _USER_SCRATCHPAD)
        adds = problem.direction == "fwd" and (problem.residual or problem.accumulate)
        if adds or problem.activation:
            post_ops = lib.make("post_ops_create")
            if adds:
                lib.call("post_ops_append_sum", post_ops, 1.0, 0, 0)
            if problem.activation and (eltwise := onednn_eltwise(problem.activation)):
                kind, _, numbers = eltwise
                lib.call("post_ops_append_eltwise", post_ops, kind, *(*numbers, 0.0, 0.0)[:2])
            lib.call("primitive_attr_set_post_ops", attributes, post_ops)
            lib.call("post_ops_destroy", post_ops)
        return attributes

    def _create(self, wanted: dict[str, Descriptor], attributes: c_void_p) -> c_void_p:
        lib, problem = self.lib, self.problem
        x, w, y = (wanted[name].handle for name in "xwy")
        axes = problem.axes
        geometry = (
            _longs([getattr(problem, "s" + axis) for axis in axes]),
            _longs([getattr(problem, "d" + axis) - 1 for axis in axes]),
            _longs([getattr(problem, "p" + axis) for axis in axes]),
            _longs([getattr(problem, f"p{axis}_r") for axis in axes]),
        )
        bias = Descriptor.tagged((problem.oc,), problem.dtype, _TAG_ANY) if problem.bias else None
        create, forward = "convolution_{}_primitive_desc_create", (lib.engine, _INFERENCE, _DIRECT)
        if problem.direction == "fwd":
            return lib.make(create.format("forward"), *forward, x, w, bias and bias.handle, y, *geometry, attributes)
        any_layout = [Descriptor.tagged(dims_of(problem, name)[0], problem.dtype, _TAG_ANY) for name in "xwy"]
        any_x, any_w, any_y = (descriptor.handle for descriptor in any_layout)
        forward = (lib.engine, _TRAINING, _DIRECT)
        self._hint = lib.make(create.format("forward"), *forward, any_x, any_w, None, any_y, *geometry, None)
        tensors = (x, w, y) if problem.direction == "bwd_data" else (x, w, None, y)
        backward = create.format("backward_" + problem.direction.removeprefix("bwd_"))
        return lib.make(backward, lib.engine, _DIRECT, *tensors, *geometry, self._hint, attributes)

    def _descriptor_of(self, role: str) -> Descriptor:
        descriptor = self.lib.handle.dnnl_primitive_desc_query_md(self.handle, _QUERY[role], 0)
        return Descriptor(self.lib.make("memory_desc_clone", descriptor))


@functools.lru_cache(maxsize=1024)
def shared(problem: ConvProblem) -> ConvProblem:
    """The problem without the fields that do not affect oneDNN's choice, so that more problems share it."""
    return problem.replace(constant_weights=False, math="float32")


@functools.lru_cache(maxsize=64)
def described(problem: ConvProblem, data: str) -> Convolution:
    """The cached primitive descriptor of a ``shared`` problem, which refusal, workspace and plan all use."""
    return Convolution(problem, {"data": data})
