"""What people do with a compiled model, through ``torch.compile(model, backend="convdispatch")``."""

import copy
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from paths import ROOT
from torch.utils.checkpoint import checkpoint
from torch_checks import error, right
from torch_small import Net

import convdispatch.torch as ct
from convdispatch.torch.graph.forms import GraphForms

pytestmark = pytest.mark.usefixtures("without_compiler")
nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    with ct.enable(solver="im2col*"):
        yield
    torch.compiler.reset()


@pytest.fixture
def built(monkeypatch):
    """The forms that were built, as what each was called with."""
    found, build = [], GraphForms._build

    def counted(self, inputs, *more):
        found.append(
            next(tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor) and x.ndim == 4 and x.shape[0] == 1)
        )
        return build(self, inputs, *more)

    monkeypatch.setattr(GraphForms, "_build", counted)
    return found


def compiled(model, **options):
    return torch.compile(model, backend="convdispatch", **options)


def graphs() -> int:
    """How many graphs Dynamo has captured."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def picture(size: int = 6):
    return torch.randn(1, 3, size, size + 1)


@pytest.mark.parametrize("how", ["as they come", "mark_dynamic", "dynamic=True", "convert"])
@torch.no_grad()
def test_ten_sizes_in_turn_make_ten_forms_and_no_python(how, built):
    model = Net().eval()
    made = ct.convert(model, fuse=True) if how == "convert" else compiled(model, dynamic=how == "dynamic=True" or None)
    # A copy reads the parameters' .data, so there is one before all calls.
    pictures, exact = [picture(size) for size in range(4, 14)], copy.deepcopy(model).double()
    for turn in range(2):
        for x in pictures:
            if how == "mark_dynamic":
                torch._dynamo.mark_dynamic(x, (2, 3))
            assert error(made(x), exact(x.double())) < 1e-5
        if not turn:
            captured = graphs()
            assert captured == (2 if how in ("as they come", "convert") else 1)
    assert graphs() == captured, "no size is captured anew"
    # The graph of the first size alone is not used again once there is one for all sizes.
    assert len(built) == 10 + (captured == 2), f"a form a size, which later turns use: {built}"
    told = ct.fusion(made).forms.values()
    assert len(told) == len(built)
    assert all("2 convolutions" in each for each in told)


class Breaks(Net):
    def middle(self, y):
        return y * float(y.sum().item())  # the line that is told


@pytest.mark.parametrize("door", ["compile", "convert"])
@torch.no_grad()
def test_fusion_tells_of_a_compiled_model(door):
    assert "convdispatch" in torch._dynamo.list_backends()

    def opened(model):
        return compiled(model) if door == "compile" else ct.convert(model, fuse=True)

    made = opened(Breaks().eval())
    assert str(ct.fusion(made)) == "no call was compiled yet"
    made(picture())
    told = ct.fusion(made)
    (where,) = told.breaks
    assert "test_torch_backend_uses.py:" in where
    assert "item()" in where
    number = int(where.split("test_torch_backend_uses.py:")[1].split(":")[0])
    assert "the line that is told" in Path(__file__).read_text().splitlines()[number - 1]
    assert f"graph break: {where}" in str(told)
    assert sum("1 convolutions" in each for each in told.forms.values()) == 2
    other = opened(Net().eval())
    assert ct.fusion(other).forms == {}, "of its own graphs alone"
    other(picture())
    assert len(ct.fusion(nn.Sequential(other)).forms) == 1
    assert ct.fusion(made) == told


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("where", ["inside", "around"])
def test_checkpointing(where, reentrant):
    class Checked(Net):
        def middle(self, y):
            return checkpoint(torch.sin, self.two(y), use_reentrant=reentrant).repeat(1, 2, 1, 1)

    model, x = Checked() if where == "inside" else Net(), picture().requires_grad_()
    exact, wide = copy.deepcopy(model).double(), x.detach().double().requires_grad_()
    exact(wide).square().sum().backward()
    made = compiled(model)
    for _ in range(2):
        model.zero_grad()
        x.grad = None
        y = made(x) if where == "inside" else checkpoint(made, x, use_reentrant=reentrant)
        y.square().sum().backward()
        assert error(x.grad, wide.grad) < 1e-4
        for mine, own in zip(model.parameters(), exact.parameters(), strict=True):
            assert error(mine.grad, own.grad) < 1e-4
    assert ct.counters()["convolution_backward"] >= 4


def _ddp_of_compiled(net):
    return nn.parallel.DistributedDataParallel(compiled(net))


def _compiled_ddp(net):
    return compiled(nn.parallel.DistributedDataParallel(net))


def _compiled_fsdp(net):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    for layer in (net.one, net.two):
        fully_shard(layer, mesh=mesh)
    return compiled(fully_shard(net, mesh=mesh))


@pytest.mark.parametrize("wrap", [_ddp_of_compiled, _compiled_ddp, _compiled_fsdp])
def test_trainings_of_several_ranks(group, wrap):
    net, x = Net(), picture()
    exact = copy.deepcopy(net).double()
    exact(x.double()).square().sum().backward()
    made = wrap(net)
    for _ in range(2):
        made.zero_grad()
        made(x).square().sum().backward()
    for mine, own in zip(net.parameters(), exact.parameters(), strict=True):
        assert error(getattr(mine.grad, "full_tensor", lambda mine=mine: mine.grad)(), own.grad) < 1e-4
    assert ct.counters()["ours"]


@pytest.mark.parametrize("door", ["compile", "convert"])
@torch.no_grad()
def test_exported_programs_are_fused(door):
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval(),
        picture(),
    )
    model[1].running_mean.normal_()
    sizes = {0: torch.export.Dim("n", max=8)}
    program = torch.export.export(model, (torch.cat([x, x]),), dynamic_shapes=({**sizes},))
    made = compiled(program.module()) if door == "compile" else ct.convert(program, fuse=True)
    for count in (2, 3, 2):
        right(made, model, torch.randn(count, 3, 6, 7))
    assert all("2 convolutions" in each for each in ct.fusion(made).forms.values()), ct.fusion(made)


@torch.no_grad()
def test_aot_inductor_is_left_to_pytorch_in_words():
    """A package runs without Python, and so without this one: its convolutions are PyTorch's."""
    program = torch.export.export(Net().eval(), (picture(),))
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert "aten.conv2d.default" in targets
    assert not [name for name in targets if "convdispatch" in name], "a package of PyTorch's operators alone"
    assert "AOTInductor" in (ROOT / "docs" / "use" / "pytorch.md").read_text()


