"""Arrays of PyTorch, CuPy and JAX on CUDA's streams: bits beside OpenCL's queue, overheads, graphs, memory.

    python bench/cuda_streams.py [--budget SECONDS] [--only bits,overhead,...]

Needs PyTorch with CUDA, and NVIDIA's OpenCL. Prints as it goes; a part that fails says so and the others run.
"""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np
import pyopencl.array as cla
import torch

import convdispatch as cd
from convdispatch import ConvProblem
from convdispatch.api.policy import Policy
from convdispatch.calls.arrays.known_libraries import library_of
from convdispatch.calls.stream_call import loaded_launches
from convdispatch.device import runtime
from convdispatch.device.cuda.stream import CudaStream, place_of
from convdispatch.selection import dispatch
from convdispatch.selection.choice import ranking

PROBLEMS = (
    "fwd_f32_mb64ic256ih14iw14oc256kh3kw3ph1pw1",
    "fwd_f32_mb1ic64ih56iw56oc256kh1kw1",
    "bwd_data_f32_mb32ic128ih28iw28oc128kh3kw3sh2sw2ph1pw1",
    "bwd_weights_f32_mb32ic64ih28iw28oc64kh3kw3ph1pw1",
    "fwd_f16_nhwc_mb16ic64ih28iw28oc64kh3kw3ph1pw1",
    "fwd_f32_mb8ic16ih40iw40oc16kh7kw7ph3pw3",
    "fwd_f32_g32mb8ic32ih28iw28oc32kh3kw3ph1pw1",
    "bwd_weights_f32_mb16ic3ih64iw64oc32kh7kw7sh2sw2ph3pw3",
    "fwd_f32_mb4ic16iw128oc32kw5pw2",
    "bwd_data_f32_mb8ic64ih14iw14oc128kh1kw1",
)
CALLS = 10_000
QUICK = False
HELD: list[Any] = []
"""Nets at batch 1, without PyTorch's forms."""


def say(*words: Any) -> None:
    """Print at once."""
    print(*words, flush=True)


def call(problem: ConvProblem, given: dict[str, Any], out: Any = None) -> Any:
    """The public call that a problem describes."""
    axes = problem.axes
    pads = tuple((getattr(problem, "p" + a), getattr(problem, f"p{a}_r")) for a in axes)
    keys = {
        "stride": tuple(getattr(problem, "s" + a) for a in axes),
        "dilation": tuple(getattr(problem, "d" + a) for a in axes),
        "padding": pads,
        "groups": problem.g,
        "layout": problem.layout,
        "out": out,
    }
    if problem.direction == "fwd":
        return cd.conv(given["x"], given["w"], **keys)
    if problem.direction == "bwd_data":
        return cd.conv_backward_data(given["y"], given["w"], problem.x_shape, **keys)
    return cd.conv_backward_weights(given["x"], given["y"], problem.w_shape, **keys)


def operands(problem: ConvProblem) -> dict[str, np.ndarray]:
    """Random NumPy operands."""
    random, names = np.random.default_rng(0), [n for n in "xwy" if n != problem.written]
    return {n: random.standard_normal(getattr(problem, n + "_shape"), np.float32).astype(problem.dtype) for n in names}


def timed(run: Callable[[], Any], wait: Callable[[], Any], calls: int = 200, rounds: int = 5) -> tuple[float, float]:
    """(microseconds a call with the device's work, the host's alone), medians of rounds."""
    for _ in range(10):
        run()
    wait()
    both, host = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        given = time.perf_counter()
        wait()
        both.append((time.perf_counter() - start) / calls)
        host.append((given - start) / calls)
    return statistics.median(both) * 1e6, statistics.median(host) * 1e6


