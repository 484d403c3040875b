"""Ever new sizes: memory is bounded, what goes is freed, PyTorch answers meanwhile, and numbers are right."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pyopencl as cl
import pytest

import convdispatch as cd
from convdispatch.device import runtime
from convdispatch.device.programs import binary_cache, kernels
from convdispatch.selection import dispatch
from convdispatch.tools import doctor

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

import convdispatch.torch as ct  # noqa: E402
from convdispatch.calls.framework import sizes, tiers  # noqa: E402
from convdispatch.calls.planner_pool import pool as pools  # noqa: E402
from convdispatch.torch.dispatch import engine, native, routing  # noqa: E402

F = torch.nn.functional
MB = 1 << 20
MINUTES = 300.0


def grown(program: str, count: int, after: int = 1, **variables: str) -> float:
    """MB by which a process of its own grows while ``step(i)`` of a program runs ``count`` times, ``after`` others."""
    text = textwrap.dedent(program) + textwrap.dedent(
        f"""
        def memory(): return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
        for number in range({after}):
            step(number)
        before = memory()
        for number in range({after}, {after + count}):
            step(number)
        print(memory() - before)
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, **variables}, capture_output=True, text=True, timeout=3000
    )
    assert run.returncode == 0, run.stderr
    return float(run.stdout.split()[-1])


UNDER_ENABLE = """
    import torch, convdispatch.torch as ct
    ct.enable()
    torch.set_grad_enabled(False)
    layer = torch.nn.Conv1d(8, 8, 5, padding=2)
    def step(number):
        layer(torch.randn(1, 8, 100 + 7 * number))
"""
BY_CONV = """
    import numpy as np, convdispatch as cd
    w = np.ones((8, 3, 3, 3), np.float32)
    def step(number):
        cd.conv(np.ones((1, 3, 20 + number % 50, 20 + number), np.float32), w, padding=1)
"""
IN_A_SESSION = """
    import numpy as np, onnx, convdispatch.onnx
    from onnx import TensorProto, helper, numpy_helper
    from convdispatch.device.programs import kernels
    float32 = TensorProto.FLOAT
    weights = [numpy_helper.from_array(np.ones((8, channels, 3, 3), np.float32), f"w{channels}") for channels in (3, 8)]
    nodes = [helper.make_node("Conv", ["x", "w3"], ["a"], pads=[1] * 4), helper.make_node("Relu", ["a"], ["b"]),
             helper.make_node("Conv", ["b", "w8"], ["y"], pads=[1] * 4)]
    shaped = [helper.make_tensor_value_info(*each) for each in (
        ("x", float32, [1, 3, "h", "w"]), ("y", float32, [1, 8, "h", "w"]))]
    graph = helper.make_graph(nodes, "net", shaped[:1], shaped[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = convdispatch.onnx.InferenceSession(model.SerializeToString())
    def step(number):
        session.run(None, {"x": np.ones((1, 3, 20 + number % 50, 20 + number), np.float32)})
        assert kernels.BUDGET.new_nbytes <= kernels.NEW_SHARE
        assert len(session.net._forms) < 60 and len(kernels._programs) < 120
"""


def test_150_sizes_under_enable_take_15_mb():
    assert grown(UNDER_ENABLE, 150) < 15


def test_8_sizes_of_a_session_take_70_mb(tmp_path):
    """All compiled: 39 MB, and 112 where each thread may run the compiler."""
    assert grown(IN_A_SESSION, 8, after=0, **cold(tmp_path)) < 70


def test_threads_that_compile_take_one_compiler():
    """Intel's runtime holds 33 MB for each thread that ever compiled. The threads here do not end."""
    program = """
        import threading, numpy as np, pyopencl as cl
        from convdispatch.device import runtime
        from convdispatch.device.programs import binary_cache
        context, ended = runtime.context(runtime.find_device("cpu")), threading.Event()
        def compiled(number, ready):
            text = f"__kernel void k{number}(__global float* a) {{ a[get_global_id(0)] += {number}; }}"
            binary_cache.built(context, (), text)
            ready.set()
            ended.wait()
        def step(number):
            ready = threading.Event()
            threading.Thread(target=compiled, args=(number, ready), daemon=True).start()
            assert ready.wait(100)
    """
    assert grown(program, 4) < 25


