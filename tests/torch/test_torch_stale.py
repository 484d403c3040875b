"""Weights that are written where PyTorch's version counter does not see it: no result of what they were before."""

import copy
import gc
import weakref

import pytest
import torch
from torch_checks import error

import convdispatch.torch as ct
from convdispatch.selection.prepared import Constant
from convdispatch.torch import sampled, weights
from convdispatch.torch.data_reads import Reads
from convdispatch.torch.sampled import Sample, together

pytestmark = pytest.mark.usefixtures("counted")
nn, F = torch.nn, torch.nn.functional
MODES = {"inference": torch.inference_mode, "no_grad": torch.no_grad}


def net(frozen=False):
    torch.manual_seed(3)
    made = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)).eval()
    return made.requires_grad_(not frozen)


def right(model, x, limit=1e-5):
    """Whether the model's result under enable() is that of its weights as they are."""
    with ct.enable():
        y = model(x)
    twin = copy.deepcopy(model).double()
    return error(y, twin(x.double())) < limit


def _clamp(p, model):
    p.data.clamp_(-0.03, 0.03)


def _clamp_few(p, model):
    """As late in WGAN's training, where only the largest value is beyond the bound."""
    bound = float(p.detach().abs().flatten().kthvalue(p.numel() - 1).values)
    p.data[p.data.abs() > bound] = 30.0
    model(torch.randn(1, 8, 6, 6))
    p.data.clamp_(-bound, bound)


def _vector(p, model):
    values = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(values * 1.5, model.parameters())


def _load(p, model):
    state = {name: value * 1.5 for name, value in model.state_dict().items()}
    with torch.inference_mode(False):
        model.load_state_dict(state)


def _set(p, model):
    with torch.inference_mode(False), torch.no_grad():
        p.set_((p * 1.5).contiguous())


def _copy_counted(p, model):
    with torch.inference_mode(False), torch.no_grad():
        p.copy_(p * 1.5)


def _new(p, model):
    p.data = p.data * 1.5


def _turned(p, model):
    if p.ndim == 4 and p.shape[0] == p.shape[1]:
        p.data = p.data.transpose(0, 1)


def _few(p, model):
    """Single elements, far from one another."""
    if p.ndim == 4 and p.shape[2] == 3:
        for place in ((3, 5, 1, 1), (9, 2, 0, 2), (17, 7, 2, 0), (28, 1, 1, 2)):
            p.data[place] += 3.0


WRITES = {
    "few": _few,
    "clamp": _clamp,
    "clamp of one value": _clamp_few,
    "sub": lambda p, model: p.data.sub_(0.01),
    "add of a gradient": lambda p, model: p.data.add_(torch.randn_like(p), alpha=-0.01),
    "mean of models": lambda p, model: p.data.mul_(0.9).add_(torch.randn_like(p) * 0.1),
    "new": _new,
    "copy": lambda p, model: p.data.copy_(p.data * 1.5),
    "copy, counted": _copy_counted,
    "prune": lambda p, model: p.data.mul_(p.data.abs() > p.data.abs().min()),
    "turned": _turned,
    "vector": _vector,
    "load": _load,
    "set": _set,
    "numpy": lambda p, model: p.detach().numpy().__imul__(2),
    "one channel": lambda p, model: p.data[1].zero_(),
}


