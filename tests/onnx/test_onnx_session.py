"""onnxruntime's ways: the same script with another import; bindings write where they say; batches in turn."""

import threading

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx_models import expected, model, node, normal, residual, saved  # noqa: E402

import convdispatch as cd  # noqa: E402
import convdispatch.onnx as ours  # noqa: E402
from convdispatch.api import ConvDispatchWarning, InvalidArgument  # noqa: E402
from convdispatch.device.programs import kernels  # noqa: E402

CPU = ["CPUExecutionProvider"]


@pytest.fixture(scope="module")
def session():
    return ours.InferenceSession(residual().SerializeToString(), providers=CPU)


def picture(mb=2, seed=9):
    return normal(mb, 3, 8, 8, seed=seed)


def close(got, x):
    np.testing.assert_allclose(np.asarray(got), expected(residual(), x)[0], rtol=2e-5, atol=2e-5)


def script(runtime, path):
    """What people write."""
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = runtime.InferenceSession(path, sess_options=options, providers=runtime.get_available_providers()[-1:])
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    (y,) = session.run([made.name], {given.name: picture()}, runtime.RunOptions())
    binding = session.io_binding()
    binding.bind_cpu_input(given.name, picture())
    binding.bind_output(made.name)
    session.run_with_iobinding(binding)
    value = runtime.OrtValue.ortvalue_from_numpy(picture())
    (bound,) = session.run_with_ort_values(None, {given.name: value})
    described = [given.name, given.type, given.shape, made.name, made.type, session.get_providers()]
    kinds = [bound.data_type(), bound.shape(), bound.device_name(), bound.is_tensor(), bound.element_type()]
    return described, kinds, [y, binding.copy_outputs_to_cpu()[0], binding.get_outputs()[0].numpy(), bound.numpy()]


def test_a_script_changes_its_import_alone(tmp_path):
    path = str(saved(residual(), tmp_path / "net.onnx"))
    described, kinds, results = script(ours, path)
    assert described == ["x", "tensor(float)", ["batch", 3, "height", "width"], "y", "tensor(float)", CPU]
    for result in results:
        assert type(result) is np.ndarray
        close(result, picture())
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime, to compare with, is not installed")
    theirs = script(onnxruntime, path)
    assert (described, kinds) == theirs[:2]
    for result, wanted in zip(results, theirs[2], strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5)


@pytest.fixture
def small(monkeypatch):
    """A session that is built in no time, and the batches for which it was."""
    weights = {"w": normal(2, 3, 1, 1)}
    session = ours.InferenceSession(model([node("Conv", "x w", "y")], {"x": ["n", 3, 2, 2]}, ["y"], weights), CPU)
    built, build = [], session.net._build
    monkeypatch.setattr(session.net, "_build", lambda arrays: built.append(arrays[0].shape[0]) or build(arrays))
    return session, built


def test_ten_batches_in_turn_are_built_once_each(small):
    session, built = small
    for mb in (*range(1, 11), *range(10, 0, -1)):
        x = normal(mb, 3, 2, 2, seed=mb)
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, expected(session.net.model, x)[0], rtol=1e-5, atol=1e-5)
    assert built == list(range(1, 11))


def test_kept_forms_are_bounded_by_their_memory_too(small, monkeypatch):
    for mb in range(1, 11):
        small[0].run(None, {"x": normal(mb, 3, 2, 2)})
    assert len(small[0].net._forms) == 10
    monkeypatch.setattr(kernels, "NEW_SHARE", 1)
    small[0].run(None, {"x": normal(11, 3, 2, 2)})
    assert len(small[0].net._forms) == kernels.FIRST_FORMS + 1


def test_bound_outputs_are_written_where_they_lie(session):
    x, y = picture(3), np.full((3, 10), np.nan, np.float32)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    for _ in range(3):  # the net watches which form is the faster one at first
        y[:] = np.nan
        session.run_with_iobinding(binding)
        close(y, x)
    assert binding.get_outputs()[0].data_ptr() == y.ctypes.data


@pytest.mark.parametrize("place", ["plain", "shifted", "gaps", "over the input"])
def test_an_output_that_kernels_cannot_write_is_copied(place):
    proto = model([node("Conv", "x w", "y", pads=[1, 1, 1, 1])], {"x": [1, 4, 8, 8]}, ["y"], {"w": normal(4, 4, 3, 3)})
    session = ours.InferenceSession(proto, CPU)
    x = normal(1, 4, 8, 8, seed=1)
    wanted = expected(proto, x)[0]
    whole = np.full(2 * x.size + 1, np.nan, np.float32)
    y = {
        "plain": np.empty_like(x),
        "shifted": whole[1 : 1 + x.size].reshape(x.shape),
        "gaps": np.lib.stride_tricks.as_strided(whole, x.shape, [8 * n for n in (256, 64, 8, 1)]),
        "over the input": x,
    }[place]
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", y)
    for _ in range(1 if place == "over the input" else 3):
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(y, wanted, rtol=2e-5, atol=2e-5)
    if place == "shifted":
        assert np.isnan(whole[0])
        assert np.isnan(whole[1 + x.size :]).all()
    if place == "gaps":
        assert np.isnan(whole[1::2]).all()


