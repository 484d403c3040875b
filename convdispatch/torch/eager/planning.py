"""Plans a call of an operator: the cacheable call that computes it, or the reason why PyTorch's own kernel does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl
import torch

from ...api.errors import InvalidArgument, NoSolver
from ...api.policy import Policy, policy
from ...api.problem import ConvProblem
from ...calls.arguments import check_bias
from ...calls.arrays.host_arrays import HostArrays
from ...calls.framework import tiers
from ...calls.framework.fallback import Fallback, cpu_device, refuse_dtype
from ...calls.host_call import HostCall
from ...device import runtime
from ...device.commands import host_memory
from ...selection.visible_problem import operand_sizes
from .. import counting, ranks
from ..captures import capturing, device_type, note_left
from ..cores import share_cores
from ..counting import solved
from ..geometry import DTYPES, FORMATS, PLAIN, Geometry, format_of, problem_of
from ..settings import Settings, math_of

TORCH = tiers.Framework(capturing, note_left, ranks.many, counting.compiling)
"""What compilation tiers need of PyTorch: whether a capture is under way, what hears of problems that it leaves,
whether there are several ranks, a counter."""


class CallRequest(NamedTuple):
    """One part of an operator's call: its tensors, and the settings that apply to it."""

    part: str
    """``forward``, ``data`` (gradient of the input) or ``weights`` (gradient of the weights)."""
    geometry: Geometry
    x: torch.Tensor
    w: torch.Tensor
    grad: torch.Tensor | None
    bias: torch.Tensor | None
    constant: bool
    settings: Settings
    switched: tuple[Any, ...]
    chosen: Policy
    after: tuple[Any, ...] = PLAIN
    """The other parts of the problem, see ``geometry.PLAIN``."""
    waits: bool = True
    """Whether the call waits for its kernel on a CPU, where nothing else was asked for; see ``framework.sizes``."""


class LeftToPyTorch:
    """Cached instead of a call where PyTorch's own kernel is to run each time, with the reason."""

    prepared = None
    shape = None
    backward_ready = True

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, *_: Any) -> Any:
        raise Fallback(self.reason, again=self._again)

    def _again(self, operator: str) -> bool:
        counting.left(operator, self.reason)
        return True


def planned_call(request: CallRequest) -> Any:
    """Plan ``call(x, w, y, bias, constant, residual)`` for tensors like those of the request.

    Raises Fallback where this one call is PyTorch's.
    """
    try:
        call = _call(request)
    except NoSolver as error:
        return LeftToPyTorch(str(error).splitlines()[0])
    except Fallback as left:
        if not left.lasting:
            raise
        return LeftToPyTorch(str(left))
    call.backward_ready = request.part != "forward" or not ranks.many()
    return call


def _call(request: CallRequest) -> Any:
    x, w = request.x, request.w
    _check(request)
    try:
        form = format_of(x, w, request.bias, request.geometry)
    except RuntimeError:
        _problem(request, False)  # raises an error that says what is wrong
        raise
    channels_last = form is not torch.contiguous_format
    if channels_last and form is not FORMATS.get(x.ndim):
        raise Fallback(f"the memory format {form} of {x.ndim}-D tensors is none of these engines'")
    problem, min_flops = _problem(request, channels_last), request.settings.min_flops
    if min_flops is not None and request.chosen.problem_of_choice(problem).flops < min_flops:
        raise Fallback(f"fewer than min_flops={min_flops:g} operations")
    if 0 in w.shape or 0 in x.shape[1:]:
        raise Fallback("a size of zero other than the batch's")
    if x.shape[0] == 0 and x.device.type != "opencl":  # PyTorch chooses the strides of empty tensors
        raise Fallback("nothing to compute")
    batch, *sizes = problem.out_shape
    channels_first = (batch, sizes[-1], *sizes[:-1]) if channels_last else problem.out_shape
    shape = {"data": x.shape, "weights": w.shape}.get(request.part) or channels_first
    with policy(solver=request.chosen.solver, **request.chosen.promises):
        if x.device.type == "opencl":
            from .opencl_tensors import OpenClTensors

            return OpenClTensors(problem, tuple(shape), x.dtype)
        if not x.is_cpu:
            from .stream_tensors import begin_children, device, stream_call

            if x.device.type != device_type():
                raise Fallback(f"no engine here runs on {x.device.type}")
            ranks.agree(problem, lambda: device(x), x)
            if not tiers.waits(request.chosen, True, TORCH):
                begin_children(x.get_device())
            # ``template`` is an empty tensor, because a call that is built later must not hold x.
            template = torch.empty(0, dtype=x.dtype, device=x.device)
            where, build = tiers.timed(lambda: device(x)), _under(request, stream_call, problem, shape, form, template)
            return tiers.first(where, problem, request.chosen, build, TORCH, on_cuda=True)
        ranks.agree(problem, cpu_device)
        build = _under(request, host_call, problem, shape, form, x.dtype)
        where = cpu_device()
        if not request.waits:
            return tiers.aside(where, problem, request.chosen, build, TORCH)
        return tiers.first(where, problem, request.chosen, build, TORCH, on_cuda=False)