def bits(queue: Any, until: float) -> None:
    """Every solver of every problem, on PyTorch's stream and on the queue."""
    info, counts = runtime.device_info(queue.device), {"equal": 0, "different": 0, "through host": 0}
    for text in PROBLEMS:
        problem = ConvProblem.parse(text)
        arrays = operands(problem)
        on_cuda = {name: torch.from_numpy(array).cuda() for name, array in arrays.items()}
        on_queue = {name: cla.to_device(queue, array) for name, array in arrays.items()}
        outcomes = []
        for name, solver in ranking.contestants(problem, info).items():
            if time.perf_counter() > until:
                say("  out of time at", text, name)
                return
            if ranking.refusal(solver, problem, info, Policy()) is not None:
                continue
            try:
                with cd.policy(solver=name, fallback=False):
                    expected = call(problem, on_queue).get()
                    got = call(problem, on_cuda).cpu().numpy()
            except Exception as error:
                outcomes.append(f"{name} FAILED {type(error).__name__}: {str(error)[:200]}")
                continue
            same = np.array_equal(got, expected)
            counts["equal" if same else "different"] += 1
            gap = np.abs(got.astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1e-30)
            outcomes.append(name if same else f"{name} DIFFERS by {gap:.1e}")
        say(f"  {text}: {', '.join(outcomes)}")
    say("  ", counts)


def libraries(queue: Any) -> None:
    """CuPy, JAX, Numba: results of their kind, the bits of the queue."""
    problem = ConvProblem.parse(PROBLEMS[0])
    arrays = operands(problem)
    expected = call(problem, {name: cla.to_device(queue, array) for name, array in arrays.items()}).get()
    makers: dict[str, Callable[[], Any]] = {}
    for name, module in (("cupy", "cupy"), ("jax", "jax.numpy"), ("numba", "numba.cuda")):
        try:
            made = __import__(module, fromlist=["x"])
        except Exception as error:
            say(f"  {name}: not here ({type(error).__name__})")
            continue
        makers[name] = made.to_device if name == "numba" else made.asarray
    for name, make in makers.items():
        try:
            given = {key: make(array) for key, array in arrays.items()}
            results = [call(problem, given) for _ in range(3)]
            got = results[-1].copy_to_host() if name == "numba" else np.asarray(
                results[-1].get() if name == "cupy" else results[-1]
            )  # fmt: skip
            total = "" if name == "numba" else float((results[0] * 2 - results[1]).sum() - results[2].sum())
            say(f"  {name}: {type(results[-1])}, bits equal {np.array_equal(got, expected)}, used further: {total}")
        except Exception:
            say(f"  {name} FAILED", traceback.format_exc(limit=4))
    tensor = cd.Tensor.from_dlpack(torch.from_numpy(arrays["x"]).cuda())
    back = torch.from_dlpack(tensor + tensor)
    say("  Tensor over PyTorch's memory:", torch.equal(back.cpu(), torch.from_numpy(2 * arrays["x"])))


def launches_of(prepared: Any, stream: CudaStream, tensors: Sequence[torch.Tensor]) -> list[tuple[Any, list[Any]]]:
    """The kernels that a call launches and their arguments, on memory that stays."""
    addresses, found = [tensor.data_ptr() for tensor in tensors], []
    launches = loaded_launches(prepared, stream)
    assert launches is not None
    scratch: dict[int, torch.Tensor] = {}
    for function, arguments, places in launches.given:
        given = list(arguments)
        for at, operand, offset in places:
            if operand >= len(addresses):
                size = prepared.workspace_size
                given[at] = scratch.setdefault(operand, torch.empty(size, dtype=torch.uint8, device="cuda")).data_ptr()
            else:
                given[at] = addresses[operand]
            given[at] += offset
        found.append((function, given))
    HELD.append(scratch)
    return found


def overhead(queue: Any) -> None:
    """The host's time of a warm call above the bare launch of the same kernels."""
    for text in ("fwd_f32_mb1ic64ih56iw56oc256kh1kw1", "fwd_f32_mb1ic256ih14iw14oc256kh3kw3ph1pw1"):
        problem = ConvProblem.parse(text)
        arrays = operands(problem)
        given = {name: torch.from_numpy(array).cuda() for name, array in arrays.items()}
        on_queue = {name: cla.to_device(queue, array) for name, array in arrays.items()}
        out, y = call(problem, given), call(problem, on_queue)
        stream = library_of(torch.Tensor).stream(out, 0)
        prepared = dispatch.prepare(problem, stream.context)
        bound = launches_of(prepared, stream, (given["x"], given["w"], out))

        def bare(bound: Any = bound, handle: Any = stream.handle) -> None:
            for function, arguments in bound:
                function(handle, arguments)

        pad = problem.ph
        ways = {
            f"bare cuLaunchKernel x{len(bound)}": bare,
            "conv(torch, out=)": lambda g=given, o=out, p=pad: cd.conv(g["x"], g["w"], padding=p, out=o),
            "conv(torch)": lambda g=given, p=pad: cd.conv(g["x"], g["w"], padding=p),
            "torch's own": lambda g=given, p=problem: torch.nn.functional.conv2d(g["x"], g["w"], padding=p.ph),
        }
        say(f"  {text}: {prepared.solver.name}")
        for name, way in ways.items():
            both, host = timed(way, torch.cuda.synchronize)
            say(f"    {name}: {both:.1f} us a call, host {host:.1f}")
        both, host = timed(lambda g=on_queue, o=y, p=pad: cd.conv(g["x"], g["w"], padding=p, out=o), queue.finish)
        say(f"    OpenCL queue, conv(Array, out=): {both:.1f} us a call, host {host:.1f}")
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            call(problem, given, out)
        torch.cuda.synchronize()
        expected = out.clone()
        with torch.cuda.graph(graph, stream=side):
            for _ in range(20):
                call(problem, given, out)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        both, _ = timed(graph.replay, torch.cuda.synchronize, 20)
        say(f"    torch.cuda.graph: {both / 20:.1f} us a call, bits equal {torch.equal(out, expected)}")


