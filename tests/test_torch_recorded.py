"""Fused models that torch.fx cannot trace: recorded at their calls, by shapes and all other arguments."""

from __future__ import annotations

import collections
import contextlib
import copy
import io
import random
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from torch_checks import error  # noqa: E402 (torch is asked for first)

import convdispatch.torch as ct  # noqa: E402
from convdispatch.torch.fusion import forms, recording  # noqa: E402

nn, F = torch.nn, torch.nn.functional
FACTOR = 2.0


class Net(nn.Module):
    """What torch.fx cannot trace: it decides by the number of its arguments."""

    gain = 1.0

    def __init__(self, body=None):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.norm, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)
        self.register_buffer("calls", torch.ones(()))
        self.scale, self.cache, self.settings = 1.0, {}, Settings()
        self.body = body or (lambda m, x: x)

    def forward(self, *args, **kwargs):
        if len(args) + len(kwargs) > 9:
            raise TypeError("too many")
        return self.body(self, *args, **kwargs)

    def layers(self, x):
        return self.two(F.relu(self.norm(self.one(x))))


class Settings:
    def __init__(self):
        self.shift, self.levels = 0.0, [1, 2]


def made(body):
    model = Net(body).eval()
    with torch.no_grad():
        model.norm.running_mean.normal_()
        model.norm.running_var.uniform_(0.5, 2)
    fused = ct.convert(model, fuse=True)
    assert "" in ct.fusion(fused).left
    return model, fused


def picture(size=6, seed=0):
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(seed))


def records(fused):
    """The forms of the whole model."""
    return [what for name, what in ct.fusion(fused).forms.items() if name.startswith("the model")]