def _under(
    request: CallRequest, kind: Callable[..., Any], problem: ConvProblem, shape: Any, *rest: Any
) -> Callable[[], Any]:
    """A function that builds a call of a kind, possibly later, under the policy in force now."""
    chosen = request.chosen

    def build() -> Any:
        # Under the tier "ready" PyTorch's kernel computes calls until this build ends: what is built is the chosen
        # plan.
        with policy(solver=chosen.solver, tier=None, **chosen.promises):
            planned_call = kind(problem, tuple(shape), *rest)
        planned_call.backward_ready = True
        return planned_call

    return build


def _problem(request: CallRequest, channels_last: bool) -> ConvProblem:
    """The convolution problem of a request. Raises InvalidArgument, InvalidProblem."""
    dtype, grad, bias = DTYPES[request.x.dtype], request.grad, request.bias
    problem = problem_of(
        request.part,
        request.geometry,
        request.x.shape,
        request.w.shape,
        None if grad is None else grad.shape,
        dtype,
        last=channels_last,
        math=math_of(request.settings, request.switched, dtype),
        bias=bias is not None,
        constant=request.constant,
        after=request.after,
    )
    check_bias(bias, problem.channels_out)
    return problem


def _check(request: CallRequest) -> None:
    """Raises Fallback for tensors that no engine takes, InvalidArgument for tensors that do not match each other."""
    x = request.x
    for name, tensor in {"input": x, "weight": request.w, "bias": request.bias, "grad_output": request.grad}.items():
        if tensor is None:
            continue
        if tensor.layout is not torch.strided:
            raise Fallback(f"{name} is {tensor.layout}")
        if tensor.dtype not in DTYPES:
            raise Fallback(f"{str(tensor.dtype).removeprefix('torch.')} is none of {', '.join(DTYPES.values())}")
        if tensor.dtype != x.dtype:
            raise InvalidArgument(f"{name} must be {x.dtype} as input is, got {tensor.dtype}")
        if tensor.device != x.device:
            raise InvalidArgument(f"{name} must be on {x.device} as input is, got {tensor.device}")
    if not 3 <= x.ndim <= 5:
        raise Fallback(f"{x.ndim - 2} axes of space, not 1 to 3")


SMALL_BYTES = 1 << 16
"""A result of fewer bytes is allocated by NumPy, in half the time of ``torch.empty``."""
POOLED_BYTES = 1 << 25
"""A result of at least this many bytes comes from the device's pool, because the C library maps such memory anew each
time. A smaller one comes from PyTorch's allocator, which reuses memory that the last operator freed and that is in the
caches."""
UNCOUNTED_BYTES = 1 << 16
"""What a block of nearly ``POOLED_BYTES`` leaves to the C library's alignment and header."""


