"""The device "opencl": training as on the CPU, views that alias, saving, copying, printing; fallbacks are counted.

In a process of their own: PyTorch takes one added device a process, and keeps it.
"""

import json
import subprocess
import sys

import pytest

PREAMBLE = """
import copy, io, json, sys, traceback, warnings
import torch
import convdispatch.torch as ct
ct.register_device()
torch.manual_seed(0)

def close(device, host, limit=1e-5):
    difference = (device.cpu().double() - host.double()).norm() / host.double().norm().clamp_min(1e-30)
    assert device.device.type == "opencl" and device.shape == host.shape, (device.device, device.shape, host.shape)
    assert difference <= limit, (float(difference), device, host)
"""

PROGRAMS = {
    "twenty steps follow the cpu": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding="same", bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.even = torch.nn.Conv2d(8, 8, 4, padding="same", groups=2)
        self.up = torch.nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = torch.nn.Linear(4, 5)
    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = torch.nn.functional.max_pool2d(torch.sigmoid(self.even(x)) + x, 2)
        return self.last(torch.tanh(self.up(x)).mean((2, 3)))

warnings.simplefilter("ignore")
host = Net()
device = copy.deepcopy(host).to("opencl")
data, labels = torch.randn(20, 4, 3, 12, 12), torch.randint(0, 5, (20, 4))
for make in (lambda p: torch.optim.SGD(p, 0.05, momentum=0.9), lambda p: torch.optim.Adam(p, 0.01)):
    optimizers = make(host.parameters()), make(device.parameters())
    for step in range(10):
        losses = []
        for net, optimizer, name in zip((host, device), optimizers, ("cpu", "opencl")):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(data[step].to(name)), labels[step].to(name))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) < 2e-4 * max(1, losses[0]), (step, losses)
for (name, mine), theirs in zip(device.state_dict().items(), host.state_dict().values()):
    if mine.is_floating_point():
        close(mine, theirs, 1e-3)
counted = ct.counters()
assert (counted["ours"], counted["left"]) == (120, 0), counted
on_host = {reason.split(":")[0] for reason in counted["reasons"]}
own = "mul.out relu.default addcdiv.out sigmoid.out convolution.default threshold_backward.grad_input"
assert not on_host & {"aten." + name for name in own.split()}, on_host
assert counted["fallback"]
""",
    "views alias and copies keep every type": """
names = "float32 float64 float16 bfloat16 int64 int8 bool complex64"
for dtype in (getattr(torch, name) for name in names.split()):
    host = (torch.randn(4, 6) * 5).to(dtype)
    device = host.to("opencl")
    assert torch.equal(device.cpu(), host), dtype
    assert torch.equal(device.t().cpu(), host.t()), dtype
    assert torch.equal(device[1:, ::2].contiguous().cpu(), host[1:, ::2]), dtype
    device[:, 1] = host[:, 0].to("opencl")
    device.t()[2, 1:3] = host[0, :2]
    old = host.clone()
    host[:, 1] = old[:, 0]
    host.t()[2, 1:3] = old[0, :2]
    assert torch.equal(device.cpu(), host), dtype
base = torch.zeros(2, 3, 4, device="opencl")
view = base.view(6, 4)[1:5].transpose(0, 1)
view.add_(1)
assert base.cpu().sum() == 16
assert base.unfold(2, 2, 1).shape == (2, 3, 3, 2)
assert torch.arange(5, device="opencl").cpu().tolist() == [0, 1, 2, 3, 4]
assert torch.randn(3, device="opencl").cpu().isfinite().all()
x = torch.randn(3, 4)
close(torch.abs(x.to("opencl")), x.abs())
close(x.to("opencl") + 1, x + 1)
close(2 * x.to("opencl") * torch.tensor(3.0), 6 * x)
close(x.to("opencl").sum(1), x.sum(1))
close(x.to("opencl").sum(), x.sum())
close(x.to("opencl").mean((0,), keepdim=True), x.mean((0,), keepdim=True))
close(x.to("opencl") @ x.t().to("opencl"), x @ x.t())
close(torch.cat([x.to("opencl"), x.to("opencl")]), torch.cat([x, x]))
values, places = x.to("opencl").max(1)
assert torch.equal(values.cpu(), x.max(1).values)
out = torch.empty(0, device="opencl")
torch.exp(x.to("opencl"), out=out)
close(out, x.exp())
""",
    "saving copying printing and gradients": """
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to("opencl")
stream = io.BytesIO()
torch.save(net.state_dict(), stream)
stream.seek(0)
state = torch.load(stream)
for name, value in net.state_dict().items():
    assert state[name].device.type == "opencl"
    assert torch.equal(state[name].cpu(), value.cpu())
other = copy.deepcopy(net)
other[1].running_mean.add_(1)
assert not torch.equal(other[1].running_mean.cpu(), net[1].running_mean.cpu())
plain = torch.randn(3, device="opencl")
twin = copy.deepcopy(plain)
twin.zero_()
assert plain.cpu().abs().sum() > 0
assert "opencl" in repr(plain) and f"{plain[0].item():.4f}" in repr(plain), repr(plain)
x = torch.randn(2, 3, 6, 6, device="opencl", requires_grad=True)
w = torch.randn(4, 3, 3, 3, device="opencl", requires_grad=True)
y = torch.nn.functional.conv2d(x, w)
(first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
(second,) = torch.autograd.grad(first.sum(), w)
hx, hw = x.detach().cpu().requires_grad_(), w.detach().cpu().requires_grad_()
hy = torch.nn.functional.conv2d(hx, hw)
(hfirst,) = torch.autograd.grad(hy.square().sum(), hx, create_graph=True)
(hsecond,) = torch.autograd.grad(hfirst.sum(), hw)
close(first, hfirst)
close(second, hsecond)
try:
    torch.nn.functional.conv2d(x, w[:, :2])
except RuntimeError as error:
    assert "channels" in str(error)
else:
    raise AssertionError("accepted")
assert ct.register_device() == torch.device("opencl", 0)
try:
    torch.Generator(device="opencl")
except RuntimeError:
    pass
torch.opencl.synchronize()
""",
}
RUN = """
found = {}
for name, text in json.loads(sys.argv[1]).items():
    ct.reset_counters()
    torch.manual_seed(0)
    try:
        exec(text, globals().copy())
    except Exception:
        found[name] = traceback.format_exc()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def failures():
    """What each of the programs raised, by name."""
    command = [sys.executable, "-c", PREAMBLE + RUN, json.dumps(PROGRAMS)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_device(failures, name):
    assert name not in failures, failures[name]