def cold(folder):
    """Variables of a process that finds no program compiled, and has all that a session needs."""
    pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
    return {"CONVDISPATCH_KERNEL_CACHE": str(folder), "XDG_CACHE_HOME": str(folder)}


def full(request):
    if not request.config.getoption("--full"):
        pytest.skip("compiles 1,000 programs: --full")


@pytest.mark.parametrize("program", [UNDER_ENABLE, BY_CONV], ids=["enable", "conv"])
def test_1000_sizes_take_100_mb(program, request):
    """All compiled: conv() has no other kernel, and CONVDISPATCH_TIER=full waits for ours."""
    full(request)
    assert grown(program, 1000) < 100
    # The compiler itself takes 120 MB, once, where the first program came from a file.
    assert grown(program, 1000, CONVDISPATCH_TIER="full") < 100 + 120


def test_1000_sizes_of_a_session_take_100_mb(request, tmp_path):
    full(request)
    assert grown(IN_A_SESSION, 1000, after=20, **cold(tmp_path)) < 100


def test_a_long_compilation_lets_others_compile(monkeypatch):
    """Its thread is the only one that runs Intel's compiler, but a text that waits long is compiled by its caller."""
    device = runtime.find_device("cpu")
    if not device.platform.name.startswith("Intel"):
        pytest.skip("one thread compiles for Intel's runtime alone")
    monkeypatch.setattr(binary_cache, "_COMPILER_WAIT_S", 0.01)
    text, ended = "__kernel void k(__global float* a) { a[get_global_id(0)] += 1; }", threading.Event()
    long = binary_cache._intel_compiler.submit(lambda: ended.wait(MINUTES))
    try:
        program = binary_cache.built(runtime.context(device), (), text)
    finally:
        ended.set()
    assert program.get_info(cl.program_info.KERNEL_NAMES) == "k"
    assert long.result()


@pytest.fixture
def small(monkeypatch):
    """Room for some four programs of further sizes."""
    dispatch.forget()
    kernels.forget()
    ct.reset_counters()
    monkeypatch.setattr(kernels, "NEW_SHARE", 4 * MB)
    monkeypatch.setattr(dispatch, "_families", dispatch.Families(1))
    yield
    dispatch.forget()


@pytest.fixture
def programs(monkeypatch):
    """Programs that are alive, by weak reference; nothing is left to the garbage collector."""
    alive, real = weakref.WeakSet(), kernels._compile

    def compile(*given):
        program, nbytes = real(*given)
        alive.add(program)
        return program, nbytes

    monkeypatch.setattr(kernels, "_compile", compile)
    gc.collect()
    gc.disable()
    yield alive
    gc.enable()


def close(got, x, w, bias=None, padding=0):
    """Beside PyTorch's own kernel in float64, which is not counted."""
    options = [1, 1], [padding, padding], [1, 1], False, [0, 0], 1
    expected = routing.original("convolution", x.double(), w.double(), bias, *options)
    assert (got.double() - expected).norm() <= 1e-5 * expected.norm()


def test_what_goes_is_freed_and_comes_back_right(small, programs, monkeypatch):
    """Under PyTorch, the native call path included; without a garbage collection."""
    monkeypatch.setenv("CONVDISPATCH_TIER", "full")
    w = torch.randn(8, 3, 3, 3)
    with ct.enable(), torch.no_grad():
        for turn in range(2):
            for size in range(10, 22):
                x = torch.randn(1, 3, size, size + 3)
                for _ in range(2):
                    close(F.conv2d(x, w, padding=1), x, w, padding=1)
                assert kernels.BUDGET.new_nbytes <= 4 * MB
                assert len(programs) == len(kernels._programs), turn
    assert len(programs) < 9
    assert ct.counters()["ours"] == 48