@pytest.mark.parametrize("frozen", [False, True], ids=["learns", "frozen"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_between_two_calls(write, mode, frozen):
    model, x = net(frozen), torch.randn(2, 8, 9, 9)
    with MODES[mode]():
        for _ in range(2):
            assert right(model, x)
        for _ in range(2):
            for p in list(model.parameters()):
                WRITES[write](p, model)
            assert right(model, x)


@pytest.mark.parametrize("write", ["few", "clamp", "sub", "new", "copy", "load", "mean of models", "numpy"])
def test_a_write_to_a_fused_model(write):
    model = nn.Sequential(nn.Conv2d(8, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 1)).eval()
    fused, x = ct.convert(model, fuse=True), torch.randn(2, 8, 9, 9)

    def check():
        assert error(fused(x), copy.deepcopy(fused).double()(x.double())) < 1e-5

    with torch.inference_mode():
        for _ in range(2):
            check()
        for _ in range(2):
            for p in fused.parameters():
                WRITES[write](p, fused)
            check()
            check()


@pytest.mark.parametrize("place", range(0, 9216, 1999))
def test_a_write_to_one_element(place):
    """As whoever ablates a model writes it; a sample of the memory misses it ten times of eleven."""
    model, x = net(True), torch.randn(2, 8, 9, 9)
    for value in (9.0, 0.0):
        assert right(model, x)
        model[2].weight.data.view(-1)[place] = value
    assert right(model, x)


@pytest.mark.parametrize("mode", MODES)
def test_parameters_can_be_swapped(mode):
    """PyTorch refuses tensors that have a weak reference; modules swap theirs where torch.__future__ asks for it."""
    model, x = net(True), torch.randn(2, 8, 9, 9)
    with MODES[mode]():
        assert right(model, x)
    for p in model.parameters():
        torch.utils.swap_tensors(p, nn.Parameter(p.detach() * 1.5, requires_grad=False))
    with MODES[mode]():
        assert right(model, x)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.bfloat16().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    with MODES[mode]():
        assert right(model, x)


def test_clipping_of_a_critic_between_its_steps():
    """WGAN: train with gradients, clip through .data, look at the score in inference mode."""
    critic, x = net(), torch.randn(4, 8, 8, 8)
    steps = torch.optim.RMSprop(critic.parameters(), lr=5e-3)
    for _ in range(3):
        with ct.enable():
            critic(x).square().mean().backward()
        steps.step()
        with torch.inference_mode():
            assert right(critic, x)
        for p in critic.parameters():
            p.data.clamp_(-0.02, 0.02)
        with torch.inference_mode():
            assert right(critic, x)


def test_an_optimizer_of_the_old_style():
    model, x = net(), torch.randn(2, 8, 8, 8)
    for _ in range(3):
        with ct.enable():
            model(x).square().mean().backward()
        for p in model.parameters():
            p.data.sub_(0.05 * p.grad.data)
            p.grad = None
        with torch.inference_mode():
            assert right(model, x)


@pytest.mark.parametrize("mode", MODES)
def test_means_of_models(mode):
    model, x = net(), torch.randn(2, 8, 8, 8)
    mean, swa = copy.deepcopy(model).requires_grad_(False), torch.optim.swa_utils.AveragedModel(model)
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with ct.enable():
            model(x).square().mean().backward()
        steps.step()
        for p, of in zip(mean.parameters(), model.parameters()):
            p.data.mul_(0.9).add_(of.data, alpha=0.1)
        swa.update_parameters(model)
        with MODES[mode]():
            assert right(mean, x)
            assert right(swa, x)


def test_a_step_with_gradients_ends_what_was_packed():
    """Frozen for the generator's step, then trained: the write is one that no sample sees."""
    critic, x = nn.Conv2d(64, 64, 3), torch.randn(1, 64, 8, 8)
    with ct.enable():
        critic.requires_grad_(False)(x)
        critic.requires_grad_(True)(x)
        for p in critic.parameters():
            values = p.detach().numpy().reshape(-1)
            order = values.argsort()
            values[order[len(order) // 2 - 9 : len(order) // 2 + 9]] += 0.05
        critic.requires_grad_(False)
    assert right(critic, x)
    with ct.enable():  # by the same kernel, whose error on matrix registers is 5e-6, nothing is left between them
        assert error(critic(x), copy.deepcopy(critic)(x)) < 1e-6


def test_shared_weights():
    one, other, x = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), torch.randn(1, 16, 8, 8)
    other.weight = one.weight
    model = nn.Sequential(one, other).eval()
    with torch.inference_mode():
        assert right(model, x)
        one.weight.data.mul_(1.5)
        assert right(model, x)
    view = nn.Parameter(one.weight.data, requires_grad=False)  # another tensor of the same memory
    with ct.enable():
        torch.nn.functional.conv2d(x, view)
        with torch.no_grad():
            one.weight.mul_(2)
        got = torch.nn.functional.conv2d(x, view)
    assert error(got, torch.nn.functional.conv2d(x.double(), view.double())) < 1e-5


SEEN = {
    "all": lambda w, flat: w.mul_(1.25),
    "greatest": lambda w, flat: w.clamp_(max=float(w.max()) * 0.9),
    "least": lambda w, flat: w.clamp_(min=float(w.min()) * 0.9),
    "pruned": lambda w, flat: flat.__setitem__(int(flat.abs().argmin()), 0),
    "strong row": lambda w, flat: w[int(_norms(w).argmax())].mul_(0.75),
    "weak row": lambda w, flat: w[int(_norms(w).argmin())].zero_(),
    "last of few": lambda w, flat: flat[-1:].add_(1) if w.nbytes <= 4096 else w.add_(1),
}


def _norms(w):
    return w.double().flatten(1).norm(dim=1)


@pytest.fixture
def by_python(monkeypatch):
    """Samples that Python compares, as where there is no native module."""

    def made(tensor):
        with monkeypatch.context() as patch:
            patch.setattr(sampled.loading, "module", lambda: None)
            return Sample.of(tensor)

    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(4, 3, 3, 3), (64, 32, 3, 3), (64, 33, 3, 3), (7, 1000, 1)], ids=str)
def test_what_a_sample_sees(shape, dtype, by_python):
    torch.manual_seed(1)
    for form in [torch.contiguous_format] + [torch.channels_last] * (len(shape) == 4):
        w = torch.randn(shape).to(dtype).contiguous(memory_format=form)
        flat = torch.as_strided(w, (w.numel(),), (1,))
        for name, write in SEEN.items():
            samples = Sample.of(w), by_python(w)
            assert [each.holds() for each in samples] == [True, True]
            write(w, flat)
            assert [each.holds() for each in samples] == [False, False], name
        flat.zero_()
        assert Sample.of(w).holds()
    assert Sample.of(torch.randn(8, 8, 8)[:, ::2]) is None


def test_the_native_sample_is_pythons(by_python):
    """Each element of a tensor by itself; and samples together see what one of them sees."""
    torch.manual_seed(2)
    w, others = torch.randn(16, 17, 3, 3), [torch.randn(5), torch.randn(3000)]
    sample, own, flat, seen = Sample.of(w), by_python(w), w.view(-1), 0
    joined = together([Sample.of(others[0]), sample, Sample.of(others[1])])
    assert joined()
    for at in range(flat.numel()):
        before = float(flat[at])
        flat[at] = before + 1
        held = own.holds()
        assert sample.holds() is held
        assert joined() is held
        seen += not held
        flat[at] = before
    assert joined()
    assert 16 * 48 <= seen <= 16 * 60  # about 50 runs, and extremes
    others[1] += 1
    assert sample.holds()
    assert not joined()
    assert together([])()


def test_reads_of_data_are_seen_without_looking_at_memory():
    """What CUDA's parameters rest on, where a sample would wait for the device."""
    parameter, other = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    seen = Reads(parameter)
    other.data.mul_(2)
    assert not seen.since()
    parameter.data.mul_(2)
    assert seen.since()
    assert parameter.tolist() == [2, 2, 2]
    seen = Reads(parameter)
    alias = parameter.data
    assert seen.since()
    seen = Reads(parameter)
    assert seen.since(), "somebody may write through it still"
    del alias
    assert not seen.since()
    parameter.data = torch.zeros(3)
    assert parameter.tolist() == [0, 0, 0]
    assert torch.equal(copy.deepcopy(parameter), parameter)


# --- packed forms of constant weights -------------------------------------------------------------------------------


def test_constant_weights_are_packed_once_and_again_when_they_change(monkeypatch):
    packed = []
    own = Constant.packed
    monkeypatch.setattr(Constant, "packed", lambda self, *rest: packed.append(self) or own(self, *rest))
    monkeypatch.setenv("CONVDISPATCH_TIER", "full")  # for both sizes of the layer
    x, layer = torch.randn(1, 64, 16, 16), torch.nn.Conv2d(64, 64, 3, padding=1)  # any processor packs them
    with ct.enable(), torch.inference_mode():
        for change in (None, lambda w: w.mul_(2), lambda w: w.copy_(torch.randn_like(w))):
            if change:
                with torch.inference_mode(False), torch.no_grad():
                    change(layer.weight)
            for _ in range(3):
                y = layer(x)
            assert error(y, F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)) < 1e-5
        assert y.is_inference()
        with torch.inference_mode(False), torch.no_grad():
            layer.weight.data = torch.randn_like(layer.weight)
        assert error(layer(x), F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)) < 1e-5
    assert len({id(each) for each in packed}) == 4, "packed by version and address"
    packed.clear()
    with ct.enable(), torch.no_grad():
        layer(x)
        layer.weight.data.mul_(2)
        assert error(layer(x), F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)) < 1e-5
    assert not packed
    other = torch.randn(1, 64, 15, 16)
    with ct.enable():
        layer.requires_grad_(False)(other)
    assert packed
    assert ct.counters()["left"] == 0


def test_weights_that_go_take_their_packed_forms_along():
    layer = torch.nn.Conv2d(8, 8, 3).requires_grad_(False)
    with ct.enable():
        layer(torch.randn(1, 8, 8, 8))
    key, held = id(layer.weight), weakref.ref(weights._seen[id(layer.weight)].packed.__class__)
    del layer
    gc.collect()
    assert key not in weights._seen
    assert held


def test_weights_made_anew_each_time_are_not_constant():
    x, scale = torch.randn(1, 4, 6, 6), torch.randn(4, 4, 3, 3)
    with ct.enable(), torch.inference_mode():
        for factor in range(1, 5):
            w = scale * factor
            assert error(F.conv2d(x, w), F.conv2d(x.double(), w.double())) < 1e-5
