"""A capture waits for kernels: each way of capturing, the host in the place of a GPU, and a compiler that is slow."""

import contextlib
import signal
import threading
import types
import warnings
from concurrent.futures import Future

import pytest
import torch
from torch._inductor import cudagraph_trees

import convdispatch.torch as ct
from convdispatch import ConvDispatchWarning
from convdispatch.calls.framework import tiers
from convdispatch.calls.planner_pool import progress_line
from convdispatch.torch import captures
from convdispatch.torch.eager import planning, stream_tensors

F = torch.nn.functional
MINUTES = 300.0


class Compiler:
    """What the child processes answer: by problem a Future, which a test fulfils."""

    def __init__(self) -> None:
        self.answers: dict[str, Future] = {}

    def ask(self, pool, problem, policy, seconds):
        return self.answers.setdefault(str(problem), Future())

    def finish(self) -> None:
        for answer in self.answers.values():
            if not answer.done():
                answer.set_result(None)


class Graph:
    """PyTorch's class of captured graphs, of which the driver that stands for CUDA's is told."""

    def __init__(self, *_, capture_error_mode="global") -> None:
        self.capture_error_mode = capture_error_mode

    def capture_begin(self, *_, **options):
        assert not Gpu.driver.capturing
        Gpu.begun.append(len(tiers._pending))
        Gpu.driver.log.clear()
        Gpu.driver.capturing = True

    def capture_end(self):
        Gpu.driver.capturing = False
        Gpu.launched.append(Gpu.driver.names().count("cuLaunchKernel") + len(Gpu.native.launched))

    def replay(self):
        pass

    def __enter__(self):
        self.capture_begin()

    def __exit__(self, *_):
        self.capture_end()


class Gpu:
    """What stands for the GPU: its driver, how many problems were pending when a capture began, and how many kernels of
    ours it captured."""

    driver: object
    native: object
    begun: list
    launched: list
    streams: list


@contextlib.contextmanager
def stream_context(stream):
    Gpu.streams.append(stream)
    yield
    Gpu.streams.pop()


@pytest.fixture
def compiler(stand_in, monkeypatch):
    """CPU tensors run on the driver that stands for CUDA's; every new problem goes to the compiler."""
    Gpu.driver, Gpu.native, Gpu.begun, Gpu.launched, Gpu.streams = stand_in.driver, stand_in, [], [], []
    made = Compiler()
    monkeypatch.setenv("CONVDISPATCH_TIER", "ready")
    monkeypatch.setattr(tiers, "BURST_S", 0.0)
    monkeypatch.setattr(tiers.PlannerPool, "ask", lambda *asked: made.ask(*asked))
    monkeypatch.setattr(tiers._Allowance, "may_load", lambda *_: True)
    monkeypatch.setattr(captures, "captured", lambda: stand_in.driver.capturing)
    monkeypatch.setattr(planning.TORCH, "capturing", captures.capturing)
    nothing = lambda *_: None  # noqa: E731
    for name, value in {
        "CUDAGraph": Graph, "Stream": nothing, "stream": stream_context, "synchronize": nothing, "empty_cache": nothing,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda.graphs, "graph_pool_handle", nothing)
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", "its own")
    monkeypatch.setattr(torch._C, "_host_emptyCache", nothing, raising=False)
    for kind in (Graph, torch.cuda.graph):
        for name in ("capture_begin", "capture_end", "__enter__"):
            if hasattr(kind, name):  # as it was, when the test ends
                monkeypatch.setattr(kind, name, getattr(kind, name))
    ct.reset_counters()
    with ct.enable(solver="im2col*"):
        yield made
    made.finish()
    tiers.drain()


def layer() -> torch.nn.Conv2d:
    torch.manual_seed(3)
    return torch.nn.Conv2d(8, 16, 3, padding=1)


def picture(width: int = 8) -> torch.Tensor:
    return torch.randn(2, 8, 9, width)


def close(got, exact) -> None:
    assert (got.double() - exact).norm() <= 1e-5 * exact.norm()


