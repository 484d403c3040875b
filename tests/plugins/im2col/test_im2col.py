"""The universal solver: every shape, direction, layout and dtype exactly; chunks, caps, packed weights, guard zones."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pyopencl as cl
import pytest
import shape_tables
from checking import check
from plans import check_config

from convdispatch import policy
from convdispatch.api import ConvProblem, DeviceInfo
from convdispatch.device import runtime
from convdispatch.measurement.search.trial import Harness
from convdispatch.selection import dispatch
from convdispatch.selection.plugins.loader import plugins

im2col = pytest.importorskip("convdispatch_im2col")
SOLVER = im2col.Im2col()
CPU = DeviceInfo("some CPU", "intel", "cpu", "simd512", compute_units=2, simd_width=16, fp64=True)
GPU = DeviceInfo(
    "some GPU", "nvidia", "gpu", "sm_90", compute_units=132, max_work_group_size=1024,
    max_work_item_sizes=(1024, 1024, 64), local_mem_size=49152, fp64=True,
)  # fmt: skip


def cases() -> list[ConvProblem]:
    """Every shape in turn meets another direction, layout and dtype; all of them with ``--full``."""
    entries = [entry for table in ("near_miss", "basic") for entry in shape_tables.load(table)]
    variants = list(
        itertools.product(
            ("fwd", "bwd_data", "bwd_weights"), ("nchw", "nhwc"), ("float32", "float64", "float16", "bfloat16")
        )
    )
    return [
        entry.problem.replace(direction=direction, layout=layout, dtype=dtype)
        for entry in entries
        for direction, layout, dtype in variants
    ]


# A prime step walks through shapes and variants alike.
THINNED = cases()[5::139]


@pytest.mark.parametrize("problem", THINNED, ids=str)
def test_shapes_are_exact(device, problem):
    check(problem, device, solver="im2col")


def test_all_shapes_are_exact(device, full):
    if not full:
        pytest.skip("--full runs the whole product")
    for problem in cases():
        check(problem, device, solver="im2col")


EPILOGUES = [
    "mb2ic5ih9oc6kh3ph1+bias+residual+relu",
    "mb2ic5ih9oc20kh1+bias+residual+relu",
    "g6mb2ic6ih9oc6kh3ph1+bias+residual+relu",
    "bwd_data_mb2ic5ih9oc6kh3ph1sh2+bias+residual+relu",
    "bwd_data_mb2ic5ih9oc6kh3ph1+accumulate",
    "bwd_weights_bf16_mb2ic5ih9oc6kh3ph1+accumulate",
]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("text", EPILOGUES)
def test_epilogues(device, thinned, text, layout):
    thinned(EPILOGUES.index(text) % 2 == (layout == "nchw"))
    check(ConvProblem.parse(text).replace(layout=layout), device, solver="im2col")


PHASES = (  # the data gradient of one channel a group and a stride
    "g7mb2ic7ih15iw13oc7kh3sh2ph1",
    "g5mb2ic5ih28oc5kh5sh2ph2+bias",
    "g5mb1ic5ih9iw40oc5kh3kw4sh3sw2ph0pw2+residual+bias+relu",
    "g5mb1ic5ih40iw39oc5kh2kw3sh1sw3+bias+relu6",
    "g5mb1ic5ih12iw40oc5kh3sh2ph1dh2dw3+accumulate",
    "bf16_g5mb1ic5ih12iw40oc5kh3sh2ph1",
    "f64_g5mb1ic5ih12iw40oc5kh3sh2ph1",
    "g5mb1ic5id6ih12iw20oc5kd3kh3kw3sd2sh2sw2pd1ph1",
    "g5mb1ic5ih3iw1oc5kh1sh2",
)


@pytest.mark.parametrize("text", PHASES)
def test_phases_of_a_stride_in_one_launch_are_exact(device, text):
    problem = ConvProblem.parse("bwd_data_" + text)
    assert next(iter(SOLVER.configs(problem, CPU)))["method"] == "phases"
    check(problem, device, solver="im2col")


def test_other_strided_data_gradients_are_not_of_that_kind():
    for text in ("g4mb1ic8ih9oc8kh3sh2", "g4mb1ic4ih9oc8kh3sh2", "g4mb1ic4ih33oc4kh12sh2", "g4mb1ic4ih33oc4kh3sh1sw9"):
        problem = ConvProblem.parse("bwd_data_" + text)
        assert all(config["method"] != "phases" for config in SOLVER.configs(problem, CPU))
        assert SOLVER.rejects(problem, CPU) is None


def test_real_data_within_the_contract(device):
    check(ConvProblem.parse("mb2ic67ih15oc33kh3ph1"), device, solver="im2col", data="real", tolerance=1e-6)


# More than one chunk under the smallest cap, along images, places, groups and channels.
CHUNKED = [
    "mb3ic40ih20iw23oc9kh3ph1+bias+relu",
    "f16_mb2ic40ih20iw23oc9kh3ph1+constant",
    "nhwc_mb3ic40ih20iw23oc17kh3ph1+bias+constant",
    "nhwc_bf16_g2mb2ic40ih20iw23oc6kh3ph1sh2",
    "mb5ic33ih17oc18kh1+residual+constant",
    "nhwc_mb5ic33ih17oc18kh1",
    "g5mb3ic5ih40oc10kh3ph1+constant",
    "nhwc_g21mb2ic21ih20oc21kh5ph2+bias+constant",
    "bwd_data_mb3ic9ih20iw23oc40kh3ph1sh2+bias",
    "bwd_data_nhwc_g2mb2ic12ih20iw23oc40kh3ph1+accumulate",
    "bwd_weights_mb3ic9ih20iw23oc7kh3ph1",
    "bwd_weights_g21mb2ic21ih20oc42kh3ph1sh2+accumulate",
    "bwd_weights_nhwc_g21mb2ic21ih20oc21kh3ph1",
    "bwd_weights_nhwc_bf16_g2mb3ic8ih20iw23oc6kh3ph1+accumulate",
]


@pytest.mark.parametrize("text", CHUNKED)
def test_the_smallest_cap(queue, text):
    problem = ConvProblem.parse(text)
    check_config(queue, problem, SOLVER, list(SOLVER.configs(problem, runtime.device_info(queue.device)))[-1])


STRIDED = [  # rows of more than a vector, and of less; taps that overlap, that leave phases out, that lie outside
    "mb2ic7ih11iw70oc6kh4sh2ph1+bias+relu",
    "mb2ic9ih10iw20oc5kh2sh2",
    "mb1ic3ih9iw67oc4kh5sh2ph3pw4+residual",
    "f64_mb2ic5ih9iw37oc6kh3sh2ph1",
    "bf16_mb2ic5ih9iw37oc6kh4sh2ph1",
    "mb2ic3ih9iw40oc4kh1sh2",
    "mb1ic2ih7iw90oc3kh3dh2dw3sh2ph2pw6",
    "g3mb2ic6ih13iw29oc9kh4kw5sh2sw3ph1pw2+bias",
    "mb1ic3ih40iw53oc2kh16sh16",
    "mb1ic2ih5iw150oc3kh1kw3sh1sw70pw1",
    "mb1ic2id7ih9iw19oc3kd3kh3kw4sd2sh2sw2pd1ph1pw1",
]


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
@pytest.mark.parametrize("text", STRIDED)
def test_rows_of_a_stride(queue, text, direction):
    text = text if direction == "fwd" else text.replace("+relu", "")
    if direction == "bwd_weights":
        text = text.partition("+")[0]
    problem, info = ConvProblem.parse(f"{direction}_{text}"), runtime.device_info(queue.device)
    if info.supports(problem.dtype):
        pytest.skip("the device lacks it")
    configs = [each for each in SOLVER.configs(problem, info) if each["method"] in ("lower", "col2im", "weights")]
    check_config(queue, problem, SOLVER, configs[0])


def test_an_out_of_order_queue_keeps_the_order(device):
    import pyopencl as cl

    context = runtime.context(device)
    queue = cl.CommandQueue(context, properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
    problem = ConvProblem.parse("mb3ic40ih20iw23oc9kh3ph1+bias+relu")
    check_config(queue, problem, SOLVER, list(SOLVER.configs(problem, runtime.device_info(device)))[-1])


def test_every_kind_of_configuration_of_one_problem(queue):
    info, seen = runtime.device_info(queue.device), {}
    for text in ("mb2ic20ih11oc35kh3ph1+constant", "bwd_data_mb2ic20ih11oc35kh3ph1", "mb2ic20ih12oc35kh1"):
        for layout in ("nchw", "nhwc"):
            problem = ConvProblem.parse(text).replace(layout=layout)
            for config in SOLVER.configs(problem, info):
                kind = (text, layout, config["method"], config.get("form"), config["gemm"].get("swap"))
                seen.setdefault(kind, (problem, config))
    for problem, config in seen.values():
        check_config(queue, problem, SOLVER, config)


@pytest.mark.parametrize("info", [CPU, GPU], ids=["cpu", "gpu"])
def test_answers_are_pure_and_caps_fall(info):
    for problem in cases()[::53]:
        assert SOLVER.rejects(problem, info) is None
        configs = list(SOLVER.configs(problem, info))
        sizes = [SOLVER.workspace(problem, info, config) for config in configs]
        assert sizes
        assert min(sizes) <= sizes[0]
        assert all(SOLVER.cost(problem, info, config) > 0 for config in configs)


def test_products_come_in_the_order_of_what_their_packing_costs():
    problem = ConvProblem.parse("bwd_weights_mb1ic192ih28oc64kh1")
    configs = [config for config in SOLVER.configs(problem, CPU) if config["cap"] == 8 << 20]
    costs = [SOLVER.cost(problem, CPU, config) for config in configs]
    assert len(costs) > 2
    assert costs == sorted(costs)
    assert not configs[0]["gemm"]["pack_a"]  # each element is read once a panel, and there are few


def test_every_part_of_the_work_is_in_the_prediction():
    base = ConvProblem.parse("mb1ic64ih28oc64kh3ph1")
    for problem in (base, base.replace(direction="bwd_data"), base.replace(direction="bwd_weights")):
        first = SOLVER.cost(problem, CPU, next(SOLVER.configs(problem, CPU)))
        for change in ({"ic": 128}, {"oc": 128}, {"mb": 2}, {"ih": 40}):
            more = problem.replace(**change)
            assert SOLVER.cost(more, CPU, next(SOLVER.configs(more, CPU))) > first
    packing = next(config for config in SOLVER.configs(base, CPU) if config["gemm"]["pack_a"])
    constant = base.replace(constant_weights=True)  # packed once, not in each call
    assert SOLVER.cost(constant, CPU, packing) < SOLVER.cost(base, CPU, packing)


def test_a_workspace_limit_is_kept(device):
    problem = ConvProblem.parse("mb2ic40ih40oc9kh3ph1")
    sizes = [SOLVER.workspace(problem, None, config) for config in SOLVER.configs(problem, runtime.device_info(device))]
    assert sizes[-1] < sizes[0]
    with policy(workspace_limit=sizes[-1]):
        check(problem, device, solver=None)


def test_what_it_rejects():
    assert SOLVER.rejects(ConvProblem(mb=0), CPU) == "1 image or more, got 0"
    no_double = DeviceInfo("small", "arm", "gpu", "mali")
    assert SOLVER.rejects(ConvProblem(), no_double) == "work groups of 64 items or more, got 1"
    least = DeviceInfo("least", "arm", "gpu", "mali", max_work_group_size=64, max_work_item_sizes=(64, 1, 1),
                       local_mem_size=9216, fp64=True)  # fmt: skip
    for changes in ({}, {"dtype": "float64"}, {"direction": "bwd_data"}, {"direction": "bwd_weights"}):
        problem = ConvProblem(mb=2, ic=16, oc=16, ih=8, iw=8, kh=3, kw=3).replace(**changes)
        assert SOLVER.rejects(problem, least) is None
        assert list(SOLVER.configs(problem, least))


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize(("total", "most", "unit"), [(1, 1, 1), (7, 3, 1), (64, 64, 64), (1000, 130, 64), (96, 1, 64)])
def test_what_is_said_of_all_runs_is_true_of_each(total, most, unit, repeats):
    from convdispatch_im2col.window import runs

    cut = runs(total, most, unit, repeats)
    listed = list(cut)
    assert cut.count == len(listed)
    assert cut.largest == listed[0][1] == max(count for _, count in listed)
    assert cut.sizes == Counter(count for _, count in listed)
    places = [place for start, count in listed for place in range(start, start + count)]
    assert places == list(range(repeats * total))
    assert all(count <= max(most, unit) for _, count in listed)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("most", [50, 64, 999, 5000])
@pytest.mark.parametrize(("images", "ow", "oc"), [(1, 31, 4), (3, 31, 4), (3, 31, 5), (4, 32, 5), (2, 30, 6)])
def test_alignment_is_that_of_every_chunk(layout, most, images, ow, oc):
    from convdispatch_im2col.window import PatchWindow

    problem = ConvProblem(mb=images, ic=4, ih=33, iw=ow + 2, oc=oc, kh=3, kw=3, layout=layout)
    window = PatchWindow.of(problem)
    chunks = window.chunks(most)
    assert window.aligned(oc, chunks) == all(window.offset(oc, start) % 4 == 0 for start, _ in chunks)


@pytest.mark.parametrize("info", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
def test_a_billion_chunks_are_explained_without_counting_them(direction, info):
    problem = ConvProblem.parse(f"{direction}_mb1024ic4096ih999oc16kh3ph1")
    configs = list(SOLVER.configs(problem, info))
    assert configs
    for config in configs:
        assert SOLVER.workspace(problem, info, config) > 0
        assert SOLVER.cost(problem, info, config) > 0


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_panel_holds_zeros_beyond_the_last_place(queue, layout):
    """They reach no result, but numbers that are all but zero made a product thirty times as long."""
    problem = ConvProblem.parse("fwd_f32_mb1ic8ih7oc32kh3ph1pw1").replace(layout=layout)
    solver, info = plugins().solvers["im2col"], runtime.device_info(queue.device)
    panels = [c for c in solver.configs(problem, info) if c.get("form") == "panel" and not c["gemm"].get("swap")]
    if not panels:
        pytest.skip("no product of this device has panels of places")
    config = panels[0]
    wide = config["gemm"]["nv"] * config["gemm"]["lanes"]
    prepared = dispatch.make(solver, config, problem, queue.context)
    harness = Harness(problem, queue)
    sample = harness.sampler(prepared, 1000.0)
    scratch = harness._shared().held
    tiny = np.full(scratch.size // 4, 1e-40, np.float32)
    cl.enqueue_copy(queue, scratch.memory, tiny).wait()
    sample()
    cl.enqueue_copy(queue, tiny, scratch.memory).wait()
    panel = tiny[: -(-49 // wide) * 72 * wide].reshape(-1, 72, wide)[-1]
    assert not panel[:, 49 % wide or wide :].any()
