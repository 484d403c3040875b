"""Arrays on CUDA's streams, with the host in the place of a GPU: every plan, fallbacks, faults, order, memory."""

from __future__ import annotations

import copy
import ctypes
import gc
import warnings

import numpy as np
import pytest
from checking import call, make_operands
from host_cuda import CudaArray, HostDriver, install
from host_programs import solvers
from threads import together

import convdispatch as cd
from convdispatch import ConvDispatchError, ConvDispatchWarning, ConvProblem, InvalidArgument, NoSolver, Tensor
from convdispatch.api.policy import Policy
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime
from convdispatch.device.commands import host_memory
from convdispatch.device.cuda.stream import CudaStream
from convdispatch.device.cuda_driver import Cuda, CudaError
from convdispatch.device.places.stream import StreamMemory
from convdispatch.selection import dispatch

SHAPES = ("mb2ic5ih9iw8oc7kh3kw3ph1pw1", "mb1ic16ih8iw8oc32", "g16mb1ic16ih9iw9oc16kh3kw3ph1pw1")
"""Those of test_host_memory.py, so that they are compiled once."""


def _on_cuda(arrays, **options):
    return {name: CudaArray(np.ascontiguousarray(array), **options) for name, array in arrays.items()}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_solver_gives_the_bits_of_the_queue(fake, device, shape, direction):
    driver, _ = fake
    problem = ConvProblem.parse(shape).replace(direction=direction)
    arrays = make_operands(problem, "real")[0].present()
    ran = []
    for name in solvers(problem, device, derived=True):
        if name.startswith("onednn"):
            continue
        with cd.policy(solver=name, fallback=False):
            expected = call(problem, arrays)
            driver.log.clear()
            got = call(problem, _on_cuda(arrays))
        assert type(got) is CudaArray
        assert np.array_equal(got.values, expected), name
        assert "cuLaunchKernel" in driver.names()
        assert not {"cuStreamSynchronize", "cuMemcpyAsync"} & set(driver.names()), "no wait and no copy"
        ran.append(name)
    assert len(ran) >= 2
    assert not driver.blocks, "workspaces go back"


@pytest.mark.parametrize("bias", [False, True], ids=["alone", "with a bias"])
def test_a_result_over_an_operand_is_refused(fake, bias):
    memory = np.ones(3 * 64, np.float32)
    x, w = CudaArray(memory[:128].reshape(1, 2, 8, 8)), CudaArray(np.ones((2, 2, 1, 1), np.float32))
    beside = CudaArray(np.ones(2, np.float32)) if bias else None
    over, apart = CudaArray(memory[64:].reshape(1, 2, 8, 8)), CudaArray(np.zeros((1, 2, 8, 8), np.float32))
    cd.conv(x, w, beside, out=apart)
    for out in (x, over):
        with pytest.raises(InvalidArgument, match="out shares memory with x, which would change while it is read"):
            cd.conv(x, w, beside, out=out)
    assert (memory == 1).all()


def test_epilogue_out_constant_weights_and_accumulation(fake):
    _, library = fake
    problem = ConvProblem.parse("mb2ic16ih9oc32kh3ph1").replace(bias=True, residual=True, activation="relu")
    operands, expected = make_operands(problem)
    given = _on_cuda(operands.present())
    out = CudaArray(np.full(problem.out_shape, np.nan, np.float32))
    w = cd.constant(given["w"])
    for _ in range(2):
        y = cd.conv(given["x"], w, given["bias"], padding=1, residual=given["residual"], activation="relu", out=out)
        assert y is out
        assert np.allclose(out.values, expected, atol=0.02)
    y = cd.conv(given["x"], cd.constant(given["w"].values), given["bias"], padding=1, residual=given["residual"],
                activation="relu")  # fmt: skip
    assert np.allclose(y.values, expected, atol=0.02)
    assert library.made == 1
    total = CudaArray(y.values.copy())
    plain = cd.conv(given["x"], w, padding=1)
    assert cd.conv(given["x"], w, padding=1, out=total, accumulate=True) is total
    assert np.allclose(total.values, y.values + plain.values, atol=1e-3)