def test_torch_tensors_and_dlpack_are_bound(session):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    x, y = torch.from_numpy(picture(2)), torch.zeros(2, 10)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ours.OrtValue.from_dlpack(x))
    binding.bind_output("y", "cpu", 0, np.float32, tuple(y.shape), y.data_ptr())
    session.run_with_iobinding(binding)
    close(y.numpy(), x.numpy())
    assert torch.from_dlpack(binding.get_outputs()[0]).shape == (2, 10)
    (result,) = session.run(["y"], {"x": x})
    assert isinstance(result, torch.Tensor)
    close(result.numpy(), x.numpy())


def test_values_are_written_in_place():
    value = ours.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    value.update_inplace(np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(value.numpy(), np.arange(6).reshape(2, 3))
    assert value.tensor_size_in_bytes() == 24
    assert ours.OrtValue.ortvalue_from_shape_and_type([1], onnx.TensorProto.FLOAT16).data_type() == "tensor(float16)"


def test_an_asynchronous_call_answers_or_says_what_is_wrong(session):
    done, told = threading.Event(), []

    def callback(results, data, error):
        told.append((results, data, error))
        done.set()

    session.run_async(None, {"x": picture()}, callback, "mine")
    assert done.wait(120)
    close(told[0][0][0], picture())
    assert told[0][1:] == ("mine", "")
    done.clear()
    session.run_async(None, {"z": picture()}, callback, None)
    assert done.wait(120)
    assert "no input z" in told[1][2]


def test_what_is_wrong_is_said(session):
    with pytest.raises(InvalidArgument, match="no output 'z'; outputs are y"):
        session.run(["z"], {"x": picture()})
    with pytest.raises(InvalidArgument, match="lacks x"):
        session.run(None, {})
    with pytest.raises(InvalidArgument, match="none of the providers TensorrtExecutionProvider is here"):
        ours.InferenceSession(residual(), providers=["TensorrtExecutionProvider"])
    binding = session.io_binding()
    with pytest.raises(InvalidArgument, match="no output is bound"):
        session.run_with_iobinding(binding)
    with pytest.raises(InvalidArgument, match="no input 'z'; there are x"):
        binding.bind_cpu_input("z", picture())
    binding.bind_cpu_input("x", picture())
    binding.bind_ortvalue_output("y", np.empty((2, 9), np.float32))
    with pytest.raises(InvalidArgument, match=r"the result is \(2, 10\) float32, got \(2, 9\)"):
        session.run_with_iobinding(binding)
    options = ours.SessionOptions()
    options.enable_profiling = True
    with pytest.warns(ConvDispatchWarning, match="enable_profiling does nothing here"):
        ours.InferenceSession(residual(), options)


def test_a_provider_is_found_behind_one_that_is_not_here():
    session = ours.InferenceSession(residual(), providers=[("TensorrtExecutionProvider", {}), *CPU])
    assert session.get_providers() == CPU
    assert session.get_modelmeta().graph_name == "test"


def test_a_session_that_promises_strict_nan_keeps_a_nan_where_it_is_read():
    """By the session's options, by ``load``, and under a policy; forms of other promises stand beside it."""
    layer = node("Conv", "x w", "y", pads=[1, 1, 1, 1])
    text = model([layer], {"x": [2, 32, 24, 24]}, ["y"], {"w": normal(32, 32, 3, 3)})
    x = np.ones((2, 32, 24, 24), np.float32)
    x[1, 5, 11, 13] = np.nan
    options = ours.SessionOptions()
    options.strict_nan = True
    session = ours.InferenceSession(text.SerializeToString(), options, providers=CPU)
    net = ours.load(text)
    before = np.asarray(net(x))
    with cd.policy(strict_nan=True):
        under = np.asarray(net(x))
    for y in (session.run(None, {"x": x})[0], np.asarray(ours.load(text, strict_nan=True)(x)), under):
        assert [int((~np.isfinite(image)).sum()) for image in np.asarray(y)] == [0, 9 * 32]
    assert (~np.isfinite(before)).sum() >= 9 * 32


def test_a_session_that_promises_batch_invariance_keeps_an_image_s_bits():
    """By the session's options, by ``load``, and under a policy, through a convolution, a norm, products and a pool."""
    nodes = [
        node("Conv", "x w", "a"),
        node("Relu", "a", "b"),
        node("MaxPool", "b", "c", kernel_shape=[1, 1]),
        node("Flatten", "c", "d"),
        node("LayerNormalization", "d scale", "e"),
        node("Gemm", "e v", "f"),
        node("Softmax", "f", "y"),
    ]
    weights = {"w": normal(32, 1600, 1, 1), "scale": normal(32, seed=1), "v": normal(32, 10, seed=2)}
    text = model(nodes, {"x": ["n", 1600, 1, 1]}, ["y"], weights)
    options = ours.SessionOptions()
    options.batch_invariant = True
    session = ours.InferenceSession(text.SerializeToString(), options, providers=CPU)
    net, promised, x = ours.load(text), ours.load(text, batch_invariant=True), normal(300, 1600, 1, 1)

    def under(part):
        with cd.policy(batch_invariant=True):
            return np.asarray(net(part))

    def differing(compute):
        whole, wrong = compute(x), 0
        for images, start in ((1, 8), (3, 2)):
            part = compute(np.ascontiguousarray(x[start : start + images]))
            wrong += sum(part[i].tobytes() != whole[start + i].tobytes() for i in range(images))
        return wrong

    assert differing(lambda part: np.asarray(net(part)))  # where the batch decides, one image has another solver
    for compute in (lambda part: session.run(None, {"x": part})[0], lambda part: np.asarray(promised(part)), under):
        assert differing(compute) == 0
