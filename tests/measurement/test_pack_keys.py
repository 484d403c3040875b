"""A packed form is shared by the plans that state its key: equal keys must mean equal bytes, whatever the geometry."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pyopencl as cl
import pytest
from convdispatch_nvidia.packed.plan import NvidiaPlan
from convdispatch_nvidia.packed.solver import TensorCores
from convdispatch_nvidia.winograd.solver import Winograd, WinogradPlan
from plans import SMALL

from convdispatch import ConvProblem, constant, conv, conv_backward_data, policy, runtime
from convdispatch.api.device import DeviceInfo
from convdispatch.device.commands import interface
from convdispatch.device.programs import kernels
from convdispatch.measurement import reference
from convdispatch.measurement.conformance.checks import disagreement, packing_plans, relatives
from convdispatch.selection.choice.ranking import rank
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.usefixtures("item_by_item")

HOPPER = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132)
BASES = [
    # each solver packs for some of them
    "bwd_data_f32_mb1ic12ih8oc8kh3ph0sh2+constant",
    "fwd_f32_mb1ic3ih7oc8kh3ph1+constant",  # the weights' shape is the same channels last
    "fwd_f32_mb1ic16ih12oc16kh3ph1+constant",
    "bwd_data_f32_nhwc_g8mb1ic8ih9oc8kh3ph1sh2+constant",
    "fwd_f32_mb2ic16ih5oc8kh1+constant",
    "fwd_f32_mb1ic16ih12oc16kh5ph2+constant",
    "bwd_data_f32_mb1ic16ih15oc16kh7ph2+constant",
]
GEOMETRIES = [
    "bwd_data_f32_mb1ic16ih12oc16kh3ph0sh2+constant",
    "fwd_f32_mb1ic16ih12oc16kh3ph1+constant",
    "fwd_f32_g8mb1ic8ih9oc8kh3ph1+constant",
]


class Emulated(TensorCores):
    """Packs as on a Hopper GPU, in plain C; what reads the packed form is left out."""

    name = "nvidia.emulated"

    def rejects(self, problem, device):
        return self.limits(problem, HOPPER)

    def configs(self, problem, device) -> Iterator:
        """The first configuration of each kind that packs otherwise."""
        kinds = {}
        for config in super().configs(problem, HOPPER):
            kinds.setdefault((config.get("stacked"), config.get("window"), config["format"]), config)
        yield from kinds.values()

    def plan(self, context, problem, config):
        return _Packer(context, problem, config, self.engine, emulate=True)


class _Packer(NvidiaPlan):
    def _product(self, context):
        return None


class EmulatedWinograd(Winograd):
    """The same for ``nvidia.winograd``."""

    name = "nvidia.emulated_winograd"

    def rejects(self, problem, device):
        return self.limits(problem, HOPPER)

    def configs(self, problem, device):
        yield from itertools.islice(super().configs(problem, HOPPER), 2)

    def plan(self, context, problem, config):
        return _WinogradPacker(context, problem, config, emulate=True)


class _WinogradPacker(WinogradPlan):
    def _product(self, context):
        return None


OTHERS = ("nvidia.", "cudnn.", "int8.")  # of the last the problems are quantized: tests/plugins/int8/test_int8.py
SOLVERS = {name: one for name, one in plugins().solvers.items() if not name.startswith(OTHERS)}
SOLVERS |= {"nvidia.wgmma": Emulated("wgmma"), "nvidia.mma": Emulated("mma"), "nvidia.winograd": EmulatedWinograd()}


class Late:
    """A program that is compiled when a kernel of it is launched."""

    def __init__(self, compiled: Callable[[], cl.Program]) -> None:
        self.compiled = functools.lru_cache(compiled)

    def get_info(self, _) -> Late:
        """Every kernel that is asked for is there."""
        return self

    def split(self, _) -> Late:
        """See ``get_info``."""
        return self

    def __contains__(self, _) -> bool:
        return True


@pytest.fixture
def packers_alone(item_by_item, monkeypatch):
    """Of the plans' programs those are compiled that pack: the others take most of the time, and nothing runs them."""
    compiled, made = kernels._compile, interface.Kernel.make
    monkeypatch.setattr(kernels, "_compile", lambda *given: (Late(lambda: compiled(*given)[0]), 0))

    def make(kernel):
        if isinstance(kernel.program, Late):
            kernel.program = kernel.program.compiled()
        return made(kernel)

    monkeypatch.setattr(interface.Kernel, "make", make)
    kernels._programs.drop()
    yield
    kernels._programs.drop()