def test_a_residual_may_lie_in_the_result(fake, monkeypatch):
    from convdispatch.selection.plugins.loader import plugins

    loaded = plugins()

    plain = copy.copy(loaded.solvers["im2col"])
    plain.name, plain.fuses = "test.plain", frozenset()
    monkeypatch.setitem(loaded.solvers, "test.plain", plain)
    monkeypatch.setitem(loaded.plugin_of, "test.plain", "test")
    x, w = (CudaArray(np.ones(shape, np.float32)) for shape in ((1, 8, 6, 6), (8, 8, 1, 1)))
    out = CudaArray(np.empty((1, 8, 6, 6), np.float32))
    for solver in ("im2col", "implicitgemm.direct", "test.plain"):
        out.values[...] = 5
        with cd.policy(solver=solver, fallback=False):
            cd.conv(x, w, residual=out, out=out)
        assert (out.values == 13).all(), solver


def test_strides_that_kernels_do_not_take_are_copied_on_the_device(fake):
    values = np.random.default_rng(0).integers(-3, 4, (2, 9, 8, 8)).astype(np.float32)
    w = CudaArray(np.ones((4, 8, 3, 3), np.float32))
    turned = CudaArray(values.transpose(0, 3, 2, 1))
    expected = cd.conv(np.ascontiguousarray(turned.values), w.values)
    assert np.array_equal(cd.conv(turned, w).values, expected)
    with pytest.raises(InvalidArgument, match="out must be contiguous"):
        cd.conv(turned, w, out=CudaArray(np.empty((2, 6, 7, 4), np.float32).transpose(0, 3, 1, 2)))


def test_what_does_not_load_is_the_next_solvers_with_one_warning(monkeypatch, device):
    if not host_memory.has_system_svm(device):
        pytest.skip("the host stands for CUDA's memory: system SVM only")
    dispatch.forget()
    problem, pin = ConvProblem.parse("mb2ic8ih9oc8kh3"), "im*"  # im2col and implicitgemm
    x, w = (np.random.default_rng(0).standard_normal(shape, np.float32) for shape in (problem.x_shape, problem.w_shape))
    expected = cd.conv(x, w)
    with cd.policy(solver=pin):
        first = dispatch.prepare(problem, runtime.context(device))
    kernels = {command.what for command in first.recorded(runtime.queue(device)).commands}
    driver, _ = install(monkeypatch, device, unlaunchable=kernels)
    with cd.policy(solver=pin), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = [cd.conv(CudaArray(x), CudaArray(w)).values for _ in range(3)]
        second = dispatch.prepare(problem, runtime.context(device)).solver.name
    assert all(np.allclose(each, expected, atol=1e-4) for each in got)
    told = [str(each.message) for each in caught if issubclass(each.category, ConvDispatchWarning)]
    assert second != first.solver.name
    assert [first.solver.name in each and "cannot run on a CUDA stream" in each for each in told[:1]] == [True]
    assert not kernels & {entry[1] for entry in driver.log if entry[0] == "cuLaunchKernel"}
    with (
        cd.policy(solver=first.solver.name, fallback=False),
        pytest.raises(ConvDispatchError, match="cannot run on a CUDA stream"),
    ):
        cd.conv(CudaArray(x), CudaArray(w))
    dispatch.forget()


def test_a_plan_of_its_own_means_is_the_next_solvers(fake, device):
    problem = ConvProblem.parse("mb2ic16ih9oc32kh3ph1")
    names = [name for name in solvers(problem, device, derived=True) if name.startswith("onednn")]
    if not names:
        pytest.skip("oneDNN is not installed")
    arrays, expected = make_operands(problem)
    given = _on_cuda(arrays.present())
    with cd.policy(solver=names[0], fallback=False), pytest.raises(ConvDispatchError, match="its own means"):
        call(problem, given)
    got = call(problem, given)
    assert np.abs(got.values - expected).max() <= 1e-5 * np.abs(expected).max()


def test_a_fault_names_the_solvers_that_ran_last(fake):
    driver, _ = fake
    x, w = (CudaArray(np.ones(shape, np.float32)) for shape in ((1, 8, 6, 6), (8, 8, 1, 1)))
    with cd.policy(solver="im2col"):
        cd.conv(x, w)
    with cd.policy(solver="implicitgemm.direct"):
        cd.conv(x, w)
        driver.status["cuLaunchKernel"] = 700
        with pytest.raises(ConvDispatchError, match=r"ILLEGAL_ADDRESS.*implicitgemm.direct, im2col.*CUDA_LAUNCH_BLOCK"):
            cd.conv(x, w)
        driver.status.clear()
        cd.conv(x, w)  # nobody was set aside


def test_a_new_problem_inside_a_capture_is_refused_in_words(fake):
    driver, _ = fake
    x, w = (CudaArray(np.ones(shape, np.float32)) for shape in ((1, 8, 6, 6), (8, 8, 1, 1)))
    driver.capturing = True
    with pytest.raises(ConvDispatchError, match="before the capture"):
        cd.conv(x, w)
    driver.capturing = False
    cd.conv(x, w)
    driver.capturing = True
    assert (cd.conv(x, w).values == 8).all()
    with pytest.raises(ConvDispatchError, match="before"):
        cd.conv(x, cd.constant(w))