def exactly(model, x):
    """The convolution in float64, by a matrix product, which no counter counts."""
    w, bias = model.weight.detach().double(), model.bias.detach().double()
    columns = F.unfold(x.detach().double(), 3, padding=1)
    return (w.flatten(1) @ columns + bias[:, None]).view(x.shape[0], -1, *x.shape[2:])


def warm(model, *sizes: int) -> list[torch.Tensor]:
    """Four calls of each size, all of them PyTorch's because the compiler is slow."""
    inputs = [picture(width) for width in sizes or (8,)]
    with torch.no_grad():
        for x in inputs:
            for _ in range(4):
                model(x)
    counts = ct.counters()
    assert (counts["ours"], counts["compiling"]) == (0, 4 * len(inputs))
    ct.reset_counters()
    return inputs


def by_context(model, x):
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        return model(x)


def by_capture_begin(model, x):
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        graph.capture_begin()
        y = model(x)
        graph.capture_end()
    return y


def by_accelerator(model, x):
    with torch.no_grad(), torch.accelerator.Graph():
        return model(x)


def by_cudagraph_trees(model, x):
    """What records under ``mode="reduce-overhead"``: inductor's own method, with the code around it left out."""
    found = []
    node = types.SimpleNamespace(
        graph=torch.cuda.CUDAGraph(), stream=None, device=0, cuda_graphs_pool=None, parent=None,
        wrapped_function=types.SimpleNamespace(static_input_idxs=[], constants=[]),
        _add_first_outputs=lambda outputs, _: found.extend(outputs),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch._inductor.config.triton, "slow_path_cudagraph_asserts", False)
        patch.setattr(torch.cuda, "device", contextlib.nullcontext)
        for name in ("preserve_rng_state", "clear_cublas_manager", "_update_current_stream_external_object",
                     "get_history_recording", "CUDAGraphCaptureControlFlowOpDispatchMode"):  # fmt: skip
            patch.setattr(cudagraph_trees, name, contextlib.nullcontext)

        def compiled(inputs):
            given = list(inputs)
            inputs.clear()
            return (model(*given),)

        cudagraph_trees.CUDAGraphNode._record(node, compiled, [x])
    return found[0]


WAYS = [by_context, by_capture_begin, by_accelerator, by_cudagraph_trees]


@pytest.fixture
def soon(compiler, monkeypatch):
    """The compiler answers as soon as somebody waits for it."""
    wait = tiers.futures.wait
    monkeypatch.setattr(
        tiers.futures, "wait", lambda waiting, timeout=None: (compiler.finish(), wait(waiting, timeout))[1]
    )
    return compiler


@pytest.mark.parametrize("way", WAYS)
def test_the_usual_script_gets_our_kernels(soon, way, monkeypatch, recwarn):
    """Four warm calls, then a capture, while the compiler has answered nothing."""
    monkeypatch.setattr(torch.accelerator, "Graph", Graph)
    captures.watch_captures()
    model = layer()
    (x,) = warm(model)
    close(way(model, x), exactly(model, x))
    assert Gpu.begun == [0]
    assert Gpu.launched[0] > 0
    counts = ct.counters()
    assert (counts["ours"], counts["compiling"], counts["left"]) == (1, 0, 0)
    assert not recwarn.list


def test_graphed_callables_get_our_kernels_forward_and_backward(soon, recwarn):
    """PyTorch's own function, which warms up and then captures forward and backward."""
    captures.watch_captures()
    model, x = layer(), picture().requires_grad_()
    torch.cuda.make_graphed_callables(model, (x,))
    assert Gpu.begun == [0, 0]
    assert all(Gpu.launched), "forward and backward"
    assert not [each for each in recwarn.list if issubclass(each.category, ConvDispatchWarning)]


def test_constant_weights_are_packed_before_the_capture(soon, recwarn):
    captures.watch_captures()
    model = layer().requires_grad_(False).eval()
    (x,) = warm(model)
    close(by_context(model, x), exactly(model, x))
    assert ct.counters()["ours"] == 1
    assert not recwarn.list


