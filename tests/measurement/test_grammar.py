"""Every dialect: known lines, and refusals in words."""

from __future__ import annotations

import pytest

from convdispatch.api.errors import InvalidArgument, InvalidProblem
from convdispatch.api.problem import ConvProblem
from convdispatch.measurement.grammar import detect, read, read_all

P = ConvProblem.parse
ALEXNET2 = P("g2mb256ic96ih27iw27oc256kh5kw5ph2pw2")
RESNET = P("mb1ic3ih224iw224oc64kh7kw7sh2sw2ph3pw3")


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
    "--attr-post-ops=swish:0.5 ic8ih9oc8oh7kh3": "swish has",
    "--attr-post-ops=hardswish:0.2:0.5 ic8ih9oc8oh7kh3": "hardswish has",
    "--attr-scales=src:common:2 ic8ih9oc8oh7kh3": "for quantized data types",
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
