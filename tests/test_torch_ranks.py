"""Two processes with gloo: DistributedDataParallel unchanged, the same decisions on every rank, rank 0's lock file."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

CODE = """
import json, os, sys
import torch
import torch.distributed as dist
import convdispatch.torch as ct
from convdispatch.torch import engine

rank, where = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + where, rank=rank, world_size=2)
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, stride=2), torch.nn.Flatten(),
    torch.nn.Linear(8 * 25, 3),
)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
ran = {}
ct.enable()
engine.watch(lambda part, call, tensors, geometry: ran.setdefault(str(call.problem), call.solver))
for step in range(3):
    optimizer.zero_grad()
    x = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(10 * step + rank))
    model(x).square().mean().backward()
    optimizer.step()
# The first step's images, on a net whose weights are equal, give equal bits where the decisions are.
y = net(torch.ones(4, 3, 12, 12)).detach()
print(json.dumps({"ran": ran, "y": y.view(torch.int32).flatten().tolist(), "counted": ct.counters(),
                  "weights": [p.double().sum().item() for p in net.parameters()]}))
dist.barrier()
dist.destroy_process_group()
"""


def both(tmp_path, environments) -> list[dict]:
    where = str(tmp_path / "store")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, str(rank), where],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, environment in enumerate(environments)
    ]
    answers = [process.communicate(timeout=200) for process in running]
    for process, (_, errors) in zip(running, answers):
        assert process.returncode == 0, errors
    return [json.loads(out.splitlines()[-1]) for out, _ in answers]


def test_ranks_take_the_same_decisions_by_rank_0s_lock_file(tmp_path):
    """Each rank has a registry that prefers another engine; rank 0's lock file names a third for one problem."""
    preferences = []
    for rank, glob in enumerate(("implicitgemm*", "im2col*")):
        path = tmp_path / f"registry{rank}.yaml"
        path.write_text(f"rules:\n  - prefer: ['{glob}']\n")
        preferences.append(str(path))
    locked = "mb4ic3ih12oc8kh3ph1"
    from convdispatch import ConvProblem

    problem = str(ConvProblem.parse(locked).replace(bias=True))
    lock = tmp_path / "lock.json"
    lock.write_text(
        json.dumps({"schema": 1, "problems": {problem: {"solver": "im2col", "config": config_of(problem)}}})
    )
    first, second = both(
        tmp_path,
        [
            {"CONVDISPATCH_REGISTRY": preferences[0], "CONVDISPATCH_LOCK": str(lock)},
            {"CONVDISPATCH_REGISTRY": preferences[1]},
        ],
    )
    assert first["ran"] == second["ran"]
    assert first["ran"][problem] == "im2col", first["ran"]
    assert first["weights"] == second["weights"]
    assert first["y"] == second["y"]
    for each in (first, second):
        assert each["counted"]["left"] == 0, each["counted"]
        assert each["counted"]["ours"] == 14


def config_of(problem: str) -> dict:
    """im2col's default configuration on the CPU."""
    from convdispatch import ConvProblem, policy
    from convdispatch.device import runtime
    from convdispatch.selection.ranking import rank
    from convdispatch.torch import host

    with policy(solver="im2col"):
        return dict(rank(ConvProblem.parse(problem), runtime.device_info(host.device()))[0].config)


def test_a_rank_without_a_gpu_of_its_own_says_so(monkeypatch):
    from convdispatch import ConvDispatchWarning
    from convdispatch.torch import ranks

    class Store(dict):
        def compare_set(self, key, expected, wanted):
            return self.setdefault(key, wanted).encode()

    store = Store()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: type("P", (), {"uuid": f"GPU-{number}"}))
    for rank, number, told in ((0, 0, False), (1, 1, False), (2, 1, True)):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(ranks, "_told", set())
        if told:
            with pytest.warns(ConvDispatchWarning, match="rank 2 has no GPU of its own: rank 1 uses CUDA's device 1"):
                ranks._own_device(store, number)
        else:
            ranks._own_device(store, number)