def captured_with_warning(model, *inputs) -> str:
    """The one warning of a capture of the model's calls."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with torch.no_grad(), torch.cuda.graph(torch.cuda.CUDAGraph()):
            for x in inputs:
                close(model(x), exactly(model, x))
    (warning,) = [str(each.message) for each in told if issubclass(each.category, ConvDispatchWarning)]
    return warning


def test_a_kernel_that_cannot_be_built_is_pytorchs_and_told(compiler, monkeypatch):
    captures.watch_captures()
    model = layer()
    (x,) = warm(model)

    def fails(*_):
        raise ct.warmup.ConvDispatchError("the compiler ran out of registers")

    for problem in tiers._pending.values():
        monkeypatch.setattr(problem, "_build", fails)
    compiler.finish()
    told = captured_with_warning(model, x)
    assert "mb2ic8ih9iw8oc16" in told
    assert "could not be built (the compiler ran out of registers)" in told
    assert "convdispatch.torch.ready()" in told
    assert ct.counters()["ours"] == 0


def test_a_compiler_that_never_ends_does_not_hang_a_capture(compiler, monkeypatch):
    captures.watch_captures()
    monkeypatch.setattr(tiers, "WAIT_S", 0.01)
    model = layer()
    (x,) = warm(model)
    assert "its kernels were still being compiled" in captured_with_warning(model, x)
    with pytest.warns(ConvDispatchWarning, match="not ready after 0.01 s: 1 kernels"):
        assert ct.ready(timeout=0.01) == {"kernels": 1, "forms": 0, "measurements": 0}
    compiler.finish()
    assert ct.ready()["kernels"] == 1, "nothing was lost"
    by_context(model, x)
    assert Gpu.launched[-1] > 0


class Terminal:
    """Standard error; interrupts the process as Ctrl-C does when it shows the first line."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        if not self.text:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    "wait", [by_context, by_capture_begin, lambda *_: ct.ready()], ids=["context", "begin", "ready"]
)
def test_an_interrupt_ends_the_wait_and_nothing_is_lost(compiler, monkeypatch, wait):
    captures.watch_captures()
    model = layer()
    (x,) = warm(model)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(tiers, "WAITED_S", 0.05)
    monkeypatch.setattr(progress_line, "_UPDATE_S", 0.01)
    with pytest.raises(KeyboardInterrupt):
        wait(model, x)
    assert "0 of 1" in terminal.text
    assert Gpu.begun == []
    assert Gpu.streams == [], "the current stream is as it was"
    assert tiers.pending() == 1
    assert not captures._graphs
    compiler.finish()
    close(by_context(model, x), exactly(model, x))
    assert Gpu.launched[0] > 0


def test_an_interrupt_while_a_plan_is_loaded_loses_nothing(compiler, monkeypatch):
    captures.watch_captures()
    model, build = layer(), planning.host_call

    def interrupted(*_):
        raise KeyboardInterrupt

    (x,) = warm(model)
    compiler.finish()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "host_call", interrupted)
        for problem in tiers._pending.values():
            patch.setattr(problem, "_build", interrupted)
        with pytest.raises(KeyboardInterrupt):
            by_context(model, x)
    assert planning.host_call is build
    by_context(model, x)
    assert Gpu.launched[0] > 0


def test_new_problems_inside_a_capture_are_told_in_one_warning(soon):
    captures.watch_captures()
    model = layer()
    (x,) = warm(model)
    told = captured_with_warning(model, x, *map(picture, (10, 11, 12, 13, 13)))
    assert [f"iw{width}" in told for width in (8, 10, 11, 12, 13)] == [False, True, True, True, False]
    assert "it was new inside the capture" in told
    assert " and 1 more" in told
    counts = ct.counters()
    assert (counts["ours"], counts["left"]) == (1, 5)
    model(picture(10))  # after the capture it is compiled as any other
    assert ct.ready()["kernels"] == 1


@pytest.mark.parametrize("change", ["TF32", "autocast", "channels last"])
def test_another_switch_than_in_the_warmup_makes_other_problems(soon, change):
    captures.watch_captures()
    model = layer()
    (x,) = warm(model)
    with contextlib.ExitStack() as stack, warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        if change == "TF32":
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high")
        if change == "autocast":
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        if change == "channels last":
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            model(x)
    (warning,) = [str(each.message) for each in told if issubclass(each.category, ConvDispatchWarning)]
    assert {"TF32": "tf32", "autocast": "bf16", "channels last": "nhwc"}[change] in warning
    assert "autocast and TF32 switches" in warning
    assert ct.counters()["ours"] == 0