def test_packed_weights_go_with_their_plan(small, monkeypatch):
    """Some solvers pack weights for each size; the native path must not read what is gone."""
    monkeypatch.setenv("CONVDISPATCH_TIER", "full")
    layer = torch.nn.Conv2d(3, 32, 7, padding=3).requires_grad_(False)
    held = set()
    with ct.enable(solver="fft*"), torch.inference_mode():
        for _ in range(2):
            for size in range(20, 32):
                x = torch.randn(1, 3, size, size)
                for _ in range(3):
                    close(layer(x), x, layer.weight, bias=layer.bias.double(), padding=3)
                constant = engine.promise(layer.weight)
                held.add(len(constant._packed))
                memory = {id(each) for each, _ in constant._packed.values()}
                assert {id(each) for each in constant.addresses.values()} <= memory
    assert max(held) < 8


def test_conv_frees_what_goes(small, programs):
    w = np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype(np.float32)
    for _ in range(2):
        for size in range(10, 22):
            x = np.random.default_rng(size).standard_normal((1, 3, size, size + 2)).astype(np.float32)
            for _ in range(2):
                got = cd.conv(x, w, padding=1)
            close(torch.from_numpy(got), torch.from_numpy(x), torch.from_numpy(w), padding=1)
            assert len(programs) == len(kernels._programs)
    assert len(programs) < 9