def test_each_call_goes_to_its_arrays_device_and_stream(fake):
    driver, _ = fake
    x, w = np.ones((1, 8, 6, 6), np.float32), np.ones((8, 8, 1, 1), np.float32)
    for number, where in ((0, 77), (1, 78), (0, 79)):
        driver.log.clear()
        y = cd.conv(CudaArray(x, number, where), CudaArray(w, number, where))
        assert (y.number, y.where) == (number, where)
        assert {entry[2] for entry in driver.log if entry[0] == "cuLaunchKernel"} == {where}
        pushed = [entry[1].value for entry in driver.log if entry[0] == "cuCtxPushCurrent_v2"]
        assert set(pushed) == {0xC0 + number}
        assert driver.current == 0, "the thread's context is what it was"
    with pytest.raises(InvalidArgument, match="w is on CUDA's device 1"):
        cd.conv(CudaArray(x), CudaArray(w, 1))
    with pytest.raises(InvalidArgument, match="w must be a CudaArray as x is, got ndarray"):
        cd.conv(CudaArray(x), w)
    weights = CudaArray(w)
    cd.conv(CudaArray(x), weights)
    weights.values = w.astype(np.float64)  # the next array at an address that a freed one had is no other case
    with pytest.raises(InvalidArgument, match="w must be float32 as x is, got float64"):
        cd.conv(CudaArray(x), weights)
    with pytest.raises(InvalidArgument, match="pass no queue"):
        cd.conv(CudaArray(x), CudaArray(w), queue=runtime.queue())
    with pytest.raises(InvalidArgument, match="out must have shape"):
        cd.conv(CudaArray(x), CudaArray(w), out=CudaArray(w))


def test_what_is_done_on_another_device_leaves_the_threads_context():
    """PyTorch and CuPy tell their current device by it: a rank's collectives would go to another GPU."""
    driver = HostDriver()
    driver.current = 0xAB
    other = Cuda(driver, 1)
    other.make("cuStreamCreate", 1)
    assert other.idle(ctypes.c_void_p(5))
    driver.status["cuMemCreate"] = 2
    with pytest.raises(CudaError, match="cuMemCreate"):
        other("cuMemCreate", None, 1, None, 0)
    assert driver.current == 0xAB
    assert "cuCtxSetCurrent" not in driver.names()


def test_threads_on_streams_of_their_own(fake):
    random = np.random.default_rng(0)
    x, w = random.standard_normal((1, 16, 9, 9), np.float32), random.standard_normal((16, 16, 3, 3), np.float32)
    expected = cd.conv(x, w)

    def work(where):
        for _ in range(50):
            assert np.array_equal(cd.conv(CudaArray(x, 0, where), CudaArray(w, 0, where)).values, expected)

    together(work, range(1, 5))


def test_empty_results_and_batches(fake):
    w = CudaArray(np.ones((8, 8, 3, 3), np.float32))
    assert cd.conv(CudaArray(np.ones((0, 8, 6, 6), np.float32)), w).shape == (0, 8, 4, 4)
    x, dy = CudaArray(np.ones((0, 8, 6, 6), np.float32)), CudaArray(np.ones((0, 8, 4, 4), np.float32))
    assert (cd.conv_backward_weights(x, dy, (8, 8, 3, 3)).values == 0).all()


def test_memory_is_flat_over_many_calls(fake):
    driver, _ = fake
    x, w = (CudaArray(np.ones(shape, np.float32)) for shape in ((1, 16, 9, 9), (16, 16, 3, 3)))
    with cd.policy(solver="winograd.f2x3"):
        for _ in range(200):
            cd.conv(x, w)
            driver.log.clear()
        gc.collect()
        assert not driver.blocks
        assert len(driver.freed) >= 200


def test_a_tensor_on_a_stream_computes_there(fake):
    driver, library = fake
    stream = CudaStream(library.devices[0], 77)
    values = np.random.default_rng(0).standard_normal((1, 8, 6, 6), np.float32)
    x = Tensor(StreamMemory(values.ctypes.data, values.nbytes, values), values.shape, values.dtype, stream)
    w = Tensor.from_numpy(np.ones((8, 8, 1, 1), np.float32), stream)
    y = cd.conv(x, w)
    assert type(y.base_data) is StreamMemory
    assert np.allclose(y.numpy(), cd.conv(values, np.ones((8, 8, 1, 1), np.float32)), atol=1e-5)
    assert np.allclose((y + y).numpy(), 2 * y.numpy())
    assert y.__dlpack_device__() == (2, 0)
    driver.log.clear()
    y.__dlpack__(stream=5)
    waited = [entry[1].value for entry in driver.log if entry[0] == "cuStreamWaitEvent"]
    assert waited == [5], "the consumer's stream waits, the host does not"
    assert "cuStreamSynchronize" not in driver.names()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int32])
