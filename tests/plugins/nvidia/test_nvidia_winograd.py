"""nvidia.winograd: transforms, planes, products and their way out, with the tensor cores replaced by plain C."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from convdispatch_nvidia.winograd.solver import WinogradPlan
from convdispatch_nvidia.winograd.tiling import Points, PointsTile, margin
from plans import check_on_device, check_plan

from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.selection.plugins.loader import plugins
from convdispatch.tensor import Tensor

pytestmark = [pytest.mark.usefixtures("item_by_item"), pytest.mark.computes]

SOLVER = plugins().solvers["nvidia.winograd"]
HOPPER = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132)
SMALL = {"bm": 64, "bn": 64, "wm": 1, "wn": 1, "format": "half2"}
CASES = [
    # problem, what the configuration adds
    ("fwd_f32_mb2ic32ih8iw8oc32kh3ph1", {"bn": 32}),
    ("fwd_f32_mb1ic40ih9iw7oc72kh3ph0+bias+residual+relu", {}),
    ("fwd_f32_mb3ic32ih5iw12oc32kh3ph2pw0ph_r1pw_r1+accumulate", {"pieces": 2}),
    ("fwd_f32_mb1ic72ih6iw6oc40kh3ph1+constant", {"bn": 24, "flush_every": 3}),
    ("fwd_f32_mb2ic40ih4iw4oc32kh3ph1", {"bk": 32, "bn": 32, "flush_every": 2}),
    ("fwd_f32_mb2ic8ih8iw8oc8kh3ph0pw0ph_r1pw_r1", {"bn": 8}),
    ("fwd_f32_nhwc_mb2ic40ih9iw6oc72kh3ph1+bias+residual+relu", {}),
    ("fwd_f32_nhwc_mb2ic32ih5iw10oc24kh3ph0pw2+accumulate", {"bn": 24, "pieces": 3}),
    ("bwd_data_f32_nhwc_mb1ic32ih6iw7oc40kh3ph1+constant", {"bn": 32, "bk": 32}),
    ("bwd_weights_f32_nhwc_mb8ic40ih9iw10oc32kh3ph1", {"split": 2}),
    ("bwd_data_f32_mb2ic40ih7iw10oc32kh3ph1", {}),
    ("bwd_data_f32_mb1ic32ih6iw6oc72kh3ph2pw1+constant", {"bn": 32}),
    ("bwd_weights_f32_mb2ic40ih9iw8oc72kh3ph1", {}),
    ("bwd_weights_f32_mb3ic32ih7iw9oc40kh3ph1", {"bk": 32}),
    ("bwd_weights_f32_mb8ic32ih12iw13oc32kh3ph0pw1+accumulate", {"split": 2}),
]
PLAIN = [CASES[0][0], CASES[10][0], CASES[12][0]]
"""Those of which others have all that they have."""


@pytest.mark.parametrize(("text", "extra"), CASES, ids=[text for text, _ in CASES])
def test_emulated(queue, full, text, extra):
    """Real data: an error within what float32 promises; and where sums are short, far below it."""
    if not full and text in PLAIN:
        pytest.skip("thinned out; --full runs it")
    problem, config = ConvProblem.parse(text), {**SMALL, **extra}
    assert Points(problem, PointsTile.of(config)).tiling.misfit is None
    plan = WinogradPlan(queue.context, problem, config, emulate=True)
    check_plan(queue, problem, plan, f"{problem} {config}", data="real", limit=2e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("magnitude", [1e-30, 3e33])
def test_wide_ranges(queue, direction, magnitude):
    """Scales follow the tensors, of which one is large and one small; a value far below the largest keeps its bits."""
    problem = ConvProblem.parse(f"{direction}_f32_mb1ic32ih6iw6oc32kh3ph1")
    random = np.random.default_rng(5)
    read = [name for name in "xwy" if name != problem.written]
    arrays = {
        name: (random.standard_normal(getattr(problem, name + "_shape")) * size).astype(np.float32)
        for name, size in zip(read, (magnitude, 1 / magnitude), strict=True)
    }
    for array in arrays.values():
        array.flat[3] *= 300
    plan = WinogradPlan(queue.context, problem, SMALL, emulate=True)
    given = {name: Tensor.from_numpy(array, queue) for name, array in arrays.items()}
    out = given[problem.written] = Tensor.empty(problem.out_shape, np.float32, queue)
    plan.enqueue(queue, *(given[name].base_data for name in "xwy"), runtime.allocate(queue, plan.workspace_size))
    expected = reference.compute(problem, **arrays)
    assert reference.relative_error(out.numpy(), expected) < 3e-6


def test_margins():
    """Transforms' values exceed the tensor's by no more than the margin says, or float16 would overflow."""
    random = np.random.default_rng(1)
    for direction in DIRECTIONS:
        geometry = Points(
            ConvProblem.parse(f"{direction}_f32_mb1ic32ih8oc32kh3ph1"), PointsTile(64, 64, 1, 1, "half2")
        ).geometry
        for name in ("bt", "g"):
            h, w = (np.array(matrix, float) for matrix in geometry.matrices(name))
            most = abs(h).sum(1).max() * abs(w).sum(1).max()
            values = random.choice([-1.0, 1.0], (4096, h.shape[1], w.shape[1]))
            assert abs(h @ values @ w.T).max() / 1.000001 <= most <= 2.0 ** margin(geometry.matrices(name))


def test_a_small_device_gets_smaller_pieces():
    """Where an allocation may hold only so much, the tiles are cut."""
    problem = ConvProblem.parse("fwd_f32_mb64ic256ih56oc256kh3ph1")
    whole = SOLVER.workspace(problem, HOPPER, next(iter(SOLVER.configs(problem, HOPPER))))
    small = dataclasses.replace(HOPPER, max_alloc_size=whole // 3)
    config = next(iter(SOLVER.configs(problem, small)))
    assert config["pieces"] > 1
    assert SOLVER.workspace(problem, small, config) <= whole // 3


def test_on_the_device(queue):
    """On a GPU with wgmma: every case, its first configurations."""
    check_on_device(queue, SOLVER, [text for text, _ in CASES], {"data": "real", "limit": 3e-6})