def _form(name: str) -> str:
    """The name without the sizes of a tile: ``winograd.f4x3`` and ``winograd.f2x5`` are one form."""
    return name.rstrip("0123456789x")


@pytest.mark.parametrize("name", SOLVERS)
def test_equal_keys_mean_equal_bytes(queue, full, packers_alone, name):
    """One constant in geometries that differ in one number: whoever shares a key packs the same."""
    if name == "nvidia.mma" and not full:
        pytest.skip("packs as nvidia.wgmma does: with --full only")
    solver, own, keyed = SOLVERS[name], runtime.device_info(queue.device), 0
    kin = [other for other in SOLVERS if _form(other) == _form(name)]
    if not full and name not in (kin[0], kin[-1]):
        pytest.skip(f"packs as {kin[0]} does, by another tile: with --full only")
    # Those whose packing takes the longest to compile pack one base, the others two.
    enough = 1 if name.startswith(("fft.", "nvidia.")) else 2
    for problem in map(ConvProblem.parse, BASES):
        info = own if solver.rejects(problem, own) is None else SMALL
        if solver.rejects(problem, info) is not None or (keyed >= enough and not full):
            continue
        w = np.random.default_rng(7).standard_normal(problem.w_shape).astype(np.float32)
        for config in itertools.islice(solver.configs(problem, info), 3 if full or name == "nvidia.wgmma" else 1):
            plan = solver.plan(queue.context, problem, config)
            if getattr(plan, "packed_size", 0) and getattr(plan, "pack_key", None) is not None:
                keyed += 1
                others = packing_plans(solver, problem, config, queue.context, info)
                found = disagreement(queue, w, [(str(problem), plan), *others])
                assert found is None, found
    if not keyed:
        pytest.skip(f"{name} shares no packed form")


@pytest.mark.parametrize("text", GEOMETRIES)
def test_one_constant_in_many_geometries(queue, full, text):
    """Every solver of this device, and those derived, one after the other with the same constant weights.

    Unless ``full`` each takes every fifth of the geometries.
    """
    first = ConvProblem.parse(text)
    random = np.random.default_rng(3)
    w = random.standard_normal(first.w_shape).astype(np.float32)
    device, held = runtime.device_info(queue.device), constant(w)
    for turn, problem in enumerate((first, *relatives(first))):
        read = "x" if problem.direction == "fwd" else "y"
        given = random.standard_normal(getattr(problem, read + "_shape")).astype(np.float32)
        expected = reference.compute(problem, **{read: given, "w": w})
        geometry = {
            "stride": [getattr(problem, "s" + axis) for axis in problem.axes],
            "padding": [(getattr(problem, "p" + axis), getattr(problem, f"p{axis}_r")) for axis in problem.axes],
            "dilation": [getattr(problem, "d" + axis) for axis in problem.axes],
            "groups": problem.g, "layout": problem.layout, "math": problem.math, "queue": queue,
        }  # fmt: skip
        for number, candidate in enumerate(sorted(rank(problem, device), key=lambda each: each.solver.name)):
            if not full and turn and (turn + number) % 5:
                continue
            with policy(solver=candidate.solver.name):
                if read == "x":
                    got = conv(given, held, **geometry)
                else:
                    got = conv_backward_data(given, held, problem.x_shape, **geometry)
            error = reference.relative_error(got, expected)
            assert error < 2e-3, f"{problem} {candidate.solver.name}: {error}"


def test_relatives_share_the_weights_and_differ_in_one_thing():
    problem = ConvProblem.parse("bwd_data_f32_mb1ic12ih8oc8kh3ph0sh2+constant")
    found = list(relatives(problem))
    assert len(set(found)) == len(found) > 12
    assert {other.w_shape for other in found} == {problem.w_shape}
    assert {other.ph for other in found} == {0, 1}
    assert {other.g for other in found} == {1, 2}
