"""A geometry's numbers as one kernel argument, so that one program serves all geometries that differ only in numbers.

Reading a number costs less than compiling: the text contains only types, layouts, planes and the epilogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MAX_LISTED = 64
"""Longest list of numbers that is a kernel argument; longer lists are constants in the program text."""


def sizes_argument(
    ints: Mapping[str, int], longs: Mapping[str, int], lists: Mapping[str, tuple[str, Sequence[int], int]]
) -> tuple[str, Any]:
    """(OpenCL text, the argument): a struct ``Sizes``, each of whose members has a macro of its name.

    ``lists`` map a name to (``int`` or ``long``, values, least capacity); the capacity is a power of four. A function
    that reads members begins its parameters with ``SIZES_IN``, and a call of it its arguments with ``SIZES``; ``sizes``
    points to the struct. The text depends only on names and capacities. Raises OverflowError for numbers that are too
    large.
    """
    formats, constants = {"int": "<i4", "long": "<i8"}, ""
    members = [(name, "long", 1, value) for name, value in longs.items()]
    members += [(name, "int", 1, value) for name, value in ints.items()]
    text, types, values = "", [], []
    for name, (kind, numbers, capacity_at_least) in lists.items():
        if len(numbers) > MAX_LISTED:
            constants += f"constant {kind} {name}[] = {{{', '.join(map(str, numbers))}}};\n"
            continue
        capacity = next(4**n for n in range(4) if 4**n >= max(len(numbers), capacity_at_least))
        members.append((name, kind, capacity, [*numbers, *[0] * (capacity - len(numbers))]))  # type: ignore[arg-type]
    for name, kind, capacity, value in members:
        text += f"  {kind} {name}_{f'[{capacity}]' if name in lists else ''};\n"
        types.append((name, formats[kind], (capacity,)) if name in lists else (name, formats[kind]))
        values.append(value)
    text = "typedef struct {\n" + text + "} Sizes;\n" + "".join(f"#define {n} (sizes->{n}_)\n" for n, *_ in members)
    text += "#define SIZES_IN const Sizes *restrict sizes,\n#define SIZES sizes,\n"
    struct = np.array([tuple(values)], np.dtype(types, align=True))
    # NumPy void without field names, because pyopencl's caches distinguish struct types by size alone.
    return constants + text, np.void(struct.tobytes())
