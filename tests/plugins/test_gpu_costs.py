"""What GPU solvers predict beside what an H200 took: drawn problems of ``bench choice``, in CUDA graphs, each solver
with its own first configuration: where few work groups run, where results are all that moves, and where launches are.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from convdispatch_fft.gpu.plan import Layout
from convdispatch_implicitgemm.gpu.product import Product, Tile
from plans import LARGE, SMALL

from convdispatch.api import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import rates
from convdispatch.measurement import shapes
from convdispatch.selection.plugins.loader import plugins

H200 = DeviceInfo(
    "NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132, max_work_group_size=1024,
    max_work_item_sizes=(1024, 1024, 64), local_mem_size=49152, global_mem_size=140 << 30, max_alloc_size=35 << 30,
    fp64=True,
)  # fmt: skip
_FFT: dict[str, Any] = {"local": 73728, "wide": 256, "bk": 8, "tm": 4, "tn": 4, "unroll": 8,
                        "m_parts": 1, "n_parts": 1, "k_parts": 1}  # fmt: skip
_SMALL = {**_FFT, "bm": 16, "bn": 16}
_TAPS = {"bm": 16, "bn": 128, "tm": 4, "tn": 4, "walk": "taps"}
_MMA: dict[str, Any] = {"bm": 128, "bn": 64, "wm": 2, "wn": 2, "format": "float16", "bk": 32, "flush_every": 6}
_NARROW: dict[str, Any] = {"wm": 1, "wn": 1, "bk": 32, "flush_every": 6}


@pytest.fixture(autouse=True)
def _estimates(monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_RATES", "off")
    rates.rates.cache_clear()
    yield
    rates.rates.cache_clear()


TIMES = [
    # solver, problem, configuration or None for the first one, measured milliseconds, and the error that is allowed
    # Products of one or two work groups a multiprocessor: each k is waited for.
    ("fft.gpu", "bwd_data_f32_mb1ic24ih1iw232oc830kh1kw3ph0pw1", {**_SMALL, "th": 1, "tw": 10}, 0.0777),
    ("fft.gpu", "fwd_f32_mb1ic640ih1iw224oc64kh1kw9ph0pw4", {**_SMALL, "th": 1, "tw": 16}, 0.0621),
    ("fft.gpu", "fwd_f32_mb1ic544ih24iw24oc32kh3kw3ph1pw1", {**_SMALL, "th": 8, "tw": 8}, 0.0507),
    # Few channels of a group, channels last: their lines stay in the first cache.
    ("implicitgemm.tiled_narrow", "fwd_f32_nhwc_g32mb64ic96ih15iw15oc32kh3kw3", {"rows": 2}, 0.00809),
    ("implicitgemm.tiled_narrow", "bwd_data_f16_nhwc_g8mb64ic24ih90iw90oc192kh3kw3ph1pw1", {"rows": 8}, 0.723),
    # Taps of few channels, channels last: neighbours' numbers lie a pixel apart, and wait for one bank.
    ("implicitgemm.tiled", "bwd_data_f32_nhwc_g224mb64ic224ih11iw11oc224kh7kw7ph3pw3", {**_TAPS, "bk": 7}, 0.410),
    ("implicitgemm.tiled", "fwd_f16_nhwc_g32mb32ic32ih71iw71oc32kh7kw7ph3pw3", {**_TAPS, "bk": 7}, 0.879),
    ("implicitgemm.tiled", "fwd_f32_nhwc_g240mb1ic240ih63iw63oc240kh5kw5sh2sw2ph2pw2", {**_TAPS, "bk": 5}, 0.0350),
    ("implicitgemm.tiled", "fwd_f16_nhwc_g32mb4ic32ih46iw46oc256kh3kw3ph1pw1", {**_TAPS, "bk": 9}, 0.0260),
    # Planes of a stride's gradient: neighbours' results lie two places or four apart; memory.
    ("implicitgemm.tiled_depthwise", "bwd_data_f32_g144mb64ic144ih110iw110oc144kh3kw3sh2sw2",
     {"vector": 1, "rows": 8, "columns": 2, "turns": 4}, 0.782),
    ("implicitgemm.tiled_narrow", "bwd_data_f32_g144mb64ic144ih110iw110oc144kh3kw3sh2sw2", {"rows": 8}, 0.287),
    ("implicitgemm.tiled_narrow", "fwd_f32_g88mb128ic88ih78iw78oc88kh3kw3sh2sw2", {"rows": 8}, 0.1136),
    # 16-bit numbers, channels last, each read alone.
    ("implicitgemm.tiled_depthwise_sums", "bwd_weights_f16_nhwc_g448mb32ic448ih23iw23oc448kh5kw5ph2pw2",
     {"vector": 1, "rows": 8, "columns": 8, "turns": 1, "parts": 37}, 0.0478),
    ("implicitgemm.tiled_depthwise_sums", "bwd_weights_f16_nhwc_g80mb64ic80ih35iw35oc80kh7kw7",
     {"vector": 1, "rows": 4, "columns": 8, "turns": 1, "parts": 176}, 0.0553),
    ("implicitgemm.tiled_depthwise", "bwd_data_f16_nhwc_g544mb1ic544ih43iw43oc544kh3kw3",
     {"vector": 1, "rows": 4, "columns": 4, "turns": 1}, 0.0047),
    # Launches, little else.
    ("fft.gpu", "bwd_data_f16_nhwc_mb4ic63ih7iw7oc8kh9kw9ph4pw4", {**_FFT, "bm": 64, "bn": 16, "th": 12, "tw": 12},
     0.00564),
    ("implicitgemm.tiled", "fwd_f32_mb1ic64ih51iw51oc416kh1kw1sh2sw2", {"bm": 32, "bn": 64, "bk": 16, "tm": 4, "tn": 4},
     0.00495),
    ("nvidia.wgmma", "fwd_f16_nhwc_g2mb1ic192ih11iw11oc192kh3kw3ph1pw1",
     {**_NARROW, "bm": 64, "bn": 24, "format": "float16", "stages": 6, "split": 12}, 0.00358),
    ("nvidia.mma", "fwd_f32_mb4ic272ih4iw4oc576kh3kw3",
     {**_NARROW, "bm": 32, "bn": 32, "format": "bfloat2", "split": 16}, 0.01393),
    # Short sums and many results: pairs of 16 bits, and channels that are no multiple of eight.
    ("nvidia.mma", "fwd_f16_nhwc_mb64ic24ih32iw32oc656kh3kw3dh2dw2", _MMA, 0.191),
    ("nvidia.mma", "bwd_data_f16_nhwc_mb64ic384ih52iw52oc64kh3kw3sh2sw2", _MMA, 0.260),
    ("nvidia.mma", "fwd_f16_nhwc_mb32ic24ih1iw248oc336kh1kw5ph0pw2", {**_MMA, "window": True}, 0.0150),
    ("nvidia.wgmma", "bwd_data_f32_nhwc_mb16ic682ih1iw144oc20kh1kw5ph0pw2",
     {**_NARROW, "bm": 64, "bn": 104, "format": "bfloat2", "stages": 5, "window": True}, 0.0158),
    # A stride's phases, channels last.
    ("nvidia.wgmma", "bwd_data_f16_nhwc_mb1ic352ih84iw84oc96kh3kw3sh2sw2ph1pw1",
     {"bm": 128, "bn": 176, "wm": 2, "wn": 1, "format": "float16", "stages": 4, "flush_every": 3}, 0.0132),
]  # fmt: skip
CLOSER = [
    ("nvidia.direct", "fwd_f32_mb128ic192ih28oc32kh1", {"bm": 32, "bn": 128, "wm": 1, "wn": 4}, 0.0382, 0.2),
    ("nvidia.direct", "bwd_data_f32_tf32_mb64ic256ih56oc128kh1",
     {"bm": 64, "bn": 128, "wm": 2, "wn": 2, "format": "tf32", "bk": 16, "stages": 4}, 0.1256, 0.2),
    ("nvidia.direct", "bwd_weights_f32_mb64ic256ih56oc128kh1",
     {"bm": 128, "bn": 128, "wm": 2, "wn": 4, "format": "bf16x3", "split": 66}, 0.1854, 0.2),
    ("winograd.tiled_f4x3", "fwd_mb64ic64ih112oc128kh3ph1", None, 1.19, 0.25),
    ("winograd.tiled_f5x3", "bwd_data_mb64ic512ih14oc512kh3ph1", None, 0.471, 0.25),
    ("fft.gpu", "fwd_f32_mb128ic64ih64oc128kh9", None, 0.696, 0.3),
    ("fft.gpu", "bwd_weights_f32_mb128ic96ih28oc256kh5", None, 0.342, 0.3),
    ("fft.gpu", "fwd_f16_nhwc_mb128ic64ih64oc128kh9", None, 2.62, 0.3),  # pixels of a row lie apart
    ("fft.gpu", "bwd_weights_f16_nhwc_mb128ic128ih32oc128kh9", None, 0.343, 0.3),  # but neighbouring slots do not
]  # fmt: skip
"""The same, with a smaller error."""


@pytest.mark.parametrize(("solver", "text", "config", "ms", "error"), [*((*row, 0.35) for row in TIMES), *CLOSER])
def test_costs_are_times_measured_on_an_h200(solver, text, config, ms, error):
    solver, problem = plugins().solvers[solver], ConvProblem.parse(text)
    config = next(iter(solver.configs(problem, H200))) if config is None else config
    assert solver.cost(problem, H200, config) * 1e3 == pytest.approx(ms, rel=error)


KINDS = {
    # solvers, nets, every how many of a net's layers without --full, layers
    "implicitgemm.tiled": (("resnet50", "alexnet", "googlenet"), 1, 9),
    "winograd.tiled_": (("resnet50", "vgg_a", "overfeat"), 2, 99),
    "fft.gpu": (("convnet", "alexnet", "googlenet"), 1, 6),
}


@pytest.mark.parametrize(("kind", "net"), [(kind, net) for kind, (nets, *_) in KINDS.items() for net in nets])
def test_configurations_keep_to_the_devices_limits(full, kind, net):
    _, every, most = KINDS[kind]
    layers = shapes.load(net)[:: 1 if full else every][:most]
    for entry, direction, device in itertools.product(layers, DIRECTIONS, (SMALL, LARGE)):
        problem = entry.problem.replace(direction=direction)
        for name, solver in plugins().solvers.items():
            if not name.startswith(kind) or solver.rejects(problem, device):
                continue
            configs = list(solver.configs(problem, device))
            assert configs
            for config in configs:
                assert solver.cost(problem, device, config) > 0
                assert kind != "winograd.tiled_" or solver.workspace(problem, device, config) <= (
                    device.max_alloc_size or 1 << 62
                )
                if name == "implicitgemm.tiled":
                    assert Product(problem, Tile.of(config)).local_size <= device.local_mem_size
                    assert Tile.of(config).items <= device.max_work_group_size
                assert name != "fft.gpu" or Layout.of(problem, config).fits(device), config