def test_fills_of_every_width(fake, dtype):
    _, library = fake
    stream = CudaStream(library.devices[0], 77)
    values = np.zeros(24, dtype)
    memory = StreamMemory(values.ctypes.data, values.nbytes, values)
    stream.fill(memory, np.dtype(dtype).type(3), 8 * values.itemsize, 8 * values.itemsize)
    assert (values[8:16] == 3).all()
    assert not values[:8].any()
    assert not values[16:].any()


@pytest.mark.parametrize("where", ["x", "w", "out"])
def test_memory_that_vector_loads_cannot_take_is_copied(fake, where):
    """Views of PyTorch's begin anywhere."""
    driver, _ = fake
    random = np.random.default_rng(0)
    x, w = random.standard_normal((1, 8, 6, 6), np.float32), random.standard_normal((8, 8, 3, 3), np.float32)
    expected = cd.conv(x, w)

    def odd(values):
        whole = np.empty(values.size + 8, np.float32)
        start = (-whole.ctypes.data // 4) % 4 + 1
        whole[start : start + values.size] = values.ravel()
        return whole[start : start + values.size].reshape(values.shape)

    given = {"x": x, "w": w, "out": np.full(expected.shape, np.nan, np.float32)}
    given[where] = odd(given[where])
    out = CudaArray(given["out"])
    cd.conv(CudaArray(given["x"]), CudaArray(given["w"]), out=out)
    assert np.allclose(out.values, expected, atol=1e-5)
    assert driver.names().count("cuMemcpyAsync") == 1


def test_packing_that_does_not_load_is_the_next_solvers(monkeypatch, device):
    if not host_memory.has_system_svm(device):
        pytest.skip("the host stands for CUDA's memory: system SVM only")
    problem, pin = ConvProblem.parse("mb2ic16ih9iw9oc16kh3kw3").replace(constant_weights=True), "[wi][im][np]*"
    prepared = dispatch.prepare(problem, runtime.context(device), Policy(solver=pin))  # winograd or implicitgemm
    packers = {launch.kernel.name for launch in getattr(prepared.plan, "_packers", ()) if hasattr(launch, "kernel")}
    if not packers:
        pytest.skip(f"{prepared.solver.name} packs no weights by launches")
    dispatch.forget()
    install(monkeypatch, device, unlaunchable=packers)
    x, w = (np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((2, 16, 9, 9), (16, 16, 3, 3)))
    given = CudaArray(x), cd.constant(CudaArray(w))
    refused = pytest.raises(NoSolver, match=r"cannot run on a CUDA stream: its PTX reads %envreg9 .pack.")
    with cd.policy(solver=pin), pytest.warns(ConvDispatchWarning, match="%envreg9"), refused:
        cd.conv(*given)  # each of them packs by this kernel, and was tried
    with warnings.catch_warnings(action="ignore"):
        assert np.allclose(cd.conv(*given).values, cd.conv(x, w), atol=1e-3)
    dispatch.forget()


@pytest.mark.parametrize("shift", [-64, 64])
def test_a_result_over_a_part_of_an_epilogues_operand(fake, shift):
    """A residual is read as it was before the call; a bias that would change is refused."""
    random = np.random.default_rng(0)
    x, w = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((1, 2, 8, 8), (2, 2, 1, 1)))
    values = random.integers(-4, 5, (1, 2, 8, 8)).astype(np.float32)
    expected = cd.conv(x, w, residual=values)
    memory = np.zeros(256, np.float32)
    residual, out = memory[64:192].reshape(values.shape), memory[64 + shift : 192 + shift].reshape(values.shape)
    residual[...] = values
    cd.conv(CudaArray(x), CudaArray(w), residual=CudaArray(residual), out=CudaArray(out))
    np.testing.assert_array_equal(out, expected)
    with pytest.raises(InvalidArgument, match="out shares memory with bias"):
        cd.conv(
            CudaArray(x), CudaArray(w), CudaArray(memory[128:130]), out=CudaArray(memory[64:192].reshape(1, 2, 8, 8))
        )