class Asking(nn.Module):
    """Takes objects and lists, writes a cache, has methods other than ``forward``."""

    def __init__(self):
        super().__init__()
        self.conv, self.back = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
        self.register_buffer("cache", torch.zeros(1, 4, 6, 7), persistent=False)

    def encode(self, x):
        return torch.tanh(self.conv(x))

    def decode(self, y):
        return self.back(y)

    def forward(self, pictures, options, memory):
        y = sum(self.encode(x) for x in pictures) * options.gain
        self.cache.copy_(y)
        memory["last"] = y
        memory.setdefault("all", []).append(y.mean())
        return {"y": self.decode(y), "count": len(pictures)}


@torch.no_grad()
def test_objects_lists_methods_and_caches():
    model = Asking().eval()
    made, exact = compiled(model), copy.deepcopy(model).double()
    ours, theirs = {}, {}
    for count, gain in ((1, 2.0), (2, 2.0), (2, 3.0), (1, 2.0)):
        pictures, options = [picture() for _ in range(count)], types.SimpleNamespace(gain=gain)
        got, wanted = made(pictures, options, ours), exact([x.double() for x in pictures], options, theirs)
        assert error(got["y"], wanted["y"]) < 1e-5
        assert got["count"] == count
        assert error(ours["last"], theirs["last"]) < 1e-5
        assert error(model.cache, exact.cache) < 1e-5
    assert error(torch.stack(ours["all"]), torch.stack(theirs["all"])) < 1e-4
    encode, decode = compiled(model.encode), compiled(model.decode)
    x = picture()
    assert error(decode(encode(x)), exact.decode(exact.encode(x.double()))) < 1e-5
    assert ct.counters()["ours"]


WRITES = {
    "in place": lambda p: p.mul_(1.5),
    "copied": lambda p: p.copy_(torch.randn_like(p)),
    "clamped": lambda p: p.clamp_(-0.01, 0.01),
    "by .data": lambda p: setattr(p, "data", p.data * 0.5),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("channels", [pytest.param(4, marks=pytest.mark.full), 40])
def test_weights_made_in_inference_mode_fuse_and_writes_are_seen(write, channels):
    """They have no version counter: address and sample tell of writes."""
    with torch.inference_mode():
        model = nn.Sequential(
            nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4, 3)
        ).eval()
        assert model[0].weight.is_inference()
        made, x = compiled(model), picture(9)

        def exactly():
            y = F.conv2d(x.double(), model[0].weight.double(), model[0].bias.double())
            y = torch.relu(y / (1 + model[1].eps) ** 0.5)
            return F.conv2d(y, model[3].weight.double(), model[3].bias.double())

        for _ in range(3):
            assert error(made(x), exactly()) < 1e-5
        (form,) = ct.fusion(made).forms.values()
        assert "2 convolutions" in form
        for parameter in (model[3].weight, model[0].weight):
            WRITES[write](parameter)
            for _ in range(3):
                assert error(made(x), exactly()) < 1e-5
        assert "2 convolutions" in next(iter(ct.fusion(made).forms.values()))


CUDA_GRAPHS_IN_A_FRESH_PROCESS = """
import torch, convdispatch.torch
model = torch.nn.Conv2d(3, 8, 3).eval()
options = {"engine": "inductor", "triton.cudagraphs": True}
with torch.no_grad():
    torch.compile(model, backend="convdispatch", options=options)(torch.randn(1, 3, 8, 8))
print(torch._C._is_key_in_tls("tree_manager_containers"))
"""


def test_cuda_graphs_are_kept_by_the_thread_that_calls():
    """A graph is compiled in a thread of its own; PyTorch 2.11 keeps CUDA graphs only in the first thread that imports
    their module, and fails in any other."""
    command = [sys.executable, "-W", "ignore", "-c", CUDA_GRAPHS_IN_A_FRESH_PROCESS]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert finished.stdout.strip() == "True", finished.stderr