def test_a_call_that_is_used_natively_is_not_the_least_recently_used(small, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_TIER", "full")
    w, often = torch.randn(8, 3, 3, 3), torch.randn(1, 3, 9, 9)
    other = torch.randn(1, 3, 8, 8)
    with ct.enable(), torch.no_grad():
        F.conv2d(other, w)  # the layer's own size
        F.conv2d(often, w)
        made, real = [], dispatch.make
        monkeypatch.setattr(dispatch, "make", lambda *given, **more: made.append(given[2]) or real(*given, **more))
        for size in range(10, 30):
            F.conv2d(torch.randn(1, 3, size, size), w)
            F.conv2d(often, w)
    assert len(made) == 20


def test_forms_of_a_net_are_new_after_the_first_and_go_with_it():
    class Net:
        pass

    kernels.forget()
    net = Net()
    forms = kernels.Programs.of(net)
    for size in range(kernels.FIRST_FORMS + 5):
        forms.make((size,), lambda: object(), None, lambda form: 40 * MB)
    assert len(forms) == kernels.FIRST_FORMS + 1, "of further ones there is room for one"
    del net
    assert len(forms) == 0
    assert kernels.BUDGET.nbytes == 0


# --- who answers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def by_size(monkeypatch):
    """Nobody asked for a tier; nothing was met."""
    monkeypatch.delenv("CONVDISPATCH_TIER", raising=False)
    monkeypatch.setattr(engine, "sizes", sizes.Sizes())
    engine._forget()
    ct.reset_counters()
    with ct.enable():
        yield
    tiers.drain()
    engine._forget()


@pytest.fixture
def asked(monkeypatch):
    """Problems that children are asked for; none answers."""
    found = []

    def ask(self, problem, policy, seconds):
        found.append(problem)
        return pools.Future()

    monkeypatch.setattr(pools.PlannerPool, "ask", ask)
    yield found
    tiers._pending.clear()


def counts():
    found = ct.counters()
    return found["ours"], found["compiling"], found["left"]


@pytest.fixture(params=["native", "python"])
def way(request):
    native.pause(request.param == "python")
    yield request.param
    native.pause(False)


def test_further_sizes_are_pytorchs_until_they_were_met_often(by_size, asked, way):
    w = torch.randn(6, 3, 3, 3)
    for size in range(9, 15):
        x = torch.randn(2, 3, size, size)
        close(F.conv2d(x, w), x, w)
    assert counts() == (1, 5, 0)
    assert not asked
    for meeting in range(2, sizes.MEETINGS + 3):
        F.conv2d(torch.randn(2, 3, 11, 11), w)
        assert len(asked) == (meeting >= sizes.MEETINGS), meeting
        F.conv2d(torch.randn(2, 3, 9, 9), w)
    repeats = sizes.MEETINGS + 1
    assert counts() == (1 + repeats, 5 + repeats, 0)


def test_gradients_too(by_size, asked, way):
    w = torch.randn(6, 3, 3, 3, requires_grad=True)
    for size in (9, 10, 11):
        x = torch.randn(2, 3, size, size, requires_grad=True)
        got = torch.autograd.grad(F.conv2d(x, w).square().sum(), (x, w))
        wide = [each.detach().double().requires_grad_() for each in (x, w)]
        product = wide[1].flatten(1) @ F.unfold(wide[0], 3)  # no convolution, which would be counted
        for mine, other in zip(got, torch.autograd.grad(product.square().sum(), wide), strict=True):
            assert (mine.double() - other).norm() <= 1e-5 * other.norm()
    assert counts() == (2, 4, 0)


def test_further_sizes_do_not_come_to_python(by_size, monkeypatch):
    """They cost what PyTorch's own cost: Python alone would take as long as a small convolution again."""
    if not native._launcher:
        pytest.skip("no native call path")
    seen, real = [], engine.cached_call
    layer = torch.nn.Conv2d(3, 6, 3)
    with torch.no_grad():
        layer(torch.randn(1, 3, 9, 9))
        monkeypatch.setattr(engine, "cached_call", lambda *a, **k: seen.append(a) or real(*a, **k))
        for size in range(10, 40):
            layer(torch.randn(1, 3, size, size))
    assert not seen
    assert counts() == (1, 30, 0)


def test_ours_takes_over(by_size, way):
    w, x = torch.randn(7, 3, 3, 3), torch.randn(2, 3, 13, 12)
    F.conv2d(torch.randn(2, 3, 9, 9), w)
    end = time.monotonic() + MINUTES
    while ct.counters()["ours"] < 2:
        close(F.conv2d(x, w), x, w)
        assert time.monotonic() < end, "stuck"
        time.sleep(0.05)
    before = ct.counters()["compiling"]
    close(F.conv2d(x, w), x, w)
    assert ct.counters()["compiling"] == before


def test_other_weights_wait_at_their_first_size(by_size, asked, way):
    """As a net's layers of one shape at several resolutions do; beyond some, weights are made anew for each call."""
    layers = [torch.nn.Conv2d(3, 5, 3) for _ in range(sizes.FIRST_SIZES + 2)]
    for size, layer in enumerate(layers, 8):
        layer(torch.randn(1, 3, size, 8))
    assert counts() == (sizes.FIRST_SIZES, 2, 0)


@pytest.mark.parametrize(
    ("within", "given"),
    [(ct.enable, {"solver": "im2col"}), (ct.enable, {"min_flops": 1})]
    + [(cd.policy, given) for given in ({"tier": "full"}, {"deterministic": True}, {"solver": "im2col"})],
)
def test_who_asks_for_more_waits(by_size, asked, within, given):
    w = torch.randn(6, 3, 3, 3)
    with within(**given):
        for size in range(9, 13):
            F.conv2d(torch.randn(2, 3, size, size), w)
    assert counts() == (4, 0, 0)


def test_prepared_sizes_are_ours(by_size, asked):
    layer = torch.nn.Conv2d(3, 6, 3).eval()
    with torch.no_grad():
        for size in (9, 12):
            x = torch.randn(2, 3, size, size)
            ct.prepare(layer, x)
            layer(x)
    assert counts() == (2, 0, 0)


def test_few_problems_wait_for_children(by_size, asked, monkeypatch):
    monkeypatch.setattr(pools.PlannerPool, "left", property(lambda self: len(asked)))
    w = torch.randn(6, 3, 3, 3)
    for size in range(9, 40):
        for _ in range(sizes.MEETINGS + 1):
            F.conv2d(torch.randn(1, 3, size, size), w)
    assert len(asked) == tiers.MAX_WAITING
    assert ct.counters()["left"] == 0


def test_doctor_tells_the_limit(monkeypatch):
    assert doctor._cache_limit() == "1024 MiB, of which further sizes of layers take 48"
    monkeypatch.setenv("CONVDISPATCH_CACHE_LIMIT", "32M")
    assert doctor._cache_limit() == "32 MiB, of which further sizes of layers take 32"
