"""Makes the processes of one distributed training choose the same solvers, so that their results are the same.

Processes meet in the store of ``torch.distributed``, without a collective operation, so no order of calls is asked of
them. The lock file of rank 0 (``CONVDISPATCH_LOCK``) goes to all; of what it does not name, the first rank that comes
to a problem decides, and the others follow. For that file alone a rank waits, ``PATIENCE`` at most.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from ..api import settings
from ..api.errors import ConvDispatchWarning
from ..api.policy import current_policy
from ..api.problem import ConvProblem
from ..device import runtime
from ..selection import dispatch
from ..selection.choice import lockfile, ranking
from .captures import device_type
from .requirements import lacking

PATIENCE = timedelta(seconds=300)
"""How long a rank waits for rank 0 to call ``enable()``."""
_PREFIX = "convdispatch/"
_NONE = "-"
_lock = threading.Lock()
_met: Any = None
_warned: set[int] = set()


def many() -> bool:
    """Whether this process is one of several ranks."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _store() -> Any:
    sentence = lacking({"torch.distributed.distributed_c10d._get_default_store": "ranks cannot agree on solvers"})
    if sentence:
        raise RuntimeError(sentence)
    return torch.distributed.distributed_c10d._get_default_store()


def meet() -> Any:
    """The store of this training, once rank 0's lock file applies in this process too; None for a single process."""
    global _met
    if not many():
        return None
    group = torch.distributed.distributed_c10d._get_default_group()
    with _lock:
        if _met is not group:
            store, rank = _store(), torch.distributed.get_rank()
            if rank == 0:
                path = settings.LOCK.value()
                locked = lockfile.read(path) if path else {}
                text = {problem: [each.solver, dict(each.config)] for problem, each in locked.items()}
                store.set(_PREFIX + "lock", json.dumps(text))
            text = json.loads(_from_rank_0(store, rank))
            lockfile.agree({p: lockfile.Decision(solver, config) for p, (solver, config) in text.items()})
            dispatch.forget()
            _met = group
    return _store()


def _from_rank_0(store: Any, rank: int) -> bytes:
    key = _PREFIX + "lock"
    try:
        store.wait([key], PATIENCE)
        return store.get(key)
    except RuntimeError as error:  # raised by the store, or by its connection
        raise RuntimeError(
            f"rank {rank} heard nothing of rank 0's decisions for {PATIENCE.total_seconds():g} s: call "
            f"convdispatch.torch.enable() on every rank, after init_process_group; or rank 0 has ended ({error})"
        ) from None


def share(count: int) -> int:
    """The index among ``count`` tasks at which this rank starts, so that the ranks of one host first do different
    parts."""
    if not many():
        return 0
    distributed = torch.distributed
    rank = int(os.environ.get("LOCAL_RANK", distributed.get_rank()))
    return count * rank // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", distributed.get_world_size())))


def agree(problem: ConvProblem, device: Callable[[], Any], tensor: Any = None) -> None:
    """Lock the solver of a problem to the first rank's choice, before this rank plans it; does nothing in a single
    process."""
    if not many():
        return
    store = meet()
    opencl_device = device()
    if tensor is not None:
        _own_device(store, tensor.get_device())
    if lockfile.in_force(problem) is not None or problem.mb == 0 or current_policy().solver is not None:
        return
    problem = current_policy().problem_of_choice(problem)
    best = ranking.rank(problem, runtime.device_info(opencl_device))[0]
    own_choice = json.dumps([best.solver.name, dict(best.config)], sort_keys=True)
    key = f"{_PREFIX}{problem}/{current_policy().promises}"
    try:
        solver, config = json.loads(store.compare_set(key, "", own_choice))
    except RuntimeError as error:
        raise RuntimeError(f"the ranks' store does not answer, perhaps because a rank has ended: {error}") from None
    lockfile.agree({str(problem): lockfile.Decision(solver, config)})


def _own_device(store: Any, number: int) -> None:
    """Warn if another process of this host uses the same GPU."""
    if number in _warned:
        return
    _warned.add(number)
    rank = str(torch.distributed.get_rank())
    name = device_type()
    unique = getattr(getattr(torch, name).get_device_properties(number), "uuid", number)
    owner = store.compare_set(f"{_PREFIX}device/{socket.gethostname()}/{unique}", "", rank).decode()
    if owner != rank:
        warnings.warn(
            f"rank {rank} has no GPU of its own: rank {owner} uses device {name}:{number} of this host too; start "
            f"as many ranks as there are GPUs, and call torch.{name}.set_device(int(os.environ['LOCAL_RANK'])) in each",
            ConvDispatchWarning,
            stacklevel=2,
        )