@functools.lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Have glibc keep the memory that PyTorch's operators free for the operators that follow.

    glibc returns the end of its heap to the system beyond twice the largest mapped block that it has seen freed, and
    each return costs the next operator a page fault for every 4 KB. Where our convolutions allocate no such block,
    operators between them would fault at each call. So one block, the largest that counts, is mapped and freed here,
    without touching it; up to 64 MB stay with the process. Where the user set ``MALLOC_TRIM_THRESHOLD_`` or
    ``MALLOC_MMAP_THRESHOLD_``, glibc adapts nothing, so that theirs hold.
    """
    np.empty(POOLED_BYTES - UNCOUNTED_BYTES, np.uint8)


class HostTensors(HostArrays):
    """Tensors of one memory format; see HostArrays. Results have PyTorch's ``shape`` and ``strides``."""

    def __init__(
        self, problem: ConvProblem, device: cl.Device, shape: tuple[int, ...], form: Any, dtype: torch.dtype
    ) -> None:
        self.shape, self._form, self.dtype, self._device, self._layout = shape, form, dtype, device, problem.layout
        self._out_shape, self._size = problem.out_shape, operand_sizes(problem)["xwy".index(problem.written)]
        self._pooled = host_memory.has_system_svm(device) and self._size >= POOLED_BYTES
        # The NumPy dtype of a small result; None if the result is large, channels last, or of a dtype that NumPy lacks.
        plain = self._size < SMALL_BYTES and problem.layout == "nchw" and dtype is not torch.bfloat16
        self._small = np.dtype(problem.dtype) if plain else None
        strides = torch.empty(shape, device="meta", memory_format=form).stride()
        # Strides are None for pooled results, because the native call path allocates by PyTorch only.
        self.strides = None if self._pooled else strides

    def input_address(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr() if tensor.is_contiguous(memory_format=self._form) and not tensor.is_neg() else 0

    output_address = input_address

    def bias_address(self, bias: torch.Tensor) -> int:
        return bias.data_ptr() if bias.is_contiguous() and not bias.is_neg() else 0

    def allocate(self) -> tuple[torch.Tensor, int]:
        """Allocate a result, see HostArrays; pooled memory is reused once nothing holds it."""
        result = self._allocated()
        return result, result.data_ptr()

    def _allocated(self) -> torch.Tensor:
        if self._small is not None and not torch._C._is_torch_function_mode_enabled():
            return torch.from_numpy(np.empty(self.shape, self._small))
        if not self._pooled or torch._C._is_torch_function_mode_enabled():
            return torch.empty(self.shape, dtype=self.dtype, device="cpu", memory_format=self._form)
        flat = torch.frombuffer(host_memory.lease(self._device, self._size), dtype=self.dtype)
        if self._layout == "nchw":
            return flat.view(self.shape)
        ndim = len(self.shape)
        return flat.view(self._out_shape).permute(0, ndim - 1, *range(1, ndim - 1))

    def compact(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        form = self._form if tensor.ndim > 1 else torch.contiguous_format
        copy = tensor.contiguous(memory_format=form).resolve_neg()
        return copy, copy.data_ptr()

    def view(self, tensor: torch.Tensor) -> np.ndarray:
        """A NumPy view of a tensor, see HostArrays; of the same bytes as int16 for bfloat16, which NumPy lacks."""
        return tensor.detach().view(torch.int16 if tensor.dtype is torch.bfloat16 else tensor.dtype).numpy()


def host_call(problem: ConvProblem, shape: tuple[int, ...], form: Any, dtype: torch.dtype) -> HostCall:
    """Build the call of an operator that writes a tensor of a shape. Raises Fallback."""
    device = cpu_device()
    refuse_dtype(problem, device)
    keep_freed_memory()
    tensors = HostTensors(problem, device, shape, form, dtype)
    call = HostCall(problem, runtime.context(device), tensors, in_pytorch=True, count=solved)
    call.form, call.shape = form, shape
    if call.launches is not None and not call.launches.intraop:
        share_cores()
    return call
