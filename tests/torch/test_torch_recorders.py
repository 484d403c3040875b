"""What records a model under enable() records the convolution, never a result of ours."""

import io
import shutil

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch_checks import error

import convdispatch.torch as ct

pytestmark = pytest.mark.usefixtures("counted")
nn, F = torch.nn, torch.nn.functional


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2)).eval()


def inputs():
    return torch.randn(1, 3, 8, 8), torch.randn(1, 3, 8, 8)


def targets(graph):
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("frozen", [False, True])
def test_jit_trace(frozen):
    model, (x, other) = net().requires_grad_(not frozen), inputs()
    with ct.enable():
        model(x)
        ct.reset_counters()
        traced = torch.jit.trace(model, x, check_trace=False)
        counts = ct.counters()
        assert error(traced(other), model(other)) < 1e-6
    assert counts["ours"] == 0
    assert counts["left"] == 2
    assert all("torch.jit.trace" in reason for reason in counts["reasons"])
    kinds = [node.kind() for node in traced.inlined_graph.nodes()]
    assert kinds.count("aten::_convolution") == 2
    assert error(traced(other), model(other)) < 1e-6
    assert ct.counters()["ours"] > counts["ours"], "a traced model that runs is ours again"


def test_the_older_onnx_exporter():
    onnx, buffer = pytest.importorskip("onnx"), io.BytesIO()
    with ct.enable():
        torch.onnx.export(net(), (inputs()[0],), buffer, dynamo=False)
    kinds = [node.op_type for node in onnx.load_from_string(buffer.getvalue()).graph.node]
    assert kinds == ["Conv", "Relu", "ConvTranspose"]


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode):
    model, (x, other) = net().requires_grad_(False), inputs()
    with ct.enable():
        traced = make_fx(model, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
        assert targets(traced.graph).count("aten.convolution.default") == 2
        assert error(traced(other), model(other)) < 1e-6


def test_fake_and_meta_tensors_compute_nothing():
    with ct.enable(), FakeTensorMode():
        y = net()(torch.randn(1, 3, 8, 8))
    with ct.enable():
        meta = net().to("meta")(torch.empty(1, 3, 8, 8, device="meta"))
    assert isinstance(y, FakeTensor)
    assert y.shape == meta.shape == (1, 4, 16, 16)
    assert ct.counters()["ours"] == ct.counters()["left"] == 0


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "functionalize", "vmap of grad"])
def test_functorch(transform):
    w, x, t = torch.randn(4, 3, 3, 3), torch.randn(5, 2, 3, 8, 8), torch.randn(5, 2, 3, 8, 8)

    def value(x, w):
        return F.conv2d(x, w, padding=1).square().sum()

    func = torch.func
    runs = {
        "vmap": lambda: func.vmap(lambda x: F.conv2d(x, w.to(x), padding=1))(x),
        "grad": lambda: func.grad(value)(x[0], w.to(x)),
        "jvp": lambda: func.jvp(lambda x: F.conv2d(x, w.to(x)), (x[0],), (t[0],))[1],
        "functionalize": lambda: func.functionalize(lambda x: F.conv2d(x, w.to(x)).relu_())(x[0]),
        "vmap of grad": lambda: func.vmap(func.grad(value), in_dims=(0, None))(x, w.to(x)),
    }
    with ct.enable():
        got = runs[transform]()
    assert ct.counters()["ours"] > 0
    x, t = x.double(), t.double()
    assert error(got, runs[transform]()) < 1e-5


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    model, (x, other) = net(), inputs()
    with ct.enable():
        program = torch.export.export(model, (x,), strict=strict)
        assert error(program.module()(other), model(other)) < 1e-6
    assert sum(name.startswith("aten.conv") for name in targets(program.graph)) == 2


@pytest.mark.skipif(not shutil.which("g++"), reason="AOTInductor compiles C++")
@pytest.mark.full
def test_aot_inductor(tmp_path):
    model, (x, other) = nn.Conv2d(3, 4, 3).eval(), inputs()
    with ct.enable(), torch.no_grad():
        program = torch.export.export(model, (x,))
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        assert error(torch._inductor.aoti_load_package(package)(other), model(other)) < 1e-5


def test_package(tmp_path):
    model, (x, _) = net(), inputs()
    path = str(tmp_path / "model.pt")
    with ct.enable():
        model.requires_grad_(False)(x)
        with torch.package.PackageExporter(path) as exporter:
            exporter.extern(["torch.**", "convdispatch.**"])
            exporter.save_pickle("model", "model.pkl", model)
        loaded = torch.package.PackageImporter(path).load_pickle("model", "model.pkl")
        assert error(loaded(x), model(x)) < 1e-6


def test_script():
    model, (x, other) = net(), inputs()
    with ct.enable():
        scripted = torch.jit.script(model)
        for each in (x, other, x):
            assert error(scripted(each), model(each)) < 1e-6
        assert ct.counters()["left"] == 0
