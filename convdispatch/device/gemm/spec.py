"""The specification of a matrix product: the operands' sizes and strides, and the epilogue after the sum."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ...api.activations import parse_activation
from ...api.dtypes import DTYPES
from ...api.errors import InvalidArgument
from ...api.problem import ConvProblem


@dataclass(frozen=True)
class Axis:
    """The address of index i of an axis: ``(i % inner) * stride + (i // inner) * outer`` elements from its start.

    ``inner`` None is the plain axis, ``i * stride``. The split form walks two axes of a tensor as one: NCHW's columns
    (image, pixel) are ``Axis(1, inner=pixels, outer=channels * pixels)``, a batch over (image, group) is
    ``Axis(group_stride, inner=groups, outer=image_stride)``.
    """

    stride: int
    inner: int | None = None
    outer: int = 0

    def __post_init__(self) -> None:
        if self.inner is not None and self.inner < 1:
            raise InvalidArgument(f"an axis must have inner None or 1 and more, got {self.inner}")
        if self.inner is None and self.outer:
            raise InvalidArgument(f"an axis without inner has no outer stride, got outer={self.outer}")

    def simplified(self, size: int) -> Axis:
        """The plainest axis that agrees with this one for indices below ``size``."""
        if size == 1:
            return Axis(0)
        if self.inner is None or size <= self.inner or self.outer == self.inner * self.stride:
            return Axis(self.stride)
        return Axis(self.outer) if self.inner == 1 else self

    def offset(self, i):
        """Elements from the axis' start to index ``i``: an int or a NumPy array."""
        return i * self.stride if self.inner is None else i % self.inner * self.stride + i // self.inner * self.outer

    def text(self, i: str) -> str:
        """``offset`` as an OpenCL expression of type long, with literal strides."""
        if self.inner is None:
            return "0L" if self.stride == 0 else f"(long)({i})" + (f" * {self.stride}" if self.stride != 1 else "")
        return f"((long)(({i}) % {self.inner}) * {self.stride} + (long)(({i}) / {self.inner}) * {self.outer})"

    @property
    def plain(self) -> bool:
        """Whether neighbouring indices are always ``stride`` elements apart."""
        return self.inner is None


@dataclass(frozen=True)
class Matrix:
    """A batch of matrices in memory: element strides of its rows, columns and batch."""

    row: Axis
    col: Axis
    batch: Axis = Axis(0)

    @property
    def transposed(self) -> Matrix:
        """The same memory with rows and columns exchanged."""
        return Matrix(self.col, self.row, self.batch)


@dataclass(frozen=True)
class Epilogue:
    """The operations after the sum: ``C = activation(A B + bias + residual)``; ``accumulate`` adds C's old values.

    ``bias`` is ``"m"`` (one value a row of C) or ``"n"`` (one a column); batch z uses the values from
    ``bias_batch_stride`` (elements a batch, or an Axis) on. ``residual`` is addressed as C is.
    """

    bias: str | None = None
    bias_batch_stride: int | Axis = 0
    residual: bool = False
    activation: str | None = None
    accumulate: bool = False

    def __post_init__(self) -> None:
        if self.bias not in (None, "m", "n"):
            raise InvalidArgument(f"bias must be None, 'm' or 'n', got {self.bias!r}")
        if self.activation is not None:
            parse_activation(self.activation)
            if self.accumulate:
                raise InvalidArgument("accumulate adds the plain result to C: it takes no activation")

    @classmethod
    def of(cls, problem: ConvProblem, bias_batch: Axis) -> Epilogue:
        """A convolution's epilogue, with a bias for each row of C; ``bias_batch`` is the batch axis of the bias."""
        bias = "m" if problem.bias else None
        return cls(bias, bias_batch, problem.residual, problem.activation, problem.accumulate)

    @property
    def bias_batch(self) -> Axis:
        """The batch axis of the bias, as an ``Axis``."""
        step = self.bias_batch_stride
        return step if isinstance(step, Axis) else Axis(step)


@dataclass(frozen=True)
class GemmSpec:
    """``C[z, i, j] = epilogue(sum over p of A[z, i, p] * B[z, p, j])`` for i < m, j < n, p < k, z < batch.

    ``dtype`` is how a, b, c, bias and residual are stored; sums are float32 or wider. ``a_packed`` (``b_packed``):
    that operand comes in panels of the accumulation type, as ``packed_layout`` describes; of its Matrix only the batch
    axis counts then (a batch stride of 0 means one shared operand). ``alignment`` is a number of elements: the caller
    promises that the offsets of a, b, c and residual are multiples of it, and that the buffers' addresses are aligned
    to it; 4 lets a GPU move vectors.

    Raises InvalidArgument when a number is out of range.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    a: Matrix
    b: Matrix
    c: Matrix
    epilogue: Epilogue = Epilogue()
    a_packed: bool = False
    b_packed: bool = False
    alignment: int = 1

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch", "alignment"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"a matrix product needs {name} of 1 or more, got {getattr(self, name)}")
        if self.dtype not in DTYPES:
            raise InvalidArgument(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if max(self.m, self.n, self.k, self.batch) >= 2**31:
            raise InvalidArgument("a matrix product's sizes must stay below 2**31")

    @property
    def swapped(self) -> GemmSpec:
        """The transposed product in the same memory: ``C' = B' A'``."""
        bias = {None: None, "m": "n", "n": "m"}[self.epilogue.bias]
        return dataclasses.replace(
            self,
            m=self.n,
            n=self.m,
            a=self.b.transposed,
            b=self.a.transposed,
            c=self.c.transposed,
            a_packed=self.b_packed,
            b_packed=self.a_packed,
            epilogue=dataclasses.replace(self.epilogue, bias=bias),
        )

    @property
    def simplified(self) -> GemmSpec:
        """Return the same product with every axis in its simplest form."""

        def plain(matrix: Matrix, rows: int, cols: int) -> Matrix:
            return Matrix(matrix.row.simplified(rows), matrix.col.simplified(cols), matrix.batch.simplified(self.batch))

        epilogue = dataclasses.replace(self.epilogue, bias_batch_stride=self.epilogue.bias_batch.simplified(self.batch))
        return dataclasses.replace(
            self,
            a=plain(self.a, self.m, self.k),
            b=plain(self.b, self.k, self.n),
            c=plain(self.c, self.m, self.n),
            epilogue=epilogue,
        )

    @property
    def flops(self) -> int:
        """Number of floating-point operations of the product, two per multiply-add."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def accumulator_size(self) -> int:
        """Bytes of one accumulator, which is also the size of one packed element."""
        return DTYPES[self.dtype].accumulator_size
