"""Tile instructions of AMD's and Intel's GPUs in plain OpenCL C, as their makers' documents describe each lane.

``LAYOUTS`` says for each element of a (m x k), b (k x n) and d (m x n), in row-major order, which lane holds it and
where: lane times the numbers (sums) of a lane, plus the place. Operands that several lanes hold have a list for each.
AMD's are what the Matrix Instruction Calculator 1.3.2 prints (``--register-layout``; bfloat16's are float16's), in
``amd.json``; Intel's follow the text of cl_intel_subgroup_matrix_multiply_accumulate. Nothing here knows the plugins'
own descriptions.

- ``instruction.cl.mako``: the instruction, its operands exchanged through local memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LAYOUTS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "amd.json").read_text())


def _dpas(lanes: int) -> dict[str, Any]:
    """Component i of a is row i: of 8 work items each holds two neighbours along k, the lower half first, of 16 one.
    Component j of b is rows 2 j and 2 j + 1, column by work item; component i of the sums is row i."""
    m, k, each = 8, 16, 16 // lanes
    return {
        "m": m, "n": lanes, "k": k, "lanes": lanes, "numbers": m * each, "numbers_b": k, "sums": m,
        "a": [[i // each * m * each + r * each + i % each for r in range(m) for i in range(k)]],
        "b": [[column * k + i for i in range(k) for column in range(lanes)]],
        "d": [column * m + r for r in range(m) for column in range(lanes)],
    }  # fmt: skip


LAYOUTS |= {"dpas8": _dpas(8), "dpas16": _dpas(16)}
