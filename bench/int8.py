"""int8, looked at: one product of Hopper's tensor cores and one of a CPU's VNNI, exact, beside ours in wider types.

    python bench/int8.py gpu     # one NVIDIA GPU: nvidia.tma on bytes, ``wgmma ... s32.s8.s8``, beside float16's
    python bench/int8.py cpu     # x86 with AVX512-VNNI, Intel's OpenCL: ``vpdpbusd``, beside float32 and dot_acc_sat

Prototypes, which no solver offers (ADR 16). A pair of int8 channels is to the copy engine what one
float16 channel is, so the GPU's is ``nvidia.tma``'s kernel of half as many channels with another instruction, its sums
times a scale rounded to float16.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable

import click
import numpy as np

LAYERS = (
    "mb64ic256ih14oc256kh3ph1", "mb64ic128ih28oc128kh3ph1", "mb64ic512ih7oc512kh3ph1", "mb64ic256ih56oc256kh3ph1",
    "mb64ic1024ih14oc256kh1", "mb64ic64ih56oc256kh1",
)  # fmt: skip
SCALE = 2.0**-12


def as_int8(text: str) -> str:
    """``nvidia.tma``'s program with bytes for 16-bit numbers: sums are int32, results ``SCALE`` times the sum."""

    def once(old: str, new: str, text: str) -> str:
        text, found = re.subn(old, new, text)
        if not found:
            raise ValueError(f"the kernel has no {old} any more")
        return text

    text = once(r'"\+f"\(c\[(\d+)\]\)', r'"+r"(c[\1])', text)
    text = once(r"inline void (wgmma|wgmma_finish)\(float \*c", r"inline void \1(int *c", text)
    text = once(r"k16\.f32\.f16\.f16 (.*?), p, 1, 1, 0, 0;", r"k32.s32.s8.s8 \1, p;", text)
    text = once(r"float sum\[", "int sum[", text)
    return once(r"narrow\(f\[([^\]]*)\]\)", rf"narrow(f[\1] * {SCALE}f)", text)