def test_a_problem_whose_kernels_are_loaded_is_ours_under_other_strides(soon, recwarn):
    """The operands have other strides, so it is another call, of a plan that is there."""
    captures.watch_captures()
    model = layer()
    warm(model)
    ct.ready()
    strided = torch.randn(4, 8, 9, 8)[::2]
    with torch.no_grad(), torch.cuda.graph(torch.cuda.CUDAGraph()):
        y = model(strided)
    close(y, exactly(model, strided))
    assert (ct.counters()["ours"], ct.counters()["left"]) == (1, 0)
    assert not recwarn.list


def test_a_capture_waits_for_what_another_thread_builds(soon, monkeypatch):
    """A program that is loaded beside a capture may end it."""
    captures.watch_captures()
    monkeypatch.setattr(tiers, "BURST_S", MINUTES)  # the problem is planned within its call
    build, entered, leave, order = stream_tensors.StreamCall, threading.Event(), threading.Event(), []

    def slow(*given, **options):
        entered.set()
        assert leave.wait(MINUTES)
        call = build(*given, **options)
        order.append("built")
        return call

    monkeypatch.setattr(stream_tensors, "StreamCall", slow)
    thread = threading.Thread(target=lambda: layer()(picture()))
    thread.start()
    assert entered.wait(MINUTES)
    wait = tiers._built.wait_for
    monkeypatch.setattr(tiers._built, "wait_for", lambda *given: (leave.set(), wait(*given)), raising=False)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    order.append("captured")
    graph.capture_end()
    leave.set()
    thread.join(MINUTES)
    assert order == ["built", "captured"]


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_no_thread_loads_a_program_beside_a_capture_that_forbids_it(soon, monkeypatch, mode):
    captures.watch_captures()
    monkeypatch.setattr(tiers, "BURST_S", MINUTES)
    monkeypatch.setattr(captures, "captured", lambda: False)  # of the other thread's stream
    model, x = layer(), picture()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode=mode)
    Gpu.driver.capturing = False
    with torch.no_grad():
        model(x)
    counts = ct.counters()
    graph.capture_end()
    assert (counts["ours"], counts["left"]) == ((0, 1) if mode == "global" else (1, 0))
    with torch.no_grad():
        model(x)
    assert ct.counters()["ours"] == counts["ours"] + 1, "only while the capture lasted"


def test_a_capture_in_a_second_thread_waits_for_the_first_ones_compiler(soon):
    captures.watch_captures()
    model = layer()
    (x,) = warm(model)
    found = []
    thread = threading.Thread(target=lambda: found.append(by_context(model, x)))
    thread.start()
    thread.join(MINUTES)
    close(found[0], exactly(model, x))
    assert Gpu.begun == [0]
    assert Gpu.launched[0] > 0


def test_a_capture_by_other_means_than_pytorchs_classes_is_told_at_once(compiler):
    model = layer()
    (x,) = warm(model)
    Gpu.driver.capturing = True
    with torch.no_grad(), pytest.warns(ConvDispatchWarning, match="its kernels were still being compiled"):
        model(x)
    Gpu.driver.capturing = False


def test_the_progress_line_of_a_wait_is_drawn_over_that_of_the_background(monkeypatch):
    class Lines(Terminal):
        def write(self, text):
            self.text += text

    terminal = Lines()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress_line, "_UPDATE_S", 0.005)
    with progress_line.ProgressLine("behind", lambda: (0, 1000)):
        with progress_line.ProgressLine("a wait", lambda: (0, 1), after_s=0.0):
            until(lambda: "a wait" in terminal.text)
            before = len(terminal.text)
            until(lambda: len(terminal.text) > before + 200)
            assert "behind" not in terminal.text[before:]
        before = len(terminal.text)
        until(lambda: "behind" in terminal.text[before:])


def until(holds) -> None:
    end = threading.Event()
    for _ in range(int(MINUTES / 0.01)):
        if holds():
            return
        end.wait(0.01)
    raise AssertionError("stuck")
