"""Two processes with gloo: DistributedDataParallel unchanged, the same decisions on every rank, rank 0's lock file."""

import json
import os
import subprocess
import sys
from datetime import timedelta

import pytest
import torch

from convdispatch import ConvDispatchWarning, ConvProblem, policy
from convdispatch.calls.framework.fallback import cpu_device
from convdispatch.device import runtime
from convdispatch.selection.choice import ranking
from convdispatch.torch import ranks

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

CODE = """
import json, os, sys, time
import torch
import torch.distributed as dist
import convdispatch.torch as ct
from convdispatch.torch.dispatch import engine

rank, where = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + where, rank=rank, world_size=2)
torch.manual_seed(0)

def made_net(size):
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, stride=2), torch.nn.Flatten(), torch.nn.Linear(8 * size * size, 3),
    )
    return net, torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1e-4)  # a bucket a layer

# First calls as on a GPU: at another time on each rank, and each waits until the rank's collectives are done.
pending, first_calls, made = [], [], engine.planned_call

def hook(state, bucket):
    pending.append(dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future())
    return pending[-1].then(lambda done: done.value()[0])

def slow(asked):
    first_calls.append([asked.part, sum(not each.done() for each in pending), torch._C._current_graph_task_id() != -1])
    time.sleep(0.2 * rank)
    for each in pending:
        each.wait()
    return made(asked)

engine.planned_call = slow

def train(model, size, steps):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(images(size, step)).square().mean().backward()
        optimizer.step()

def images(size, step):
    return torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(10 * step + rank))

net, model = made_net(5)
model.register_comm_hook(None, hook)
ran = {}
ct.enable()
unwatch = engine.watch(lambda part, call, tensors, geometry: ran.setdefault(str(call.problem), call.solver))
train(model, 12, 3)
counted = ct.counters()
unwatch()
# The first step's images, on a net whose weights are equal, give equal bits where the decisions are.
y = net(torch.ones(4, 3, 12, 12)).detach()

other, model = made_net(6)
model.register_comm_hook(None, hook)
before = [each.clone() for each in other.state_dict().values()]
count = len(first_calls)
ready = ct.prepare(model, images(14, 0))
kept = all(torch.equal(a, b) for a, b in zip(before, other.state_dict().values()))
kept = kept and all(p.grad is None for p in other.parameters())
count, steps = len(first_calls) - count, len(first_calls)
train(model, 14, 2)
print(json.dumps({"ran": ran, "y": y.view(torch.int32).flatten().tolist(), "counted": counted,
                  "weights": [p.double().sum().item() for each in (net, other) for p in each.parameters()],
                  "first_calls": first_calls[:5], "ready": ready, "kept": kept, "prepared": count,
                  "after": len(first_calls) - steps}), flush=True)
dist.barrier()
os._exit(0)  # the hook's futures do not outlive the interpreter
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
        assert each["counted"]["ours"] == 12
        # Two layers; the first gives no gradient of its images. None is made while the backward's collectives run.
        assert sorted(part for part, _, _ in each["first_calls"]) == [
            "data",
            "forward",
            "forward",
            "weights",
            "weights",
        ]
        assert [rest for _, *rest in each["first_calls"]] == [[0, False]] * 5, each["first_calls"]
        assert (each["ready"]["ours"], each["ready"]["left"], each["kept"]) == (5, 0, True), each["ready"]
        assert (each["prepared"], each["after"]) == (5, 0)


def config_of(problem: str) -> dict:
    """im2col's default configuration on the CPU."""
    with policy(solver="im2col"):
        return dict(ranking.rank(ConvProblem.parse(problem), runtime.device_info(cpu_device()))[0].config)


def test_a_rank_that_hears_nothing_of_rank_0_says_so(monkeypatch):
    """Rank 0 never called enable(): told after a while, and convolutions stay PyTorch's."""

    import convdispatch.torch as ct

    distributed = torch.distributed
    monkeypatch.setattr(ranks, "PATIENCE", timedelta(seconds=0.2))
    monkeypatch.setattr(ranks, "many", lambda: True)
    monkeypatch.setattr(ranks, "_met", None)
    monkeypatch.setattr(ranks, "_store", distributed.HashStore)
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_group", object)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    with pytest.raises(RuntimeError, match=r"rank 1 heard nothing of rank 0's decisions for 0.2 s: call .*enable\(\)"):
        ct.enable()
    assert ct.dispatch.routing.settings_in_force() is None


def test_a_rank_without_a_gpu_of_its_own_says_so(monkeypatch):
    class Store(dict):
        def compare_set(self, key, expected, wanted):
            return self.setdefault(key, wanted).encode()

    store = Store()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: type("P", (), {"uuid": f"GPU-{number}"}))
    for rank, number, told in ((0, 0, False), (1, 1, False), (2, 1, True)):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(ranks, "_warned", set())
        if told:
            with pytest.warns(ConvDispatchWarning, match="rank 2 has no GPU of its own: rank 1 uses device cuda:1"):
                ranks._own_device(store, number)
        else:
            ranks._own_device(store, number)