def half_as_wide(problem):
    """The float16 problem whose tensors are the bytes of an int8 one's x and w."""
    return problem.replace(ic=problem.ic // 2)


def right(problem, x: np.ndarray, w: np.ndarray, y: np.ndarray, points: int = 400) -> bool:
    """Whether sampled results are the nearest float16 to the integer sums times ``SCALE``."""
    random = np.random.default_rng(1)
    pad = [(0, 0), (problem.ph, problem.ph_r), (problem.pw, problem.pw_r), (0, 0)]
    wide = np.pad(x.astype(np.int64), pad)
    for n, h, v, o in zip(*(random.integers(0, size, points) for size in y.shape), strict=True):
        window = wide[n, h * problem.sh : h * problem.sh + problem.kh, v * problem.sw : v * problem.sw + problem.kw]
        if np.float16((window * w[o]).sum() * SCALE) != y[n, h, v, o]:
            return False
    return True


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--tries", default=6, show_default=True, help="configurations of int8, and of float16")
@click.option("--seconds", default=0.002, show_default=True)
@click.option("--budget", default=60.0, show_default=True)
def gpu(tries: int, seconds: float, budget: float) -> None:
    """int8 and float16 beside each other, layer by layer."""
    import pyopencl as cl
    from nvidia_values import Bench

    from convdispatch.api import ConvProblem
    from convdispatch.selection.plugins.loader import plugins

    begun, bench = time.monotonic(), Bench("float16", 60_000_000)
    solver = plugins().solvers["nvidia.tma"]
    probe = ConvProblem.parse("fwd_f16_nhwc_mb1ic64ih8oc64kh3ph1")
    plan_of = type(solver.plan(bench.context, probe, next(iter(solver.configs(probe, bench.info)))))

    class Int8Plan(plan_of):
        def product_text(self) -> str:
            return as_int8(super().product_text())

    def offers(problem):
        return itertools.islice((c for c in solver.configs(problem, bench.info) if c.get("split", 1) == 1), tries)

    random = np.random.default_rng(0)
    for text in LAYERS:
        problem = ConvProblem.parse(f"fwd_f16_nhwc_{text}")
        bytes_ = half_as_wide(problem)
        bench.load(bytes_)
        x = random.integers(-127, 128, (problem.mb, problem.ih, problem.iw, problem.ic), np.int8)
        w = random.integers(-127, 128, (problem.oc, problem.kh, problem.kw, problem.ic), np.int8)
        for each in bench.sets:
            cl.enqueue_copy(bench.queue, each["x"], x)
            cl.enqueue_copy(bench.queue, each["w"], w)
        best, note = (1e30, None), ""
        for config in offers(bytes_):
            try:
                plan = Int8Plan(bench.context, bytes_, config, "wgmma")
                bench.enqueue(plan).wait()
                y = np.empty(problem.y_shape, np.float16)
                cl.enqueue_copy(bench.queue, y, bench.out)
                if not right(problem, x, w, y):
                    note = "WRONG"
                    continue
                best = min(best, (bench.time(plan, seconds), str(config)))
            except Exception as error:
                note = f"{type(error).__name__}: {str(error)[:300]} {str(getattr(error, 'log', ''))[:500]}"
        bench.load(problem)
        for name in ("x", "w"):  # numbers again, not bytes
            for each in bench.sets:
                values = np.resize(bench.block, np.prod(getattr(problem, name + "_shape")))
                cl.enqueue_copy(bench.queue, each[name], values)
        halves = [bench.time(solver.plan(bench.context, problem, c), seconds) for c in offers(problem)]
        first = next(iter(solver.configs(problem, bench.info)))
        chosen = bench.time(solver.plan(bench.context, problem, first), seconds)
        half = min([chosen, *halves])
        rates = [problem.flops / ms / 1e9 for ms in (best[0], half)]
        print(f"{text}: int8 {best[0] * 1e3:.1f} us ({rates[0]:.0f} TOP/s), float16 {half * 1e3:.1f} us", end=" ")
        print(f"({rates[1]:.0f} TFLOP/s), ratio {half / best[0]:.2f} {best[1]} {note}", flush=True)
        if time.monotonic() - begun > budget:
            break


# --- the CPU ---------------------------------------------------------------------------------------------------------

ROWS = 14


def vnni_text(inst: str = "vpdpbusd", rows: int = ROWS) -> str:
    """C[m, n] += sum over k of A[m, k] B[k, n]: ``rows`` rows by 32 columns; four bytes of k an instruction.

    a: uchar [m / rows][k / 4][rows][4]; b: char [n / 32][k / 4][32][4]; c: int [m][n]. The compiler is told of memory
    alone: it knows no names of these registers, so nothing of it may live in them; the function does nothing else.
    """
    lines = [f"vpxord %%zmm{i}, %%zmm{i}, %%zmm{i}" for i in range(2 * rows)]
    lines += ["1:", "vmovdqu32 (%1), %%zmm28", "vmovdqu32 64(%1), %%zmm29"]
    for i in range(rows):
        lines += [f"vpbroadcastd {4 * i}(%0), %%zmm30"]
        lines += [f"{inst} %%zmm{28 + v}, %%zmm30, %%zmm{2 * i + v}" for v in range(2)]
    lines += [f"add ${4 * rows}, %0", "add $128, %1", "dec %3", "jnz 1b"]
    for i in range(rows):
        lines += [f"vmovdqu32 %%zmm{2 * i}, (%2)", f"vmovdqu32 %%zmm{2 * i + 1}, 64(%2)", "add %4, %2"]
    body = "\\n".join(lines)
    return f"""
__attribute__((noinline))
void tile(global const uchar *a, global const char *b, global int *c, long steps, long pitch) {{
  __asm__ volatile("{body}" : "+r"(a), "+r"(b), "+r"(c), "+r"(steps) : "r"(pitch) : "memory");
}}
kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void product(global const uchar *a, global const char *b, global int *c, int n, int k, int tiles, int each) {{
  const int panel = get_global_id(0), first = get_global_id(1) * each;
  for (int t = first; t < min(first + each, tiles); ++t)
    tile(a + (long)t * k * {rows}, b + (long)panel * k * 32, c + (long)t * {rows} * n + panel * 32, k / 4, 4L * n);
}}"""


DOTS = """
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(int16)))
void product(global const uint *a, global const uint *b, global int *c, int n, int k, int tiles, int each) {
  const int panel = get_global_id(0), first = get_global_id(1) * each;
  for (int t = first; t < min(first + each, tiles); ++t) {
    int s[ROWS][32];
    for (int i = 0; i < ROWS; ++i) for (int v = 0; v < 32; ++v) s[i][v] = 0;
    for (int q = 0; q < k / 4; ++q)
      for (int i = 0; i < ROWS; ++i)
        for (int v = 0; v < 32; ++v)
          s[i][v] = dot_acc_sat_4x8packed_us_int(a[((long)t * (k / 4) + q) * ROWS + i],
                                                 b[((long)panel * (k / 4) + q) * 32 + v], s[i][v]);
    for (int i = 0; i < ROWS; ++i) for (int v = 0; v < 32; ++v) c[((long)t * ROWS + i) * n + panel * 32 + v] = s[i][v];
  }
}"""


@main.command()
@click.option("--m", default=6272, show_default=True, help="pixels; the default is 32 images of 14x14")
@click.option("--n", default=256, show_default=True)
@click.option("--k", default=2304, show_default=True, help="256 channels of nine taps")
@click.option("--rounds", default=7, show_default=True)
def cpu(m: int, n: int, k: int, rounds: int) -> None:
    """A matrix product in bytes by ``vpdpbusd``, by OpenCL's own dot product, and in float32, in turns."""
    from convdispatch.device import runtime

    queue, tiles = runtime.queue(runtime.find_device("cpu")), m // ROWS
    m = tiles * ROWS
    works = {"float32": _floats(queue, m, n, k)}
    for name, text, options in (
        ("vpdpbusd", vnni_text(), []),
        ("dot_acc_sat_4x8packed", f"#define ROWS {ROWS}\n{DOTS}", ["-cl-std=CL3.0"]),
    ):
        works[name] = _bytes(queue, m, n, k, text, options)
    times: dict[str, list[float]] = {name: [] for name in works}
    for name, work in itertools.chain(*([works.items()] * rounds)):
        if name.startswith("dot") and len(times[name]) > 1:
            continue  # it takes a second
        start = time.perf_counter()
        work()
        times[name].append(time.perf_counter() - start)
    for name, found in times.items():
        ms = float(np.median(found)) * 1e3
        print(f"{name}: {ms:.2f} ms, {2 * m * n * k / ms / 1e6:.0f} GOP/s")


def _bytes(queue, m: int, n: int, k: int, text: str, options: list[str]) -> Callable[[], None]:
    """A product of bytes, compared with NumPy's integers: exits with a sentence where it differs."""
    import pyopencl as cl

    random, tiles = np.random.default_rng(0), m // ROWS
    a = random.integers(0, 256, (m, k), np.uint8)
    b = random.integers(-128, 128, (k, n), np.int8)
    packed = (
        a.reshape(tiles, ROWS, k // 4, 4).transpose(0, 2, 1, 3),
        b.reshape(k // 4, 4, n // 32, 32).transpose(2, 0, 3, 1),
    )
    flags, each = cl.mem_flags, max(1, tiles // 16)
    memory = [
        cl.Buffer(queue.context, flags.COPY_HOST_PTR | flags.READ_WRITE, hostbuf=np.ascontiguousarray(each))
        for each in packed
    ]
    memory.append(cl.Buffer(queue.context, flags.READ_WRITE, 4 * m * n))
    kernel = cl.Kernel(cl.Program(queue.context, text).build(options), "product")
    kernel.set_args(*memory, *map(np.int32, (n, k, tiles, each)))

    def work(kept=memory) -> None:  # a kernel keeps none of its arguments
        cl.enqueue_nd_range_kernel(queue, kernel, (n // 32, -(-tiles // each)), (1, 1))
        queue.finish()

    work()
    found = np.empty((m, n), np.int32)
    cl.enqueue_copy(queue, found, memory[-1])
    if not np.array_equal(found[:64], a[:64].astype(np.int64) @ b.astype(np.int64)):
        raise click.ClickException("wrong sums")
    return work


def _floats(queue, m: int, n: int, k: int) -> Callable[[], None]:
    """The same sizes in float32, with one operand packed beforehand, as constant weights are."""
    import pyopencl as cl

    from convdispatch.device import runtime
    from convdispatch.device.gemm import GemmPlan, GemmSpec, configs
    from convdispatch.device.gemm.spec import Axis, Matrix

    def dense(columns: int) -> Matrix:
        return Matrix(Axis(columns), Axis(1), Axis(0))

    spec = GemmSpec(m, n, k, 1, "float32", dense(k), dense(n), dense(n), b_packed=True)
    plan = GemmPlan(queue.context, spec, next(iter(configs(spec, runtime.device_info(queue.device)))))
    sizes = (4 * m * k, plan.packed_b_size, 4 * m * n, max(128, plan.workspace_size))
    memory = [cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size) for size in sizes]
    for each in memory:
        cl.enqueue_fill_buffer(queue, each, np.float32(1), 0, each.size)

    def work() -> None:
        plan.enqueue(queue, *memory)
        queue.finish()

    work()
    return work


if __name__ == "__main__":
    main()
