"""Every dialect: known lines, round trips of any problem, refusals in words, and files with their errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convdispatch.api.activation import parse_activation
from convdispatch.api.errors import InvalidArgument, InvalidProblem
from convdispatch.api.problem import ConvProblem
from convdispatch.grammar import DIALECTS, detect, read, read_all, read_file, write

P = ConvProblem.parse
ALEXNET2 = P("g2mb256ic96ih27iw27oc256kh5kw5ph2pw2")
RESNET = P("mb1ic3ih224iw224oc64kh7kw7sh2sw2ph3pw3")


@st.composite
def problems(draw, plain=False) -> ConvProblem:
    """Any problem there is; with ``plain`` forward, float32, without epilogue."""
    ndim, small = draw(st.integers(1, 3)), st.integers(1, 4)
    g = draw(small)
    values = {"ndim": ndim, "mb": draw(st.integers(0, 5)), "g": g, "ic": g * draw(small), "oc": g * draw(small)}
    for axis in "dhw"[3 - ndim :]:
        values |= {letter + axis: draw(small) for letter in "ksd"}
        values |= {"i" + axis: draw(st.integers(1, 20))}
        values |= {"p" + axis: draw(st.integers(0, 3))}
        values |= {f"p{axis}_r": draw(st.one_of(st.just(values["p" + axis]), st.integers(0, 3)))}
    if not plain:
        values["direction"] = draw(st.sampled_from(["fwd", "fwd", "bwd_data", "bwd_weights"]))
        values["dtype"] = draw(st.sampled_from(["float32", "float32", "float16", "bfloat16", "float64"]))
        values["layout"] = draw(st.sampled_from(["nchw", "nchw", "nhwc"]))
        values["math"] = draw(st.sampled_from(["float32", "float32", "ieee", "tf32", "fast"]))
        if values["direction"] != "bwd_weights":
            values["bias"], values["residual"] = draw(st.booleans()), draw(st.booleans())
            words = ["relu", "relu6", "clip(-1,2.5)", "leaky_relu(0.25)", "elu", "sigmoid", "silu", "tanh"]
            values["activation"] = draw(st.one_of(st.none(), st.sampled_from(words)))
        values["accumulate"] = values.get("activation") is None and draw(st.booleans())
        values["constant_weights"] = draw(st.integers(0, 3)) == 0
    try:
        return ConvProblem(**values)
    except InvalidProblem:
        assume(False)


def same(one: ConvProblem, other: ConvProblem) -> bool:
    """Equal, or equal but for far padding that adds no output, numbers of an activation written out."""

    def reduced(problem):
        far = {f"p{axis}_r": 0 for axis in problem.axes}
        values = {f: getattr(problem, f) for f in problem.__dataclass_fields__} | far
        if problem.activation:
            name, numbers = parse_activation(problem.activation)
            values["activation"] = ("clip", (0.0, 6.0)) if name == "relu6" else (name, numbers)
        return values

    return reduced(one) == reduced(other)


def answer(error, call):
    """What ``call()`` answers, or None and the words of its ``error``."""
    try:
        return call(), ""
    except error as refusal:
        return None, str(refusal)


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@given(problem=problems())
@settings(max_examples=300, deadline=None)
def test_what_is_written_is_read_again_or_refused_in_words(dialect, problem):
    text, refusal = answer(InvalidArgument, lambda: write(problem, dialect))
    if text is None:
        assert dialect != "convdispatch"
        assert f"{dialect} has no words for" in refusal
        return
    for again in (read(text, dialect), read(text)):
        assert same(again, problem) if dialect == "benchdnn" else again == problem


@pytest.mark.parametrize("dialect", ["convdispatch", "benchdnn", "onnx"])
@given(problem=problems(plain=True))
@settings(deadline=None)
def test_any_geometry_is_within_these_dialects(dialect, problem):
    assert same(read(write(problem, dialect, "a name")), problem)


@given(problem=problems(plain=True))
@settings(deadline=None)
def test_a_2_d_geometry_without_extras_is_within_all(problem):
    assume(problem.ndim == 2)
    assume(problem.kh <= problem.ih + 2 * problem.ph and problem.kw <= problem.iw + 2 * problem.pw)
    plain = problem.replace(g=1, dh=1, dw=1, ph_r=problem.ph, pw_r=problem.pw)
    for dialect in DIALECTS:
        assert read(write(plain, dialect)) == plain


@pytest.mark.parametrize(
    ("change", "dialect", "words"),
    [
        ({"g": 2}, "deepbench", "groups"),
        ({"dh": 2}, "deepbench", "dilation"),
        ({"direction": "bwd_data"}, "deepbench", "direction bwd_data"),
        ({"ph_r": 0}, "deepbench", "padding that differs"),
        ({"ph_r": 0}, "miopen", "padding that differs"),
        ({"dtype": "float64"}, "miopen", "dtype float64"),
        ({"activation": "relu"}, "miopen", "an activation"),
        ({"math": "tf32"}, "miopen", "math tf32"),
        ({"direction": "bwd_data", "bias": True}, "miopen", "a bias"),
        ({"layout": "nhwc"}, "onnx", "layout nhwc"),
        ({"direction": "bwd_weights"}, "onnx", "direction bwd_weights"),
        ({"residual": True}, "onnx", "a residual"),
        ({"constant_weights": True}, "benchdnn", "constant weights"),
        ({"direction": "bwd_data", "accumulate": True}, "benchdnn", "accumulation"),
    ],
)
def test_refusals_name_what_is_missing(change, dialect, words):
    with pytest.raises(InvalidArgument, match=f"{dialect} has no words for {words}"):
        write(RESNET.replace(ic=4).replace(**change), dialect)


def test_one_axis_is_refused_where_there_are_two():
    for dialect in ("miopen", "deepbench"):
        with pytest.raises(InvalidArgument, match="1-D"):
            write(P("mb1ic3iw8oc4kw3"), dialect)


# --- known lines ------------------------------------------------------------------------------------------------------

LINES = {
    'g2mb256ic96ih27oc256oh27kh5ph2n"alexnet:conv2"': ALEXNET2,
    "g2mb256ic96ih27oc256oh27kh5ph2nalexnet:conv2": ALEXNET2,
    "--dir=FWD_D --dt=f32 g2mb256ic96ih27oc256oh27kh5ph2": ALEXNET2,
    "./benchdnn --conv --mode=P -v5 g2mb256ic96ih27oc256oh27kh5ph2": ALEXNET2,
    "g2mb256ic96ih27oc256kh5ph2dh0": ALEXNET2,
    "mb1_ic8ih9_oc8_kh3_dh1": P("mb1ic8ih9oc8kh3dh2"),
    "ic3oc16_iw5ow5kw3pw1_n": P("mb2ic3iw5oc16kw3pw1"),
    "ic3oc16_id5od5kd3pd1_n": P("mb2ic3id5ih5iw5oc16kd3kh3kw3pd1ph1pw1"),
    "ic3oc16_ih5oh5kh3_n": P("mb2ic3ih5oc16kh3ph1"),  # padding follows from the output
    "ic17oc17_iw8ow5kw3pw3sw2_n": P("mb2ic17iw8oc17kw3sw2pw3pw_r0"),  # far padding follows from the near
    "ic256ih56oc128oh28kh1sh2ph0_n": P("mb2ic256ih56oc128kh1sh2"),  # the last row is not read
    "--dir=BWD_D --dt=bf16 --stag=axb --dtag=axb mb1ic8ih9oc8oh7kh3": P("bwd_data_bf16_nhwc_mb1ic8ih9oc8kh3"),
    "--dir=BWD_WB --dt=f16:f16:f16 mb1ic8ih9oc8oh7kh3": P("bwd_weights_f16_mb1ic8ih9oc8kh3"),
    "--dir=FWD_B --attr-post-ops=add:f32:per_tensor+relu mb1ic8ih9oc8oh7kh3": P("mb1ic8ih9oc8kh3+bias+residual+relu"),
    "--attr-post-ops=sum --mb=7 mb1ic8ih9oc8oh7kh3": P("mb7ic8ih9oc8kh3+accumulate"),
    "--attr-post-ops=relu:0.1 --cfg=bf16bf16bf16 mb1ic8ih9oc8oh7kh3": P("bf16_mb1ic8ih9oc8kh3+leaky_relu(0.1)"),
    "--attr-fpmath=tf32 mb1ic8ih9oc8oh7kh3": P("tf32_mb1ic8ih9oc8kh3"),
    "MIOpenDriver conv -n 1 -c 3 -H 224 -W 224 -k 64 -y 7 -x 7 -p 3 -q 3 -u 2 -v 2 -l 1 -j 1 -g 1 -F 1 -t 1": RESNET,
    "./bin/MIOpenDriver conv -n 1 -c 3 -H 224 -W 224 -k 64 -y 7 -x 7 -p 3 -q 3 -u 2 -v 2": RESNET,
    "MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver convfp16 -n 1 -c 8 -H 9 -W 9 -k 8 -F 4 -m conv": P(
        "bwd_weights_f16_mb1ic8ih9oc8kh3"
    ),
    "MIOpenDriver convbfp16 --batchsize 1 --in_channels=8 -H 9 -W 9 -k 8 --forw 2 -I NHWC -O NHWC -f NHWC": P(
        "bwd_data_bf16_nhwc_mb1ic8ih9oc8kh3"
    ),
    "conv -n 1 -c 8 -H 9 -W 9 -k 8 -z same": P("mb1ic8ih9oc8kh3ph1"),
    "MIOpenDriver conv -n 1 -c 8 --in_d 5 -H 6 -W 7 -k 8 --fil_d 1 -y 2 -x 3 --pad_d 1 -p 2 -q 3 --conv_stride_d 1 "
    "-u 2 -v 3 --dilation_d 1 -l 2 -j 3 --spatial_dim 3 -b 1 -F 1": P(
        "mb1ic8id5ih6iw7oc8kd1kh2kw3sd1sh2sw3pd1ph2pw3dd1dh2dw3+bias"
    ),
    "MIOpenDriver conv -n 2 -c 8 -H 5 -W 5 -k 6 -y 4 -x 4 -p 1 -q 1 -u 2 -v 2 -m trans -F 1": P(
        "bwd_data_f32_mb2ic6ih10oc8kh4sh2ph1"
    ),
    "MIOpenDriver": None,
    "(700, 161, 1, 4, 32, 20, 5, 0, 0, 2, 2)": P("mb4ic1ih161iw700oc32kh5kw20sh2sw2"),
    "    std::make_tuple(341, 79, 32, 4, 32, 10, 5, 3, 1, 2, 3),": P("mb4ic32ih79iw341oc32kh5kw10sh3sw2ph1pw3"),
    "700 161 1 4 32 20 5 0 0 2 2": P("mb4ic1ih161iw700oc32kh5kw20sh2sw2"),
    'g (float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,8,8] y) { y = Conv <auto_pad="SAME_UPPER"> (x, w) }': P(
        "mb1ic3ih8oc4kh3ph1"
    ),
    "fwd_f32_mb1ic3ih224iw224oc64kh7kw7sh2sw2ph3pw3": RESNET,
    "mb1ic3ih224oc64kh7sh2ph3  conv1 *2": RESNET,
    "convdispatch,1,fwd_f32_mb1ic8ih9iw9oc8kh3kw3+clip(-1,2.5),im2col.gemm,Some CPU, fast,0,12.5": P(
        "mb1ic8ih9oc8kh3+clip(-1,2.5)"
    ),
}


@pytest.mark.parametrize("line", [line for line, problem in LINES.items() if problem])
def test_a_known_line(line):
    assert read(line) == LINES[line]


def test_letters_alone_are_this_projects():
    assert detect("mb1ic8ih9oc8kh3dh2") == "convdispatch"
    assert read("mb1ic8ih9oc8kh3dh2").dh == 2
    assert read("mb1ic8ih9oc8kh3dh2", "benchdnn").dh == 3
    assert read("ic8ih9oc8kh3").mb == 1
    assert read("ic8ih9oc8kh3", "benchdnn").mb == 2


def test_several_directions_are_several_problems():
    line = "MIOpenDriver conv -n 1 -c 8 -H 9 -W 9 -k 8 -F 0"
    assert [p.direction for p in read_all(line)] == ["fwd", "bwd_data", "bwd_weights"]
    with pytest.raises(InvalidProblem, match="asks for 3 problems"):
        read(line)
    assert [p.direction for p in read_all(line[:-1] + "5 -b 1")] == ["fwd", "bwd_weights"]
    assert [(p.direction, p.dtype) for p in read_all("--dir=BWD_D,FWD_I --dt=f16,f32 mb1ic8ih9oc8oh7kh3")] == [
        ("bwd_data", "float16"),
        ("bwd_data", "float32"),
        ("fwd", "float16"),
        ("fwd", "float32"),
    ]


def test_a_tuple():
    assert read((700, 161, 1, 4, 32, 20, 5, 0, 0, 2, 2)) == P("mb4ic1ih161iw700oc32kh5kw20sh2sw2")
    with pytest.raises(InvalidProblem, match="11 numbers"):
        read((1, 2, 3))


BAD = {
    "": "no problem",
    "--dir=FWD_D": "no problem",
    "mb1ic8ih9oc8oh7kh3zz3": "cannot read 'zz3'",
    "mb1mb2ic8ih9oc8oh7kh3": "mb stands twice",
    "ic8ih9oc8oh7": "kh is missing",
    "ic8oc8_n": "no axis",
    "ih9oc8oh7kh3": "ic is missing",
    "ic8ih9iw9oc8oh7kh3": "kw is missing",
    "ic8ih9oc8oh5kh3ph0": "leaves a part of the input unread",
    "--dir=SIDEWAYS ic8ih9oc8oh7kh3": "SIDEWAYS",
    "--dt=s8 ic8ih9oc8oh7kh3": "data types must be one of f32",
    "--dt=f32:f32:f16 ic8ih9oc8oh7kh3": "for all three tensors",
    "--stag=aBx16b ic8ih9oc8oh7kh3": "aBx16b",
    "--stag=axb --dtag=abx ic8ih9oc8oh7kh3": "same layout",
    "--attr-post-ops=gelu ic8ih9oc8oh7kh3": "post-op 'gelu'",
    "--attr-scales=src:common:2 ic8ih9oc8oh7kh3": "has no meaning here",
    "--mb=many ic8ih9oc8oh7kh3": "cannot read '--mb=many'",
    "MIOpenDriver conv -n 1 -c x": "needs a number, got 'x'",
    "MIOpenDriver conv -n": "needs a value",
    "MIOpenDriver conv -n 1 --frobnicate 3": "'--frobnicate' is not known",
    "MIOpenDriver convint8 -n 1": "convint8 is none of",
    "MIOpenDriver conv -n 1 -F 9": "-F must be",
    "MIOpenDriver conv --spatial_dim 4": "must be 2 or 3",
    "MIOpenDriver conv -I NHWC -O NCHW": "all NCHW or all NHWC",
    "MIOpenDriver conv -m sideways": "conv or trans",
    "MIOpenDriver conv -c 3 -g 2": "multiple of groups",
    "g (float[1,3,8,8] x) => (float[1] y) { y = Relu (x) }": "no problem",
    "g (float[1,3,8,8] x) => (float[1] y) { y = Conv (": "ONNX cannot read",
    "g (float[1,3,8,8] x, float[4,2,3,3] w) => (float[1] y) { y = Conv (x, w) }": "x has 3 channels, w 2",
    "g (float[N,3,8,8] x, float[4,3,3,3] w) => (float[1] y) { y = Conv (x, w) }": "shapes of numbers",
    "g (int8[1,3,8,8] x, int8[4,3,3,3] w) => (int8[1] y) { y = Conv (x, w) }": "type int8",
    "fwd_f32_what": "cannot read",
}


@pytest.mark.parametrize("line", BAD)
def test_what_cannot_be_read_is_said(line):
    with pytest.raises(InvalidProblem) as caught:
        read_all(line)
    assert BAD[line] in str(caught.value)


@pytest.mark.parametrize("source", [3, None, b"mb1"])
def test_what_is_no_text(source):
    with pytest.raises(InvalidProblem):
        read(source)


def test_an_unknown_dialect():
    with pytest.raises(InvalidArgument, match="convdispatch, benchdnn, miopen"):
        read("mb1", "caffe")
    with pytest.raises(InvalidArgument, match="got 'caffe'"):
        write(RESNET, "caffe")


# --- ONNX -------------------------------------------------------------------------------------------------------------

onnx = pytest.importorskip("onnx")


def test_a_node_with_shapes():
    node = onnx.helper.make_node("Conv", ["x", "w", "b"], ["y"], strides=[2, 2], pads=[3, 3, 3, 3])
    expected = RESNET.replace(bias=True)
    assert read(node, shapes={"x": (1, 3, 224, 224), "w": (64, 3, 7, 7)}) == expected
    assert read(node, shapes=[(1, 3, 224, 224), (64, 3, 7, 7), (64,)]) == expected
    with pytest.raises(InvalidProblem, match="needs the shapes"):
        read(node)
    with pytest.raises(InvalidProblem, match="got Relu"):
        read(onnx.helper.make_node("Relu", ["x"], ["y"]), shapes=[])


@given(
    problem=problems(plain=True), transposed=st.booleans(), pad=st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"])
)
@settings(max_examples=60, deadline=None)
def test_sizes_are_those_that_onnx_infers(problem, transposed, pad):
    """Padding by rule: our output size against onnx's own shape inference."""
    x, w = (problem.y_shape, problem.w_shape) if transposed else (problem.x_shape, problem.w_shape)
    assume(problem.mb > 0)
    if pad == "VALID" and not transposed:
        assume(all(size >= d for size, d in zip(x[2:], _extents(problem))))
    node = onnx.helper.make_node(
        "ConvTranspose" if transposed else "Conv",
        ["x", "w"],
        ["y"],
        auto_pad=pad,
        group=problem.g,
        kernel_shape=list(w[2:]),
        strides=[getattr(problem, "s" + a) for a in problem.axes],
        dilations=[getattr(problem, "d" + a) for a in problem.axes],
    )
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, x), value("w", 1, w)], [value("y", 1, [None] * len(x))])
    model = onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph), strict_mode=True)
    expected = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    found, refusal = answer(InvalidProblem, lambda: read(node, shapes={"x": x, "w": w}))
    if found is None:  # a rule that asks for more output than the inputs reach has no padding
        assert transposed
        assert "padding must be 0 or more" in refusal
        return
    assert list(found.out_shape) == expected


