"""int8: a GPU's layers beside float16's, and a product of a CPU's VNNI beside ours in wider types.

python -m bench int8 gpu     # one NVIDIA GPU, PyTorch: ResNet-50's layers by ``conv``, in CUDA graphs
python -m bench int8 cpu     # x86 with AVX512-VNNI, Intel's OpenCL: ``vpdpbusd``, beside float32 and dot_acc_sat
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import click
import numpy as np


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--batch", default=32, show_default=True)
@click.option("--seconds", default=0.004, show_default=True, help="of a sample")
@click.option("--budget", default=120.0, show_default=True)
def gpu(batch: int, seconds: float, budget: float) -> None:
    """int8 and float16, channels last, constant weights, each as a CUDA graph, in turns, operands not in the cache."""
    import torch

    import convdispatch as cd
    from bench.timer import graph_side, medians, sets_of
    from convdispatch.measurement import shapes

    begun, ratios = time.monotonic(), []
    problems = [entry.problem for entry in shapes.load("resnet50")]
    for p in dict.fromkeys(
        each.replace(direction="fwd", mb=batch, layout="nhwc", dtype="float16") for each in problems
    ):
        if p.ic % 4:
            continue
        if time.monotonic() - begun > budget:
            break
        quantization = cd.Quantization(
            x_scale=0.02, x_zero_point=3, w_scale=np.full(p.oc, 0.01, np.float32), y_scale=0.7, dtype="uint8"
        )
        options = {"stride": (p.sh, p.sw), "padding": (p.ph, p.pw), "layout": "nhwc"}
        many = sets_of(math.prod(p.x_shape) + math.prod(p.y_shape))

        def made(shape, kind):
            values = torch.randint(-100, 100, shape, device="cuda")
            return (values / 100 if kind == torch.float16 else values).to(kind)

        def side(kind, w_kind, many=many, p=p, options=options, **more):
            w = cd.constant(made(p.w_shape, w_kind))
            pairs = [(made(p.x_shape, kind), made(p.y_shape, kind)) for _ in range(many)]

            def work(number: int) -> None:
                x, y = pairs[number % many]
                cd.conv(x, w, out=y, **options, **more)

            return graph_side(work)

        sides = {"int8": side(torch.uint8, torch.int8, quantization=quantization)}
        sides["float16"] = side(torch.float16, torch.float16)
        found = {name: 1e3 * ms for name, ms in medians(sides, seconds).items()}
        ratios.append(found["float16"] / found["int8"])
        rate = p.flops / found["int8"] / 1e6
        print(f"{p}: int8 {found['int8']:.1f} us ({rate:.0f} TOP/s), float16 {found['float16']:.1f} us, ratio "
              f"{found['float16'] / found['int8']:.2f}", flush=True)  # fmt: skip
    mean = math.exp(float(np.mean(np.log(ratios))))
    print(f"{torch.cuda.get_device_name()}, batch {batch}: geometric mean {mean:.2f}, least {min(ratios):.2f}")


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

    def work(held=memory) -> None:  # a kernel keeps none of its arguments
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