def alike(fused, model, *args, **kwargs):
    """Both calls' results are the same, in structure too."""
    with torch.no_grad():
        got, wanted = fused(*args, **kwargs), model(*args, **kwargs)
    flat, structure = torch.utils._pytree.tree_flatten(got)
    theirs, same = torch.utils._pytree.tree_flatten(wanted)
    assert structure == same
    for one, other in zip(flat, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            assert one.shape == other.shape
            assert error(one, other) < 1e-5
        else:
            assert one == other
    return got


Answer = collections.namedtuple("Answer", "y size")


def test_other_arguments_have_records_of_their_own():
    def body(m, x, y=None, power=1, mode="sum", *, pair=False):
        out = m.layers(x) * power
        out = out if y is None else out + y if mode == "sum" else out * y
        return Answer(out, x.shape[-1]) if pair else {"y": [out, x]}

    model, fused = made(body)
    x, y = picture(), torch.randn(1, 4, 6, 6)
    for call in ((x,), (x, y, 1, "product"), (x, None, True)) * 2:
        got = alike(fused, model, *call)
        assert got["y"][1] is x, "an answer that is an input is that very one"
    alike(fused, model, x, pair=True)
    assert len(fused.records._made) == 4
    assert all("2 convolutions" in each for each in records(fused)), records(fused)
    assert all("convolutions" not in what for name, what in ct.fusion(fused).forms.items() if name[:3] != "the")


def test_an_argument_given_twice_is_told_from_two():
    model, fused = made(lambda m, x, y: m.layers(x) + (1 if x is y else 2))
    x = picture()
    for y in (x, x.clone(), x):
        alike(fused, model, x, y)
    assert len(fused.records._made) == 2


def test_numbers_that_vary_are_recorded_twice_and_then_the_parts_are():
    def body(m, x, step):
        return m.stem(x, 1) * step

    class Stem(Net):
        pass

    model = Net(body)
    model.stem = Stem(lambda m, x, n: m.layers(x) * n)
    model.eval()
    fused, x = ct.convert(model, fuse=True), picture()
    for step in range(6):
        alike(fused, model, x, step)
    *recorded, why = records(fused)
    assert len(recorded) == recording.VALUES
    assert "given other numbers" in why
    assert "2 convolutions" in ct.fusion(fused).forms["stem, 1x3x6x6, 1"]


def test_sizes_are_bounded(monkeypatch):
    monkeypatch.setattr(forms, "FORMS", 2)
    model, fused = made(lambda m, x: m.layers(x))
    for size in range(3, 13):
        alike(fused, model, picture(size))
    assert len(fused.records._made) == 2


def write_attribute(m, x):
    m.scale += 1
    return m.layers(x) * m.scale


def write_list(m, x):
    m.settings.levels.append(x.shape[0])
    return m.layers(x) * len(m.settings.levels)


def write_buffer(m, x):
    m.calls += 1
    return m.layers(x) * m.calls


def write_input(m, x):
    y = m.layers(x)
    x.view(-1).add_(1)
    return y


def by_values(m, x):
    return m.layers(x) if x.sum() > 0 else m.layers(x) * 2


def by_answer(m, x):
    return m.layers(x) * x.mean().item()


REFUSED = {
    "an attribute changes at each call": write_attribute,
    "a list changes at each call": write_list,
    "a buffer changes at each call": write_buffer,
    "writes to an input": write_input,
    "its code asks for a value": by_values,
    "asks for a value (aten": by_answer,
    "draws random numbers": lambda m, x: F.dropout(m.layers(x), 0.5, training=True),
    "operator draws of a constant": lambda m, x: m.layers(x) * torch.rand_like(m.calls),
    "random numbers of Python's": lambda m, x: m.layers(x) * random.random(),
    "random numbers of Python's or NumPy's": lambda m, x: m.layers(x) * float(np.random.rand()),
    "a view of an input": lambda m, x: (m.layers(x), x[:, :1]),
    "or a part of the model": lambda m, x: (m.layers(x), m.calls),
    "answers a Settings": lambda m, x: (m.layers(x), m.settings)[0 if x.ndim == 9 else slice(None)],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_a_record_would_not_repeat_runs_as_it_is_written(reason):
    model, fused = made(REFUSED[reason])
    for turn in range(3):
        mine, theirs = picture(seed=turn), picture(seed=turn)
        for each in (random.seed, np.random.seed, torch.manual_seed):
            each(turn)
        with torch.no_grad():
            got = fused(mine)
            for each in (random.seed, np.random.seed, torch.manual_seed):
                each(turn)
            wanted = model(theirs)
        assert torch.equal(mine, theirs)
        first, other = (each[0] if isinstance(each, tuple) else each for each in (got, wanted))
        assert error(first, other) < 1e-5
    assert all("convolutions" not in each for each in records(fused)), records(fused)
    reason = "draws random numbers" if "operator" in reason else reason
    if "changes at each call" not in reason:  # which ends what was found before
        assert any(reason in each for each in records(fused)), records(fused)


CHANGES = {
    "attribute": lambda m: setattr(m, "scale", m.scale + 1),
    "field": lambda m: setattr(m.settings, "shift", m.settings.shift + 1),
    "list": lambda m: m.settings.levels.append(3),
    "dictionary": lambda m: m.cache.update(more=1.0),
    "class": lambda m: setattr(Net, "gain", Net.gain + 1),
    "weight": lambda m: m.two.weight.mul_(2),
    "data": lambda m: m.one.weight.data.mul_(2),
    "bias": lambda m: setattr(m.two, "bias", nn.Parameter(m.two.bias * 3)),
    "layer": lambda m: setattr(m, "two", nn.Conv2d(8, 4, 1, bias=False)),
    "stride": lambda m: setattr(m.one, "stride", (2, 2)),
    "buffer": lambda m: m.calls.fill_(5),
}


def by_state(m, x):
    factor = m.scale * m.gain * FACTOR * len(m.settings.levels) + sum(m.cache.values())
    return m.layers(x) * factor * m.calls + m.settings.shift


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_code_reads_ends_a_record(name):
    _, fused = made(by_state)
    state = fused.records._new_state()
    try:
        assert state.holds()
        with torch.no_grad():
            CHANGES[name](fused)
        assert not state.holds()
    finally:
        Net.gain = 1.0


def test_after_a_change_there_is_another_record():
    model, fused = made(by_state)
    alike(fused, model, picture())
    with torch.no_grad():
        for each in (model, fused):
            for name in ("field", "attribute", "stride"):
                CHANGES[name](each)
    for _ in range(3):
        alike(fused, model, picture())
    assert "convolutions" in records(fused)[0], records(fused)


def test_a_global_that_the_code_names_ends_a_record():
    model, fused = made(lambda m, x: scaled(m.layers(x)))
    alike(fused, model, picture())
    before = FACTOR
    try:
        globals()["FACTOR"] = 7.0
        for _ in range(2):
            alike(fused, model, picture())
    finally:
        globals()["FACTOR"] = before


def scaled(y):
    return y * FACTOR


def test_what_the_first_call_keeps_may_be_kept():
    def body(m, x):
        if "grid" not in m.cache:
            m.cache["grid"] = torch.linspace(0, 1, x.shape[-1])
        return m.layers(x) + m.cache["grid"]

    model, fused = made(body)
    for _ in range(3):
        alike(fused, model, picture())
    assert not isinstance(fused.cache["grid"], torch._subclasses.FakeTensor)
    assert "convolutions" in records(fused)[0], records(fused)
    fused.cache["grid"].mul_(2)
    model.cache["grid"].mul_(2)
    alike(fused, model, picture())


def test_training_gradients_hooks_and_modes_go_by_layers(monkeypatch):
    model, fused = made(lambda m, x: F.dropout(m.layers(x), 0.5, m.training))
    alike(fused, model, picture())
    seen = []

    def unserved():
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            return fused.records.recorded((picture(),), {}) is None

    assert not unserved()
    monkeypatch.setenv("CONVDISPATCH_TORCH_GRAPHS", "0")
    assert unserved()
    monkeypatch.delenv("CONVDISPATCH_TORCH_GRAPHS")
    learning = copy.deepcopy(fused).train()
    with torch.no_grad():
        assert (learning(picture()) == 0).any(), "dropout"
    x = picture().requires_grad_()
    fused(x).sum().backward()
    assert x.grad is not None
    hook = fused.two.register_forward_hook(lambda *_: seen.append(1))
    alike(fused, model, picture())
    alike(fused, model, picture())
    assert len(seen) == 2
    hook.remove()
    with torch.autocast("cpu"):
        assert unserved()
    with torch.inference_mode():
        assert fused(picture()).is_inference()
    alike(fused, model, picture())
    assert not unserved()


def test_what_is_drawn_and_not_used_is_no_part_of_an_answer():
    """As transformers' encoders draw which layers are left out, and leave none out where they do not learn."""

    def body(m, x):
        drawn = torch.rand([])
        return m.layers(x) * 2 if m.training and drawn < 0.5 else m.layers(x)

    model, fused = made(body)
    alike(fused, model, picture())
    assert "2 convolutions" in records(fused)[0], records(fused)


def test_copies_files_and_threads():
    model, fused = made(None)
    model.body = fused.body = Layers()
    alike(fused, model, picture())
    twin = copy.deepcopy(fused)
    assert isinstance(twin, Net)
    assert type(twin).__name__ == "Net"
    twin.two.weight.data.mul_(2)
    shallow = copy.copy(fused)
    assert shallow.records is not fused.records
    with torch.no_grad():
        assert (
            error(
                twin(picture()) - twin.two.bias.reshape(1, -1, 1, 1),
                2 * (model(picture()) - twin.two.bias.reshape(1, -1, 1, 1)),
            )
            < 1e-5
        )
    place = io.BytesIO()
    torch.save(fused, place)
    place.seek(0)
    loaded = torch.load(place, weights_only=False)
    alike(loaded, model, picture())
    assert loaded.state_dict().keys() == fused.state_dict().keys()
    with torch.no_grad():
        wanted = [model(picture(seed=seed)) for seed in range(8)]
    errors = []

    def work(seed):
        with torch.no_grad():
            errors.append(error(fused(picture(seed=seed)), wanted[seed]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(errors) == 8
    assert max(errors) < 1e-5


class Layers:
    def __call__(self, m, x):
        return m.layers(x)


def test_a_record_that_answers_otherwise_is_refused(monkeypatch):
    model, fused = made(lambda m, x: m.layers(x))
    monkeypatch.setattr(recording.Forms, "_make", lambda *_: lambda x: model(x) + 1)
    for _ in range(2):
        alike(fused, model, picture())
    assert "other numbers" in records(fused)[0]


def test_what_changes_at_each_call_is_not_asked_for_ever():
    model, fused = made(lambda m, x: m.layers(x) * m.scale)
    for turn in range(12):
        fused.scale = model.scale = float(turn + 1)
        alike(fused, model, picture())
    assert fused.records._changes > recording.CHANGES