def _extents(problem):
    return [getattr(problem, "d" + a) * (getattr(problem, "k" + a) - 1) + 1 for a in problem.axes]


def test_a_model_file(tmp_path):
    weights = onnx.numpy_helper.from_array(np.zeros((64, 3, 7, 7), np.float32), "w")
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["a"], name="stem", strides=[2, 2], pads=[3, 3, 3, 3]),
        onnx.helper.make_node("Relu", ["a"], ["b"]),
        onnx.helper.make_node("ConvTranspose", ["b", "v"], ["y"], name="up", strides=[2, 2]),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "net", [value("x", 1, (1, 3, 224, 224)), value("v", 1, (64, 8, 2, 2))], [value("y", 1, None)], [weights]
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "net.onnx")
    assert [tuple(entry) for entry in read_file(tmp_path / "net.onnx")] == [
        ("stem", RESNET, 1),
        ("up", P("bwd_data_f32_mb1ic8ih224oc64kh2sh2"), 1),
    ]
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(InvalidProblem, match=r"bad\.onnx"):
        list(read_file(tmp_path / "bad.onnx"))


# --- files ------------------------------------------------------------------------------------------------------------


def lines(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_benchdnn_batch_file(tmp_path):
    lines(tmp_path / "shapes", '# vgg\n\nmb1ic3ih8oc4kh3ph1n"c1*3"   # thrice\nmb1ic4ih8oc4kh3dh1\n')
    text = "--dt=f16,bf16\n--batch=shapes\n--reset\n--dir=BWD_D\nmb9ic1ih9oc1oh7kh3\nmb1ic1ih9oc1kh3\n"
    entries = list(read_file(lines(tmp_path / "harness", text)))
    dilated = "mb1ic4ih8oc4kh3dh2"
    assert [(e.name, str(e.problem), e.count) for e in entries] == [
        ("c1", str(P("f16_mb1ic3ih8oc4kh3ph1")), 3),
        ("c1", str(P("bf16_mb1ic3ih8oc4kh3ph1")), 3),
        ("mb1ic4ih8oc4kh3dh1", str(P("f16_" + dilated)), 1),
        ("mb1ic4ih8oc4kh3dh1", str(P("bf16_" + dilated)), 1),
        ("mb9ic1ih9oc1oh7kh3", str(P("bwd_data_mb9ic1ih9oc1kh3")), 1),
        ("mb1ic1ih9oc1kh3", str(P("bwd_data_mb1ic1ih9oc1kh3")), 1),
    ]


def test_a_file_may_mix_dialects(tmp_path):
    text = """\
// three ways to say it
MIOpenDriver conv -n 1 -c 3 -H 224 -W 224 -k 64 -y 7 -x 7 -p 3 -q 3 -u 2 -v 2 -F 1   # MIOpen
std::make_tuple(224, 224, 3, 1, 64, 7, 7, 3, 3, 2, 2),
mb1ic3ih224oc64kh7sh2ph3  stem *2
"""
    entries = list(read_file(lines(tmp_path / "mixed.txt", text)))
    assert [entry.problem for entry in entries] == [RESNET] * 3
    assert (entries[2].name, entries[2].count) == ("stem", 2)


def test_a_trace_replays(tmp_path):
    text = "convdispatch,1,fwd_f32_mb1ic3ih8iw8oc4kh3kw3,im2col.gemm,CPU,0,1.5\n" * 2
    assert [e.problem for e in read_file(lines(tmp_path / "trace", text))] == [P("mb1ic3ih8oc4kh3")] * 2


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_file_of_each_dialect(tmp_path, dialect):
    path = lines(tmp_path / "list", "\n".join(write(RESNET.replace(mb=mb), dialect, f"n{mb}") for mb in range(1, 5)))
    assert [entry.problem.mb for entry in read_file(path)] == [1, 2, 3, 4]


def test_errors_name_file_and_line(tmp_path):
    path = lines(tmp_path / "list.txt", "mb1ic3ih8oc4kh3\n\n# fine\nmb1ic3ih8oc4kh9\n")
    with pytest.raises(InvalidProblem, match=r"list\.txt:4: the kernel must fit"):
        list(read_file(path))
    lines(tmp_path / "outer", "--dir=FWD_D\n--batch=inner\n")
    lines(tmp_path / "inner", "ic3ih8oc4kh\n")
    with pytest.raises(InvalidProblem, match=r"outer:2: .*inner:1: "):
        list(read_file(tmp_path / "outer"))
    lines(tmp_path / "self", "--batch=self\n")
    with pytest.raises(InvalidProblem, match="includes itself"):
        list(read_file(tmp_path / "self"))
    with pytest.raises(InvalidProblem, match="cannot read"):
        list(read_file(tmp_path / "missing"))


def test_the_shape_tables_are_read():
    from convdispatch import shapes

    for name in shapes.names():
        path = Path(shapes.__file__).with_name(name + ".txt")
        assert list(read_file(path)) == shapes.load(name)
