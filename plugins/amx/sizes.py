"""A geometry's numbers as one argument of a kernel: a program serves all geometries that differ in numbers alone.

Compiling takes longer than reading a number: what stays in the text are types, layouts, planes and what follows a sum.
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
    """(OpenCL text, the argument): a struct ``Sizes``, whose members are macros of the given names.

    ``lists`` have a type, ``int`` or ``long``, values, and for how many there is always room; other room is a power of
    four. ``SIZES_IN`` begins the parameters of a function that reads some, ``SIZES`` the arguments of a call where
    ``sizes`` points to them. The text depends on names and room alone. Raises OverflowError for numbers too large.
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
