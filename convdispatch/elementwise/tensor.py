"""Tensor: a strided view of OpenCL memory in NumPy's conventions.

It carries the same attributes as ``pyopencl.array.Array`` (``base_data``, ``offset``, ``shape``, ``strides``,
``dtype``, ``queue``), so ``conv()`` treats both alike, and nothing else, so that making one costs about a microsecond.
Work on a tensor is enqueued on its queue, which must be in order; only ``numpy()`` waits.

Here are memory and views. What computes (arithmetic, ``astype``) is attached by ``operators``, which stands on the
formulas that stand on this.
"""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..calls.arrays import interchange
from ..calls.arrays.operands import contiguous_strides, is_contiguous
from ..device import runtime
from ..device.commands.queues import commands_of
from ..device.commands.recording import Slot
from ..device.programs.strided_copy import copy_strided


class Tensor:
    """``shape`` elements of ``dtype`` in ``base_data``, the first at byte ``offset``, ``strides`` in bytes.

    The constructor trusts its arguments; ``from_numpy`` and ``empty`` make tensors with memory of their own.
    """

    __slots__ = ("__weakref__", "base_data", "dtype", "mark", "offset", "queue", "shape", "strides")
    # The priority makes NumPy's numbers leave the operators to this class.
    __array_priority__ = 1000
    __array_ufunc__ = None

    def __init__(
        self,
        base_data: cl.MemoryObject,
        shape: tuple[int, ...],
        dtype: np.dtype,
        queue: cl.CommandQueue,
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> None:
        self.base_data = base_data
        self.shape = shape
        self.dtype = dtype
        self.queue = queue
        self.strides = contiguous_strides(shape, dtype.itemsize) if strides is None else strides
        self.offset = offset
        self.mark = 0  # The mark belongs to the tape of automatic differentiation (tape.py).

    @classmethod
    def empty(cls, shape: Sequence[int], dtype: Any = np.float32, queue: cl.CommandQueue | None = None) -> Tensor:
        """New memory from the queue's pool (default: this thread's queue on the default device), values undefined."""
        queue = queue or runtime.queue()
        shape, dtype = tuple(map(operator.index, shape)), np.dtype(dtype)
        if shape and min(shape) < 0:
            raise InvalidArgument(f"a shape holds sizes of 0 or more, got {shape}")
        # The result is a Tensor also if the method is called on Parameter, because a result is no parameter.
        return Tensor(runtime.allocate(queue, math.prod(shape) * dtype.itemsize), shape, dtype, queue)

    @classmethod
    def from_numpy(cls, array: Any, queue: cl.CommandQueue | None = None) -> Tensor:
        """Return a copy of ``array`` (anything NumPy reads) on the queue's device; the caller may change the array
        afterwards."""
        array = np.asarray(array, order="C")
        if array.dtype.hasobject:
            raise InvalidArgument(f"a tensor holds numbers, got an array of {array.dtype}")
        tensor = cls.empty(array.shape, array.dtype, queue)
        tensor._must_be_real("from_numpy()")
        if array.size:
            commands_of(tensor.queue).write(tensor.base_data, array)
        return tensor

    def _must_be_real(self, what: str) -> None:
        if type(self.base_data) is Slot:
            raise InvalidArgument(f"{what} copies between host and device, which a captured function cannot replay: "
                                  "take arrays as its arguments, return tensors, and copy outside")  # fmt: skip

    @classmethod
    def from_dlpack(cls, source: Any, queue: cl.CommandQueue | None = None) -> Tensor:
        """A tensor over another library's memory (anything with ``__dlpack__``, NumPy's arrays too); see interop."""
        return interchange.from_dlpack(Tensor, source, queue)

    def __dlpack__(self, *, stream: Any = None, copy: bool | None = None, **_: Any) -> Any:
        """A DLPack capsule over this memory, complete when it is returned; ``torch.from_dlpack(tensor)``."""
        if copy:
            raise BufferError("a DLPack export is a view: take .copy() first")
        return interchange.dlpack(self, stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return interchange.dlpack_device(self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return interchange.array_interface(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return interchange.array_interface(self, interchange.CUDA)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The values for NumPy where it cannot view the memory, as on a GPU: a copy on the host.

        Without it NumPy would take the tensor for a sequence, and make an array of objects element by element.
        """
        if copy is False:
            raise ValueError("the memory is not the host's: NumPy's array of it is a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def numpy(self) -> np.ndarray:
        """The values as a new array; waits until the queue has computed them."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        self._must_be_real("numpy()")
        # One transfer copies all bytes between the lowest and the highest element; the host array is a view of them.
        reach = [(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        span = np.empty(high - low + self.dtype.itemsize, np.uint8)
        commands_of(self.queue).read(self.base_data, span, self.offset + low)
        view = np.ndarray(self.shape, self.dtype, span, -low, self.strides)
        return view if self.contiguous else view.copy()

    def write(self, array: Any) -> Tensor:
        """Replace the values by those of a NumPy array of this shape, cast to this dtype; returns self."""
        self._must_be_real("write()")
        array = np.ascontiguousarray(array, self.dtype)
        if array.shape != self.shape and not (array.ndim == 1 and not self.shape):
            raise InvalidArgument(f"write needs an array of shape {self.shape}, got {array.shape}")
        if array.size and self.contiguous:
            commands_of(self.queue).write(self.base_data, array, self.offset)
        elif array.size:
            self._assign(Tensor.from_numpy(array, self.queue))
        return self

    # --- properties --------------------------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, whatever the view spans."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def context(self) -> cl.Context:
        """The queue's context."""
        return self.queue.context

    @property
    def contiguous(self) -> bool:
        """Whether the elements are contiguous in C order."""
        return is_contiguous(self.shape, self.strides, self.dtype.itemsize)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Tensor({self.shape}, {self.dtype}, {self.queue.device.name.strip()!r})"

    # --- views, which share the tensor's memory ----------------------------------------------------------------------

    def _view(self, shape: tuple[int, ...], strides: tuple[int, ...] | None, offset: int, back: Any = None) -> Tensor:
        """Return a view; ``back`` turns the view's gradient into this tensor's, for the active tape."""
        view = Tensor(self.base_data, shape, self.dtype, self.queue, strides, offset)
        if back is not None and (self.mark or type(self) is Parameter):
            tape = current_tape()
            if tape is not None and tape.tracks(self):
                tape.record(view, (self,), lambda dy: (back(dy),))
        return view

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """Return the same elements in another shape; one size may be -1. Raises InvalidArgument if that needs a
        copy."""
        sizes = _sizes(shape)
        known = math.prod(size for size in sizes if size != -1)
        if sizes.count(-1) == 1 and known and self.size % known == 0:
            sizes = tuple(self.size // known if size == -1 else size for size in sizes)
        if -1 in sizes or math.prod(sizes) != self.size:
            raise InvalidArgument(f"cannot view shape {self.shape} as {_sizes(shape)}: the number of elements differs")
        if not self.contiguous:
            raise InvalidArgument(f"reshape needs contiguous elements, got strides {self.strides}; take .copy() first")
        own = self.shape
        return self._view(sizes, None, self.offset, lambda dy: (dy if dy.contiguous else dy.copy()).reshape(own))

    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """The axes in the given order; reversed when none is given."""
        order = _sizes(axes) if axes else tuple(reversed(range(self.ndim)))
        positive = tuple(axis + self.ndim if axis < 0 else axis for axis in order)
        if sorted(positive) != list(range(self.ndim)):
            raise InvalidArgument(f"transpose needs each of {self.ndim} axes once, got {order}")
        shape, strides = tuple(self.shape[a] for a in positive), tuple(self.strides[a] for a in positive)
        inverse = tuple(sorted(range(self.ndim), key=positive.__getitem__))
        return self._view(shape, strides, self.offset, lambda dy: dy.transpose(inverse))

    def expand(self, *shape: int | Sequence[int]) -> Tensor:
        """Broadcast to ``shape``: new axes in front, and axes of size 1, repeat by a stride of 0."""
        sizes = _sizes(shape)
        extra = len(sizes) - self.ndim
        old = (1,) * extra + self.shape
        if extra < 0 or any(have not in (1, want) for have, want in zip(old, sizes, strict=True)):
            raise InvalidArgument(f"cannot expand shape {self.shape} to {sizes}")
        steps = (0,) * extra + self.strides
        repeated = (0 if have != want else step for have, want, step in zip(old, sizes, steps, strict=True))
        return self._view(sizes, tuple(repeated), self.offset, functools.partial(self._sum_to, shape=self.shape))

    def __getitem__(self, key: Any) -> Tensor:
        """Integers, slices, ``...`` and None, as NumPy's basic indexing."""
        keys = key if isinstance(key, tuple) else (key,)
        named = sum(k is not None and k is not Ellipsis for k in keys)
        dots = [i for i, k in enumerate(keys) if k is Ellipsis]
        if named > self.ndim or len(dots) > 1:
            raise InvalidArgument(f"too many indices for shape {self.shape}: {key!r}")
        fill = (slice(None),) * (self.ndim - named)
        keys = keys[: dots[0]] + fill + keys[dots[0] + 1 :] if dots else keys + fill
        shape, strides, offset, axis = [], [], self.offset, 0
        for k in keys:
            if k is None:
                shape.append(1)
                strides.append(0)
                continue
            size, stride = self.shape[axis], self.strides[axis]
            if isinstance(k, slice):
                start, stop, step = k.indices(size)
                count = len(range(start, stop, step))
                shape.append(count)
                strides.append(stride * step)
                offset += start * stride if count else 0
            else:
                offset += _index(k, size, axis) * stride
            axis += 1
        return self._view(
            tuple(shape), tuple(strides), offset, functools.partial(self._scatter, shape=self.shape, key=key)
        )

    def copy(self) -> Tensor:
        """The elements in new, contiguous memory; asynchronous."""
        result = Tensor.empty(self.shape, self.dtype, self.queue)
        if self.mark and (tape := current_tape()) is not None and tape.tracks(self):
            tape.record(result, (self,), lambda dy: (dy,))
        if not self.size:
            return result
        if self.contiguous:
            runtime.copy(self.queue, result.base_data, self.base_data, self.nbytes, source_offset=self.offset)
        else:
            copy_strided(
                self.queue, self.base_data, self.offset, self.shape, self.strides, self.dtype.itemsize, result.base_data
            )
        return result


class Parameter(Tensor):
    """A tensor that training changes: ``grad`` holds its gradient once a tape has computed one, else None."""

    __slots__ = ("grad",)

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.base_data, tensor.shape, tensor.dtype, tensor.queue, tensor.strides, tensor.offset)
        self.grad: Tensor | None = None


def _sizes(given: tuple[Any, ...]) -> tuple[int, ...]:
    sizes = given[0] if len(given) == 1 and not hasattr(given[0], "__index__") else given
    try:
        return tuple(operator.index(size) for size in sizes)
    except TypeError:
        raise InvalidArgument(f"expected integers, got {sizes!r}") from None


def _index(k: Any, size: int, axis: int) -> int:
    if isinstance(k, bool | np.bool_) or not hasattr(k, "__index__"):
        raise InvalidArgument(f"an index is an integer, a slice, ... or None, got {k!r}")
    number = operator.index(k)
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of range for axis {axis} of size {size}")
    return number + size if number < 0 else number


_threads = threading.local()


def current_tape() -> Any:
    """The tape in force in this thread, or None."""
    return getattr(_threads, "tape", None)


def put_in_force(tape: Any) -> Any:
    """Make ``tape``, or None, the one in force; returns the one that was."""
    outer = current_tape()
    _threads.tape = tape
    return outer


class paused:  # noqa: N801 (a context manager, used like a function)
    """Inside the block no tape is in force: what an operation does within itself is not noted."""

    __slots__ = ("_tape",)

    def __enter__(self) -> None:
        self._tape = put_in_force(None)

    def __exit__(self, *error: object) -> None:
        put_in_force(self._tape)
