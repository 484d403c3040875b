"""register_device: PyTorch's device "opencl", for devices that PyTorch does not serve, in Python alone.

PyTorch's private interface for this allows no ``torch.Generator(device="opencl")`` (random numbers are drawn on the
host) and no autocast; ``data_ptr()`` of its tensors is 0, because OpenCL's memory has no address.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from ..eager.opencl_tensors import NAME, queue, to_host
from ..requirements import lacking

_PRIVATE = {
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend": "no device can be added in Python",
    "torch._C._construct_storage_from_data_pointer": "the device's storages cannot be made",
    "torch._C._acc.create_empty_tensor": "the device's tensors cannot be made",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "the device's tensors cannot be saved",
}


_BACKEND = types.SimpleNamespace(
    is_initialized=lambda: True,
    is_available=lambda: True,
    current_device=lambda: 0,
    device_count=lambda: 1,
    _is_in_bad_fork=lambda: False,
    manual_seed_all=lambda seed: None,  # random numbers are drawn on the host, whose seed ``torch.manual_seed`` sets
    get_amp_supported_dtype=list,
    synchronize=lambda device=None: queue().finish(),
)
"""The module ``torch.opencl``."""


@functools.lru_cache(maxsize=1)
def register_device() -> torch.device:
    """Add the device "opencl" (``CONVDISPATCH_DEVICE``, or the best OpenCL device) to PyTorch, for this process.

    Convolutions and element-wise operators run on it, every other operator on the host by copies; ``counters()`` has
    both. Raises RuntimeError, in a sentence, where PyTorch's private names are missing or another such device is there.
    """
    sentence = lacking(_PRIVATE)
    if sentence:
        raise RuntimeError(sentence)
    from torch.utils import backend_registration

    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise RuntimeError(f"PyTorch takes one added device a process, and {taken!r} is there already")
    queue()
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_BACKEND)
    from .operators import install

    register_device.library = install()  # type: ignore[attr-defined]
    _mend()
    return torch.device(NAME, 0)


def _mend() -> None:
    """Patch copying and pickling, which PyTorch does by address, to go by value for tensors of the device."""
    copied, reduced = torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__

    @functools.wraps(copied)
    def deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> Any:
        if self.device.type != NAME or type(self) is not torch.Tensor:
            return copied(self, memo)
        if id(self) not in memo:
            if not self.is_leaf:
                raise RuntimeError("only leaves of the graph can be deep-copied: detach the tensor first")
            made = self.detach().clone().requires_grad_(self.requires_grad)
            made.grad = None if self.grad is None else deepcopy(self.grad, memo)
            memo[id(self)] = made
        return memo[id(self)]

    @functools.wraps(reduced)
    def reduce_ex(self: torch.Tensor, protocol: Any) -> Any:
        if self.device.type != NAME or type(self) is not torch.Tensor:
            return reduced(self, protocol)
        rebuild = torch._utils._rebuild_device_tensor_from_cpu_tensor
        return rebuild, (to_host(self.detach()), self.dtype, str(self.device), self.requires_grad)

    torch.Tensor.__deepcopy__ = deepcopy  # type: ignore[method-assign]
    torch.Tensor.__reduce_ex__ = reduce_ex  # type: ignore[method-assign]
