"""enable(): PyTorch's own calls, forward and backward, computed here; what is left is counted with its reason."""

import os
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from threads import together
from torch_checks import LIMIT, error, gradients, total

import convdispatch as cd
import convdispatch.torch as ct
from convdispatch.api.policy import current_policy
from convdispatch.calls.framework import autotune
from convdispatch.device import runtime
from convdispatch.device.commands import host_memory
from convdispatch.selection import dispatch
from convdispatch.selection.records.perfdb import perfdb, scope_of
from convdispatch.torch.dispatch import engine
from convdispatch.torch.eager import planning
from convdispatch.torch.requirements import lacking
from convdispatch.torch.settings import switches

pytestmark = pytest.mark.usefixtures("counted")
F = torch.nn.functional


# A shape and its near misses: (function, input, weight, options).
CASES = {
    "conv1d": (F.conv1d, (2, 4, 9), (6, 4, 3), {"padding": 1}),
    "conv2d": (F.conv2d, (2, 4, 9, 7), (6, 4, 3, 3), {"padding": 1}),
    "stride": (F.conv2d, (2, 4, 9, 7), (6, 4, 3, 3), {"stride": (2, 1)}),
    "dilation": (F.conv2d, (2, 4, 9, 9), (6, 4, 3, 3), {"dilation": 2, "padding": (2, 1)}),
    "groups": (F.conv2d, (2, 4, 7, 7), (6, 2, 3, 3), {"groups": 2}),
    "depthwise": (F.conv2d, (2, 4, 7, 7), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    "1x1": (F.conv2d, (2, 4, 7, 7), (6, 4, 1, 1), {}),
    "same": (F.conv2d, (2, 4, 7, 7), (6, 4, 3, 5), {"padding": "same"}),
    "same, even": (F.conv2d, (2, 4, 7, 7), (6, 4, 4, 2), {"padding": "same"}),
    "unbatched": (F.conv2d, (4, 7, 7), (6, 4, 3, 3), {}),
    "conv3d": (F.conv3d, (2, 3, 5, 6, 7), (4, 3, 3, 3, 3), {"padding": 1}),
    "transpose1d": (F.conv_transpose1d, (2, 4, 7), (4, 6, 3), {"stride": 2}),
    "transpose2d": (F.conv_transpose2d, (2, 4, 7, 7), (4, 6, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "transpose, groups": (F.conv_transpose2d, (2, 4, 7, 7), (4, 3, 3, 3), {"stride": 2, "groups": 2}),
    "transpose3d": (F.conv_transpose3d, (2, 3, 4, 4, 5), (3, 4, 2, 2, 2), {"stride": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name):
    function, shape, kernel, options = CASES[name]
    channels = kernel[1] * options.get("groups", 1) if "transpose" in name else kernel[0]
    tensors = [torch.randn(shape), torch.randn(kernel), torch.randn(channels)]

    def run(x, w, b):
        return function(x, w, b, **options)

    expected = gradients(run, *[tensor.double() for tensor in tensors])
    with ct.enable():
        got = gradients(run, *tensors)
    assert total() == (2, 0), ct.counters()
    for mine, theirs in zip(got, expected):
        assert mine.shape == theirs.shape
        assert error(mine, theirs) < 1e-5


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
def test_dtypes(dtype):
    tensors = [torch.randn(2, 4, 8, 8, dtype=dtype), torch.randn(8, 4, 3, 3, dtype=dtype), torch.randn(8, dtype=dtype)]
    with ct.enable():
        got = gradients(F.conv2d, *tensors)
    assert total() == (2, 0), ct.counters()
    for mine, theirs in zip(got, gradients(F.conv2d, *[tensor.double() for tensor in tensors])):
        assert mine.dtype == dtype
        assert error(mine, theirs) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("ndim", [2, 3])
def test_memory_formats_are_pytorchs(full, thinned, ndim, transposed, dtype):
    thinned(transposed ^ (ndim == 3) ^ (dtype == torch.float64))
    form = {2: torch.channels_last, 3: torch.channels_last_3d}[ndim]
    function = getattr(F, f"conv{'_transpose' if transposed else ''}{ndim}d")
    alike, mixed = [(0, 0), (1, 1)], [(0, 1), (1, 0)]
    pairs = alike + mixed if full else mixed if dtype == torch.float32 else alike
    for places in pairs:
        tensors = [torch.randn((2, 4, *[5] * ndim), dtype=dtype), torch.randn((4, 4, *[3] * ndim), dtype=dtype)]
        tensors = [t.contiguous(memory_format=form) if last else t for t, last in zip(tensors, places)]
        expected = gradients(function, *tensors)
        with ct.enable():
            got = gradients(function, *tensors)
        for mine, theirs in zip(got, expected):
            assert mine.stride() == theirs.stride(), places
            assert error(mine, theirs) < LIMIT[dtype]
    assert total() == (2 * len(pairs), 0), ct.counters()


def test_strided_tensors_and_results_whose_memory_is_used_again(monkeypatch):
    """Strided, shifted and expanded tensors; a large result's memory comes back only when nothing holds it."""
    monkeypatch.setattr(planning, "POOLED_BYTES", 1 << 16)
    monkeypatch.setenv("CONVDISPATCH_TIER", "full")  # for all sizes of the layer
    w = torch.randn(64, 8, 3, 3)
    base = torch.randn(2, 16, 20, 21)
    for x in (base[:, ::2, :, 1:], base[:, 1:9, 2:, :], base[:1, :8].expand(2, -1, -1, -1)):
        with ct.enable():
            y = F.conv2d(x, w, padding=1)
        assert error(y, F.conv2d(x.double(), w.double(), padding=1)) < 1e-5
    assert total() == (3, 0)
    with ct.enable(), torch.no_grad():
        x = torch.randn(4, 8, 31, 33)
        y = F.conv2d(x, w)
        place, kept = y.data_ptr(), y[0, 0].clone()
        view = y[0]
        del y
        assert F.conv2d(x, w).data_ptr() != place, "a view still holds it"
        assert torch.equal(view[0], kept)
        del view
        assert place in {F.conv2d(x, w).data_ptr() for _ in range(4)}


def test_results_are_no_views():
    with ct.enable(), torch.no_grad():
        y = F.conv2d(torch.randn(4, 8, 32, 32), torch.randn(64, 8, 3, 3))
        assert not y._is_view()
        assert y.relu_().min() >= 0


@pytest.mark.parametrize("shape", [(0, 4, 7, 7), (1, 4, 7, 7)])
def test_no_images(shape):
    with ct.enable():
        y, dx, dw = gradients(F.conv2d, torch.randn(shape), torch.randn(6, 4, 3, 3))
    assert (y.shape, dx.shape) == ((shape[0], 6, 5, 5), shape)
    assert shape[0] or not dw.any()
    assert total() == ((2, 0) if shape[0] else (0, 2)), "what has no images is PyTorch's to lay out"


def test_a_plain_call_holds_until_disable_and_blocks_nest():
    x, w = torch.randn(1, 4, 6, 6), torch.randn(4, 4, 3, 3)
    ct.enable()
    F.conv2d(x, w)
    with ct.enable(min_flops=1e12):
        F.conv2d(x, w)
    F.conv2d(x, w)
    ct.disable()
    F.conv2d(x, w)
    assert total() == (2, 1)
    assert list(ct.counters()["reasons"]) == ["convolution: fewer than min_flops=1e+12 operations"]


def test_the_solver_is_the_callers():
    with ct.enable(solver="im2col*"):
        gradients(F.conv2d, torch.randn(1, 4, 6, 6), torch.randn(4, 4, 3, 3))
    assert all(name.startswith("im2col") for name in ct.counters()["solvers"])
    with ct.enable(solver="nobody"):
        F.conv2d(torch.randn(1, 4, 6, 6), torch.randn(4, 4, 3, 3))
    assert total() == (2, 1)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda s: torch.randint(0, 9, s), "int64"),
        (lambda s: torch.randint(0, 9, s, dtype=torch.int8), "int8"),
        (lambda s: torch.zeros(s, dtype=torch.bool), "bool"),
    ],
)
def test_what_no_engine_does_is_pytorchs(make, reason):
    x, w = make((1, 2, 5, 5)), make((2, 2, 3, 3))
    try:
        expected = F.conv2d(x, w)
    except RuntimeError as refused:
        expected = refused
    with ct.enable():
        if isinstance(expected, RuntimeError):
            with pytest.raises(RuntimeError, match=str(expected)[:20]):
                F.conv2d(x, w)
        else:
            assert torch.equal(F.conv2d(x, w), expected)
    assert total()[0] == 0
    assert any(reason in sentence for sentence in ct.counters()["reasons"])


def test_complex_numbers_come_as_real_ones_and_meta_tensors_stay():
    x, w = torch.randn(1, 2, 5, 5, dtype=torch.complex64), torch.randn(2, 2, 3, 3, dtype=torch.complex64)
    with ct.enable():
        y = F.conv2d(x, w)
        meta = F.conv2d(x.real.to("meta"), w.real.to("meta"))
    assert error(torch.view_as_real(y), torch.view_as_real(F.conv2d(x, w))) < 1e-5
    assert meta.shape == y.shape


BAD = {
    "channels": ((1, 3, 5, 5), (2, 2, 3, 3), {}, "takes 2 channels a group, but input of shape .* has 3"),
    "kernel": ((1, 2, 2, 5), (2, 2, 3, 3), {}, "kernel must fit into the padded input"),
    "stride": ((1, 2, 5, 5), (2, 2, 3, 3), {"stride": 0}, "stride must be 1 or more"),
    "padding": ((1, 2, 5, 5), (2, 2, 3, 3), {"padding": -1}, "padding must be 0 or more"),
    "bias": ((1, 2, 5, 5), (2, 2, 3, 3), {"bias": torch.zeros(3)}, "bias must have shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_raises_pytorchs_error_with_our_sentence(name):
    shape, kernel, options, sentence = BAD[name]
    with pytest.raises(RuntimeError):
        F.conv2d(torch.randn(shape), torch.randn(kernel), **options)
    with ct.enable(), pytest.raises(RuntimeError, match=sentence):
        F.conv2d(torch.randn(shape), torch.randn(kernel), **options)
    assert total() == (0, 0)


@pytest.mark.parametrize("options", [{"math": "exact"}, {"solver": 3}, {"min_flops": "many"}])
def test_bad_options_are_named(options):
    with pytest.raises(cd.InvalidArgument, match=next(iter(options))):
        ct.enable(**options)


def test_threads_and_a_backward_in_another():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 3, 12, 12)
    expected = net(x).detach()

    def forward(_):
        y = net(x)
        assert error(y, expected) < 1e-5
        return y.square().mean()

    with ct.enable():
        losses = together(forward, 4)
        together(lambda _: sum(losses).backward(), 1)
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    (4 * net(x).square().mean()).backward()
    assert all(error(mine, p.grad) < 1e-5 for mine, p in zip(got, net.parameters()))
    assert total() == (16, 0), ct.counters()


def test_a_default_device_changes_nothing():
    x, w = torch.randn(4, 8, 32, 32), torch.randn(64, 8, 3, 3)
    with ct.enable(), torch.device("meta"):
        y = F.conv2d(x, w)
    assert y.device.type == "cpu"
    assert error(y, F.conv2d(x.double(), w.double())) < 1e-5


def test_devices_without_systems_svm_take_views(monkeypatch):
    monkeypatch.setattr(host_memory, "has_system_svm", lambda device: False)
    dispatch.forget()
    tensors = [torch.randn(2, 4, 8, 8), torch.randn(8, 4, 3, 3), torch.randn(8)]
    with ct.enable():
        for form in (torch.contiguous_format, torch.channels_last):
            given = [t.contiguous(memory_format=form) if t.ndim == 4 else t for t in tensors]
            for mine, theirs in zip(gradients(F.conv2d, *given), gradients(F.conv2d, *[t.double() for t in given])):
                assert error(mine, theirs) < 1e-5
    dispatch.forget()
    assert total() == (8, 0)


def test_a_missing_name_of_pytorchs_is_told_in_a_sentence():
    told = lacking({"torch.library.gone": "nothing can be routed"}, "9.9")
    assert told.startswith("PyTorch 9.9 has no torch.library.gone, so nothing can be routed")
    assert lacking({"torch.library.get_kernel": ""}) is None


def test_numpy_views_of_results(tmp_path):
    with ct.enable(), torch.no_grad():
        y = F.conv2d(torch.randn(4, 8, 32, 32), torch.randn(64, 8, 3, 3))
    assert np.array_equal(y.numpy(), y.clone().numpy())
    torch.save(y, tmp_path / "y.pt")
    assert torch.equal(torch.load(tmp_path / "y.pt"), y)


FAULTS = """
import resource, torch
import convdispatch.torch as ct
x, w, large = torch.ones(1, 8, 32, 32), torch.ones(8, 8, 3, 3), torch.ones(5 << 18)
def faults():  # pages that operators between our convolutions make the system map; the first turns grow the heap
    for turn in range(40):
        if turn == 20:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.nn.functional.conv2d(x, w)
        a = large + 1
        b = a + 1
        c = b + a
        del a, b, c
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
with torch.inference_mode(), ct.enable():
    print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="how memory is kept is asked of glibc")
def test_memory_that_operators_free_stays_for_the_next_ones():
    def faults(**given):
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "LD_PRELOAD"))}
        done = subprocess.run([sys.executable, "-c", FAULTS], env=own | given, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.splitlines()[-1])

    pages = 20 * (5 << 20) // 4096
    assert faults() < pages / 10
    assert faults(MALLOC_TRIM_THRESHOLD_="131072") >= pages, "the user's threshold holds"


def test_torch_s_threads_leave_the_cores_unless_the_user_decided(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    several = torch.get_num_threads() > 1
    assert [ct.share_cores(), ct.share_cores()] == [several, several]
    assert [thread.name for thread in threading.enumerate()].count("convdispatch-openmp") == several
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert not ct.share_cores()


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
def test_an_empty_batch_keeps_pytorchs_strides(form):
    x, w = (t.contiguous(memory_format=form) for t in (torch.zeros(0, 4, 6, 6), torch.randn(4, 4, 3, 3)))
    expected = F.conv2d(x, w, padding=1)
    with ct.enable():
        got = F.conv2d(x, w, padding=1)
        assert (got.shape, got.stride()) == (expected.shape, expected.stride())
        assert ct.conv2d(x, w, padding=1).stride() == expected.stride()
        x.requires_grad_(), w.requires_grad_()
        F.conv2d(x, w).sum().backward()
    assert x.grad.shape == x.shape
    assert not w.grad.any()


# --- PyTorch's own switches: precision, determinism, its search -----------------------------------------------------


def test_pytorchs_switches_are_obeyed():
    seen = []
    stop = engine.watch(lambda part, call, tensors, geometry: seen.append(call.problem))
    x, w = torch.randn(1, 4, 6, 6), torch.randn(4, 4, 3, 3)
    try:
        with ct.enable():
            F.conv2d(x, w)
            torch.set_float32_matmul_precision("high")
            F.conv2d(x, w)
            F.conv2d(x.double(), w.double())
        with ct.enable(math="ieee"):
            F.conv2d(x, w)
    finally:
        stop()
        torch.set_float32_matmul_precision("highest")
    assert [problem.math for problem in seen] == ["float32", "tf32", "float32", "ieee"]


def test_cudas_switch_is_its_own():  # by torch._C: PyTorch's own test module, once imported, locks torch.backends
    before = torch._C._get_cudnn_allow_tf32()
    try:
        for allowed in (True, False):
            torch._C._set_cudnn_allow_tf32(allowed)
            assert switches(True)[0] is allowed
    finally:
        torch._C._set_cudnn_allow_tf32(before)


def test_deterministic_algorithms_are_asked_for(monkeypatch):
    asked = []
    own = dispatch.prepare
    monkeypatch.setattr(dispatch, "prepare", lambda p, c: asked.append(current_policy().deterministic) or own(p, c))
    x, w = torch.randn(1, 4, 6, 5), torch.randn(4, 4, 3, 3)
    torch.use_deterministic_algorithms(True)
    try:
        with ct.enable():
            F.conv2d(x, w)
    finally:
        torch.use_deterministic_algorithms(False)
    with ct.enable():
        F.conv2d(x, w)
    assert asked == [True, False]


def test_benchmark_measures_in_the_background():
    torch._C._set_cudnn_benchmark(True)
    problems = []
    stop = engine.watch(lambda part, call, tensors, geometry: problems.append((call.problem, call.device)))
    try:
        with ct.enable():
            y = F.conv2d(torch.ones(1, 5, 11, 13), torch.ones(7, 5, 3, 3))
            assert autotune.drain(60)
            assert torch.equal(F.conv2d(torch.ones(1, 5, 11, 13), torch.ones(7, 5, 3, 3)), y)
    finally:
        torch._C._set_cudnn_benchmark(False)
        stop()
    problem, device = problems[0]
    assert perfdb().lookup(problem, runtime.device_info(device), scope_of(current_policy()))
