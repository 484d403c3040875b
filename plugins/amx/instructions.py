"""Generates OpenCL functions that multiply in AMX tiles by inline assembly, whose operands are pointers only.

Intel's compiler itself does not use tiles: their contents survive from one block of assembly to the next of the same
work item. The instructions are in volume 1, chapter 18 of Intel's manual.
"""

from __future__ import annotations

from convdispatch.api import ConvProblem
from convdispatch.api.activations import ACTIVATIONS, parse_activation
from convdispatch.api.cpu import assembly

ROWS, BYTES = 16, 64
"""Rows of an AMX tile, and bytes of each row."""


def product(
    name: str, planes: int, a: dict[str, int], b: dict[str, int], tiles: tuple[int, int], accumulates: bool = False
) -> str:
    """OpenCL function ``name(a, b, offsets, steps, sums)``: ``sums[32][32] = A B`` over ``steps`` of 32 summed indices.

    ``a`` and ``b`` give the strides of their operand in bytes: ``row``, ``tile``, ``plane`` and ``step``. Without
    ``step`` the operand's byte offset is read from ``offsets``, one int32 per step, which is a parameter only if some
    operand needs it. Such an operand without ``plane`` has planes ``line`` bytes apart (a last parameter) and rows
    ``planes`` lines apart. ``tiles``: tiles of A and of B, one or two. ``goes_on``: the sums begin with what memory
    holds, not with 0.
    """
    rows, columns = tiles
    sums = [(i, j) for i in range(rows) for j in range(columns)]
    sides = {"a": (a, 4, rows), "b": (b, 6, columns)}
    listed = [side for side, (strides, _, _) in sides.items() if "step" not in strides]
    with_line = [side for side in listed if "plane" not in sides[side][0]]

    def loads(side: str, plane: int) -> list[str]:
        strides, first_register, count = sides[side]
        base = f"%[t{plane}]" if side in with_line else "%[t0]" if side in listed else f"%[{side}]"
        offset = plane * strides.get("plane", 0)
        tiles = [(first_register + i, offset + i * strides["tile"]) for i in range(count)]
        return [f"tileloadd {address}({base},%[{side}row],1), %%tmm{register}" for register, address in tiles]

    def per_sum(instruction: str) -> list[str]:
        return [f"{instruction} {i * ROWS * 128 + j * BYTES}(%[sums],%[pitch],1), %%tmm{2 * i + j}" for i, j in sums]

    address_registers = [f"t{plane}" for plane in range(planes if with_line else len(listed))]
    lines = per_sum("tileloadd") if accumulates else [f"tilezero %%tmm{2 * i + j}" for i, j in sums]
    lines += ["1:"]
    for side in listed:
        lines += ["movslq (%[offsets]), %[t0]", f"add %[{side}], %[t0]", "add $4, %[offsets]"]
    for plane in range(1, len(address_registers)):
        lines += [f"mov %[t{plane - 1}], %[t{plane}]", f"add %[line], %[t{plane}]"]
    loaded: dict[str, int] = {}
    for pair in PRODUCTS[planes]:
        for side, plane in zip("ab", pair, strict=True):
            if loaded.get(side) != plane:
                loaded[side] = plane
                lines += loads(side, plane)
        lines += [f"tdpbf16ps %%tmm{6 + j}, %%tmm{4 + i}, %%tmm{2 * i + j}" for i, j in sums]
    lines += [f"add ${strides['step']}, %[{side}]" for side, (strides, _, _) in sides.items() if side not in listed]
    lines += ["dec %[steps]", "jnz 1b"]
    lines += [f"tilestored %%tmm{2 * i + j}, {i * ROWS * 128 + j * BYTES}(%[sums],%[pitch],1)" for i, j in sums]
    rows = {side: f"line * {planes}" if side in with_line else f"{by['row']}L" for side, (by, *_) in sides.items()}
    read = {f"{side}row": row for side, row in rows.items()} | ({"line": "line"} if with_line else {})
    parameters = ["global const uchar *a", "global const uchar *b", *["global const int *offsets"] * bool(listed)]
    parameters += ["long steps", "global float *sums", *["long line"] * bool(with_line)]
    changed = ["a", "b", *["offsets"] * bool(listed), "steps"]
    read |= {"sums": "sums", "pitch": "128L"}
    return assembly(name, ", ".join(parameters), lines, changed, read, address_registers)


PRODUCTS: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((0, 0),),
    2: ((0, 1), (0, 0), (1, 0)),
    3: ((0, 2), (0, 1), (1, 1), (1, 0), (0, 0), (2, 0)),
}
"""For each number of planes, the products (plane of A, plane of B), in an order that loads few tiles."""


def planes_of(problem: ConvProblem) -> int:
    """Number of bfloat16 planes that reach the accuracy that the problem asks for; 0 if no number does.

    Products smaller than the last bit of the sum of the others are omitted (Henry, Tang and Heinecke 2019). One plane
    (8 significant bits) is for bfloat16; two (16 bits, 3 products) are for float16, and for float32 within 1e-5 of
    float64; three (24 bits, 6 products) for float32 before a bounded activation such as ``tanh``, whose result stays
    small while sums and their errors grow. Sums are float32; each plane has float32's range, so that no scales are
    needed. ``math="ieee"`` is refused: products of small numbers in the third plane are subnormal, which these
    instructions flush to 0.
    """
    if problem.dtype == "float32":
        name = problem.activation and parse_activation(problem.activation)[0]
        return 0 if problem.math == "ieee" else 3 if name and ACTIVATIONS[name].saturates else 2
    return {"bfloat16": 1, "float16": 2}[problem.dtype]
