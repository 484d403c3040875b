"""``aten::convolution`` and its backward on our engines; calls are cached by everything that decides them.

``forward`` and ``backward`` take the operators' own arguments and answer as PyTorch would: dtype, device and memory
format. They raise Fallback, with the reason, where the call is PyTorch's own kernel's. A call that was made before
costs a look-up; ``eager.planning`` plans the others.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...api.errors import ConvDispatchError
from ...api.policy import current_policy
from ...calls.call_cache import CallCache
from ...calls.framework import autotune, tiers
from ...calls.framework.fallback import Fallback
from ...calls.framework.sizes import MEETINGS, Sizes
from ...calls.framework.tiers import Compiling, Pending
from ...calls.host_call import HostCall
from ...selection import dispatch
from .. import ranks
from ..eager.bias_gradient import bias_gradient, make_ready
from ..eager.planning import TORCH, CallRequest, LeftToPyTorch, planned_call
from ..geometry import PLAIN, Geometry
from ..settings import DEFAULT, Settings, benchmark, policy_of, switches
from ..weights import alive, promise
from . import native

_cache = CallCache(("forward", "data", "weights"), native.drop, native.used)
_alive: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
"""Calls by cache key as long as anything holds them, also after the cache has evicted them. A fused model's CUDA graph
holds its calls: its replays look up no call, and a user's own capture of the model, during which no call can be built,
finds them here."""


sizes = Sizes()
"""The layers and input sizes encountered on CPUs."""


@dispatch.on_forget
def _forget() -> None:
    _cache.forget()
    _alive.clear()
    native.forget()


_watchers: list[Callable[[str, Any, Sequence[Any], Geometry], None]] = []


def forward(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, *geometry: Any, settings: Settings = DEFAULT
) -> torch.Tensor:
    """Compute ``aten::convolution``. Raises Fallback, InvalidArgument, InvalidProblem."""
    if rows := _missing_rows(geometry, x):
        return forward(_longer(x, rows), w, bias, *Geometry.of(*geometry).without(rows), settings=settings)
    return _computed((x, w, bias), geometry, promise(w), settings)


def fused(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str | None,
    *given: Any,
    settings: Settings = DEFAULT,
) -> torch.Tensor:
    """``activation(convolution + residual)`` in one pass, of stride, padding, dilation and groups. Raises as
    ``forward`` does."""
    geometry = (*given[:3], False, (0,) * (x.ndim - 2), given[3])
    after = (activation, residual is not None, None, False)
    return _computed((x, w, bias, residual), geometry, promise(w, fused=True), settings, after)


def _computed(
    tensors: tuple[Any, ...], geometry: tuple[Any, ...], constant: Any, settings: Settings, after: Any = PLAIN
) -> torch.Tensor:
    """The result of a forward call on input, weights, bias and, of a fused layer, the residual."""
    x, w, bias = tensors[:3]
    call = cached_call("forward", geometry, (x, w, None, bias), constant is not None, settings, after)
    residual, transposed = tensors[3] if after[1] else None, geometry[3]
    if residual is not None and call.shape is not None:
        alike = residual.shape == call.shape and residual.dtype is x.dtype and residual.device == x.device
        if not alike:
            raise Fallback("what is added is not like the result")
    if transposed:
        result = call(None, w, x, bias, constant)
    else:
        result = call(x, w, None, bias, constant, residual)
    if not call.backward_ready:
        call.backward_ready = _prepare_backward(geometry, x, w, bias, result, settings)
    native.learn([("forward", call, 0)], transposed, tensors, w, constant)
    for watcher in _watchers:
        watcher("forward", call, tensors, Geometry.of(*geometry))
    return result


def backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    *given: Any,
    settings: Settings = DEFAULT,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Compute ``aten::convolution_backward``; None for a gradient that is not requested. Raises as ``forward`` does."""
    *_, output_mask = given
    geometry = given[:-1]
    if rows := _missing_rows(geometry, x):
        rest = Geometry.of(*geometry).without(rows)
        data, *others = backward(grad, _longer(x, rows), w, bias_sizes, *rest, output_mask, settings=settings)
        if data is not None:
            data = data[(..., *(slice(size) for size in x.shape[2:]))].contiguous()
        return data, *others  # type: ignore[return-value]
    transposed = geometry[3]
    data = weights = sums = constant = None
    parts: list[tuple[str, Any, int]] = []
    # Both calls are planned before either runs: if one is left to PyTorch, the whole backward is.
    if output_mask[0]:
        constant = promise(w)
        data = cached_call("data", geometry, (x, w, grad, None), constant is not None, settings)
        parts.append(("data", data, 0))
    if output_mask[1]:
        weights = cached_call("weights", geometry, (x, w, grad, None), False, settings)
        parts.append(("weights", weights, 1))
    for part, call, _ in parts:
        if isinstance(call, Pending | LeftToPyTorch):  # raises before the other gradient is computed in vain
            call(x, w, grad, None, constant if part == "data" else None)
    if data is not None:
        data = data(grad, w, None, None, constant) if transposed else data(None, w, grad, None, constant)
    if output_mask[2]:
        sums = bias_gradient(grad)
    if weights is not None:
        weights = weights(grad, None, x) if transposed else weights(x, None, grad)
    native.learn(parts, transposed, (grad, x, w), w, constant, with_sums=output_mask[2])
    return data, weights, sums


