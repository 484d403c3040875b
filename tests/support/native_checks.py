"""What tests of the native call path share: writes to weights, and a call in a forked child."""

import os

import torch

import convdispatch.torch as ct
from convdispatch.device import runtime

LAST = torch.channels_last
WRITES = {
    "in place": lambda p: p.mul_(2),
    "by data": lambda p: p.data.mul_(2),
    "by a view": lambda p: p.detach().view(-1)[:].mul_(2),
    "by NumPy": lambda p: p.detach().numpy().__imul__(2),
    "other memory": lambda p: setattr(p, "data", p.data * 2),
}


def right_in_a_child(call) -> bool:
    """Whether a forked child answers what this process does, and counts why it is PyTorch's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's threads are not in the child either
    try:
        with torch.no_grad():
            wanted = [call() for _ in range(3)][-1]
            child = os.fork()
            if not child:
                try:
                    right = (call() - wanted).norm() <= 1e-5 * wanted.norm()
                    said = [each for each in ct.counters()["reasons"] if runtime.FORKED in each]
                    os._exit(0 if right and said else 2)
                finally:
                    os._exit(1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)
