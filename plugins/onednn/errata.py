"""Known errors of oneDNN's AVX-512 weight gradients: which implementations are skipped, which need zeroed memory.

Found with oneDNN 3.12 on AVX-512 machines, some 10,000 random weights' gradients against float64, each with the scratch
memory full of zeros and full of NaN, the images between NaN; of those that ``wrong`` and ``reads_scratch`` do not name,
none was wrong.
"""

from __future__ import annotations

from convdispatch.api import ConvProblem


def wrong(problem: ConvProblem, implementation: str, channels_last: bool) -> bool:
    """Whether an implementation is known to give wrong numbers for the problem, or to crash.

    In bfloat16, of images whose channels are last, rows are transposed into scratch memory before they are multiplied;
    where kernels are dilated along the other axes it reads such rows as nobody wrote. 77 of 408 such weights' gradients
    were wrong, mostly of rows of 28 places and more, and 24 ended in a segmentation fault; with blocks of channels none
    of 128 was, nor of dense kernels any of 450.

    Of three axes, the first two are walked with an image at least as long as the kernel in mind: where the kernel
    hangs over both ends at once, 48 of 177 weights' gradients were wrong and four runs ended in a segmentation fault.
    """
    if problem.direction != "bwd_weights" or not _generated(implementation):
        return False
    dilated = any(getattr(problem, "d" + axis) > 1 for axis in problem.axes[:-1])
    if dilated and channels_last and implementation.startswith("jit_bf16:"):
        return True
    return problem.ndim == 3 and any(
        getattr(problem, "i" + axis) < (getattr(problem, "k" + axis) - 1) * getattr(problem, "d" + axis) + 1
        for axis in problem.axes[:-1]
    )


def reads_scratch(problem: ConvProblem, implementation: str) -> bool:
    """Whether an implementation reads scratch memory that it has not written, so that it must hold zeros.

    In bfloat16 rows are transposed into scratch memory first; with a stride, the ends of short rows are left out there
    and read nevertheless: what the memory held before came into the result, in 33 of 1,500 problems. Its way for matrix
    registers does so too: in 16 of 154 problems of a stride, in none of 206 of others.
    """
    strided = getattr(problem, "s" + problem.axes[-1]) > 1
    return problem.direction == "bwd_weights" and strided and implementation.startswith(("jit_bf16:", "brgconv_bwd_w:"))


def _generated(implementation: str) -> bool:
    return implementation.startswith(("jit:avx512", "jit_bf16:avx512"))