def _prepare_backward(
    geometry: tuple[Any, ...],
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    result: torch.Tensor,
    settings: Settings,
) -> bool:
    """Plan the calls that this call's backward will need; returns whether both gradients will be needed.

    For one rank of several: in its backward, collectives are under way on the device, and CUDA loads a program when the
    device is idle, so a rank would wait there for the others, each for each program.
    """
    if torch.is_grad_enabled():
        for part, tensor in (("data", x), ("weights", w)):
            if tensor.requires_grad:
                constant = part == "data" and promise(w) is not None
                with contextlib.suppress(ConvDispatchError, Fallback):  # the backward itself raises the error
                    cached_call(part, geometry, (x, w, result, None), constant, settings)
        if bias is not None and bias.requires_grad:
            make_ready(result)
        return x.requires_grad and w.requires_grad
    return False


def watch(watcher: Callable[[str, Any, Sequence[Any], Geometry], None]) -> Callable[[], None]:
    """Call ``watcher(part, call, tensors, geometry)`` after each forward, until the returned function is called;
    tensors are input, weights, bias and, of a fused layer, the residual."""
    _watchers.append(watcher)
    native.pause(True)

    def end() -> None:
        if watcher in _watchers:
            _watchers.remove(watcher)
        native.pause(watched())

    return end


def watched() -> bool:
    """Whether a watcher is registered."""
    return bool(_watchers)


def cached_call(
    part: str,
    geometry: tuple[Any, ...],
    tensors: tuple[Any, ...],
    constant: bool,
    settings: Settings,
    after: tuple[Any, ...] = PLAIN,
) -> Any:
    """The cached call for tensors (input, weights, gradient, bias) like these, planned now if it is new. ``after``: see
    ``geometry.PLAIN``."""
    x, w, grad, bias = tensors
    # Most often the last call with these weights matches: comparing takes a third of the time of hashing the key.
    facts = facts_of(geometry, tensors, constant, settings, after)
    chosen, last = facts[-1], _cache.last[part].get(id(w))
    if last is not None and last[0] == facts:
        call = last[1]
    else:
        key = key_of(part, facts)
        is_free = settings.solver is None and settings.min_flops is None
        call, by_size = _cache.calls.get(key), x.is_cpu and is_free and tiers.by_size(chosen, TORCH)
        layer, size = _layer_and_size(key)
        waits = not by_size or sizes.is_first(layer, size, id(w), alive(w))
        if call is None:
            if not waits and (native.met() or sizes.met(key)) < MEETINGS:
                raise Compiling()
            request = CallRequest(part, Geometry.of(*geometry), x, w, grad, bias, constant, *key[-3:], after, waits)
            call = _alive[key] = _cache.calls.make(key, lambda: _alive.get(key) or planned_call(request))
        if by_size and type(call) is HostCall and not sizes.is_prepared(layer):
            native.know(alive(w))
        _cache.store(part, facts, w, call)
    if type(call) is Pending:
        loaded = call.resolved(wait=current_policy().tier == "full")
        if loaded is None:
            return call
        key = key_of(part, facts)
        call = _alive[key] = loaded
        _cache.calls.put(key, call)
        _cache.store(part, facts, w, call)
    if benchmark() and call.prepared is not None:
        autotune.consider(call.problem, call.device, chosen, call.prepared, ranks.many)
    return call


def _layer_and_size(key: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    part, geometry, shape, strides, *rest, grad, bias, constant, after, settings, switched, chosen = key
    layer = (part, geometry, *rest, grad and grad[1:], bias, constant, after, switched, settings)
    return layer, (shape, strides, grad and grad[0], chosen)


def prepared(keys: Iterable[tuple[Any, ...]]) -> None:
    """Note that the calls of these cache keys were planned before the first tensor: the native path must ask for
    them."""
    for key in keys:
        sizes.prepare(_layer_and_size(key)[0])
    native.forget()


def facts_of(
    geometry: tuple[Any, ...],
    tensors: tuple[Any, ...],
    constant: bool,
    settings: Settings,
    after: tuple[Any, ...] = PLAIN,
) -> tuple[Any, ...]:
    """All that decides a part's call; the last three are the settings, PyTorch's switches and the policy.

    ``geometry`` is the operator's own arguments, whose lists stay lists: facts are compared, not hashed.
    """
    x, w, grad, bias = tensors
    switched = switches(x.is_cuda)
    return (
        geometry,
        x.shape,
        x.stride(),
        x.dtype,
        x.device,
        w.shape,
        w.stride(),
        w.dtype,
        w.device,
        None if grad is None else (grad.shape, grad.dtype, grad.device),
        None if bias is None else (bias.shape, bias.dtype, bias.device),
        constant,
        after,
        settings,
        switched,
        policy_of(settings, switched),
    )


def key_of(part: str, facts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The cache key of the call that the facts decide."""
    return (part, Geometry.of(*facts[0]), *facts[1:])


def _missing_rows(geometry: tuple[Any, ...], x: torch.Tensor) -> Sequence[int]:
    """The zeros to append to each spatial axis of a transposed convolution's input, whose call is then Python's; empty
    if there are none."""
    if not geometry[3] or not any(geometry[4]):
        return ()
    rows = Geometry.of(*geometry).rows(x.ndim - 2)
    if not any(rows):
        return ()
    native.decline()
    return rows


def _longer(x: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """``x`` with zeros appended to its spatial axes."""
    pads = [count for extra in reversed(rows) for count in (0, extra)]
    return torch.ops.aten.constant_pad_nd(x, pads, 0)
