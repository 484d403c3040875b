"""onnxruntime's ways: the same script with another import; batches in turn; results of the feeds' kind."""

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
    return [given.name, given.type, given.shape, made.name, made.type, session.get_providers()], y


def test_a_script_changes_its_import_alone(tmp_path):
    path = str(saved(residual(), tmp_path / "net.onnx"))
    described, result = script(ours, path)
    assert described == ["x", "tensor(float)", ["batch", 3, "height", "width"], "y", "tensor(float)", CPU]
    assert type(result) is np.ndarray
    close(result, picture())
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime, to compare with, is not installed")
    described_there, wanted = script(onnxruntime, path)
    assert described == described_there
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


def test_a_result_is_of_the_feeds_kind(session):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    x = torch.from_numpy(picture(2))
    (result,) = session.run(["y"], {"x": x})
    assert isinstance(result, torch.Tensor)
    close(result.numpy(), x.numpy())


def test_what_is_wrong_is_said(session):
    with pytest.raises(InvalidArgument, match="no output 'z'; outputs are y"):
        session.run(["z"], {"x": picture()})
    with pytest.raises(InvalidArgument, match="lacks x"):
        session.run(None, {})
    with pytest.raises(InvalidArgument, match="none of the providers TensorrtExecutionProvider is here"):
        ours.InferenceSession(residual(), providers=["TensorrtExecutionProvider"])
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