def memory(queue: Any) -> None:
    """Device and host memory over many calls, on each path."""
    problem = ConvProblem.parse("fwd_f32_mb1ic256ih14iw14oc256kh3kw3ph1pw1")
    arrays = operands(problem)
    given = {name: torch.from_numpy(array).cuda() for name, array in arrays.items()}
    paths = {"torch": lambda: call(problem, given), "NumPy": lambda: call(problem, arrays)}
    on_queue = {name: cla.to_device(queue, array) for name, array in arrays.items()}
    paths["Array"] = lambda: call(problem, on_queue)
    try:
        import cupy

        cupys = {name: cupy.asarray(array) for name, array in arrays.items()}
        paths["cupy"] = lambda: call(problem, cupys)
    except ImportError:
        pass
    try:
        import jax.numpy

        jaxs = {name: jax.numpy.asarray(array) for name, array in arrays.items()}
        paths["jax"] = lambda: call(problem, jaxs)
    except ImportError:
        pass
    import resource

    for name, path in paths.items():
        seen = []
        for count in (CALLS // 10, CALLS):
            for number in range(count if name != "NumPy" else count // 10):
                path()
                if number % 500 == 0:
                    torch.cuda.synchronize()
                    queue.finish()
            torch.cuda.synchronize()
            queue.finish()
            free, _ = torch.cuda.mem_get_info()
            seen.append((free, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        device, host = seen[0][0] - seen[1][0], seen[1][1] - seen[0][1]
        say(f"  {name}: device grew {device / 1e6:.1f} MB, host's peak {host / 1e3:.1f} MB over {CALLS} calls")


def devices(queue: Any) -> None:
    """An array of GPU 1 runs on GPU 1."""
    problem = ConvProblem.parse(PROBLEMS[0])
    arrays = operands(problem)
    results = []
    for number in range(torch.cuda.device_count()):
        with torch.cuda.device(0):
            y = call(problem, {name: torch.from_numpy(array).cuda(number) for name, array in arrays.items()})
            results.append((y.device, torch.cuda.current_device(), y.cpu()))
    same = all(torch.equal(each[2], results[0][2]) for each in results)
    say(f"  {[str(each[0]) for each in results]}, current device stays {[each[1] for each in results]}, equal {same}")


def net(queue: Any) -> None:
    """ResNet-50, batch 1 and 64, float32: the inference form on the queue and as a graph, beside PyTorch's forms."""
    import torchvision

    from convdispatch import inference
    from convdispatch.models import catalogue

    torch.backends.cuda.matmul.allow_tf32 = False
    stream = torch.cuda.current_stream().cuda_stream
    for batch in (1,) if QUICK else (1, 64):
        ours = catalogue.create("resnet50", queue=queue)
        ours.eval()
        x = np.random.default_rng(0).standard_normal((batch, 3, 224, 224), np.float32)
        for queues in (1, 4) if batch == 1 else (1,):
            for layout in ("nchw", "nhwc") if batch == 1 else ("nhwc",):
                built = inference.build(ours, x.shape, queue=queue, layout=layout, queues=queues)
                expected, given = built(x), torch.from_numpy(x).cuda()
                got = built(given)
                if built._program.replay is None:
                    say(f"  batch {batch} {layout}: no graph: {built._program.no_graph}")
                    continue
                side = CudaStream(place_of(0), stream)
                graph, host = timed(lambda b=built, s=side: b.run(s), torch.cuda.synchronize, 50)
                whole, _ = timed(lambda b=built, g=given: b(g), torch.cuda.synchronize, 50)
                same = np.array_equal(got.cpu().numpy(), expected)
                words = f"  batch {batch} {layout}, {built.queues} streams, {built.commands} commands: "
                words += f"graph {graph / 1e3:.3f} ms (host {host:.0f} us), a call with PyTorch's tensors "
                say(words + f"{whole / 1e3:.3f}, bits equal {same}; tried {built.tried}")
        if QUICK:
            continue
        peer = torchvision.models.resnet50().cuda().eval()
        for form in ("contiguous", "channels_last"):
            kind = getattr(torch, form + "_format" if form == "contiguous" else form)
            shaped, y = peer.to(memory_format=kind), torch.from_numpy(x).cuda().to(memory_format=kind)
            with torch.inference_mode():
                eager, _ = timed(lambda m=shaped, y=y: m(y), torch.cuda.synchronize, 20)
                recorded = torch.cuda.CUDAGraph()
                torch.cuda.synchronize()
                with torch.cuda.graph(recorded):
                    shaped(y)
                replayed, _ = timed(recorded.replay, torch.cuda.synchronize, 20)
                words = f"  batch {batch} PyTorch {form}: eager {eager / 1e3:.3f} ms, graph {replayed / 1e3:.3f}"
                if form == "channels_last" and batch == 1:
                    fast = torch.compile(shaped, mode="reduce-overhead")
                    compiled, _ = timed(lambda m=fast, y=y: m(y), torch.cuda.synchronize, 20)
                    words += f", compile {compiled / 1e3:.3f}"
            say(words)


def train(queue: Any) -> None:
    """A captured training step of ResNet-50, batch 16: enqueued, and as a CUDA graph beside the queue."""
    from convdispatch.models import catalogue
    from convdispatch.nn import Tape, capture
    from convdispatch.nn.functional import cross_entropy

    ours = catalogue.create("resnet50", queue=queue)
    x = cd.Tensor.from_numpy(np.random.default_rng(0).standard_normal((16, 3, 224, 224), np.float32), queue)
    labels = cd.Tensor.from_numpy(np.arange(16, dtype=np.int32), queue)

    @capture
    def step(x: Any, labels: Any) -> Any:
        with Tape() as tape:
            loss = cross_entropy(ours(x), labels)
        tape.backward(loss)
        return loss

    losses = [float(step(x, labels).numpy()) for _ in range(3)]
    program = next(iter(step._known.values())).program
    say(f"  {step.commands} commands, losses {losses}, graph: {program.on_graph}, {program.no_graph}")
    for on_graph in (False, True, False, True):
        program.on_graph = on_graph and program.replay is not None
        both, host = timed(lambda: step(x, labels), queue.finish, 10, 3)
        say(f"  {'graph' if program.on_graph else 'queue'}: {both / 1e3:.2f} ms a step, host {host / 1e3:.2f} ms")


PARTS = {
    "bits": bits,
    "net": net,
    "train": train,
    "libraries": libraries,
    "overhead": overhead,
    "devices": devices,
    "memory": memory,
}


@click.command()
@click.option("--budget", default=150.0, show_default=True, help="Seconds for the comparison of bits.")
@click.option("--only", default=",".join(PARTS), help="Parts, by comma.")
@click.option("--quick", is_flag=True, help="Nets at batch 1, without PyTorch's forms.")
def main(budget: float, only: str, quick: bool) -> None:
    """Measure."""
    global QUICK
    QUICK = quick
    queue = runtime.queue(runtime.find_device("nvidia"))
    torch.backends.cudnn.allow_tf32 = False
    say(runtime.device_info(queue.device), torch.__version__, torch.cuda.get_device_name())
    for name in only.split(","):
        start = time.perf_counter()
        say(f"{name}:")
        try:
            PARTS[name](queue, start + budget) if name == "bits" else PARTS[name](queue)
        except Exception:
            say(f"  {name} FAILED", traceback.format_exc(limit=8))
        say(f"  ({time.perf_counter() - start:.1f} s)")


if __name__ == "__main__":
    main()
