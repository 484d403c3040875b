"""Texts that are nearly what a parser reads: each is read, or refused in one sentence that names file and line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st
from strategies import FUZZ, answer, mutated

import convdispatch as cd
from convdispatch.api.activations import parse_activation
from convdispatch.api.errors import ConvDispatchError, ConvDispatchWarning, InvalidPolicy, InvalidProblem
from convdispatch.device.opencl import icd
from convdispatch.measurement import grammar, shapes
from convdispatch.selection.plugins import errata, registry

RULES = b"""version: 1
include: packaged
block: [acme]
rules:
  - when: {direction: fwd, kh: 3, ic: ">=32", driver: ">=580", dtype: [float32, float16], depthwise: false}
    prefer: [winograd.*, im2col]
"""
ERRATA = b"""version: 1
errata:
  - solver: fft.*
    kernel: ["jit:*", "ref *"]
    when: {vendor: intel, kh: 3, geometry: "ih < (kh - 1) * dh + 1 or iw > 2 * ow"}
    driver: {from: 2026.1, until: 2026.10}
    reason: "it is wrong"
    problems: [mb1ic3ih8oc4kh3]
"""
LINES = {
    "convdispatch": "bwd_data_f16_nhwc_tf32_g2mb1ic4ih8iw8oc4kh3kw3ph1pw1ph_r2+bias+relu  name *4",
    "trace": "convdispatch,1,fwd_f32_mb1ic3ih8oc4kh3+clip(-1,2),im2col,rule,0.5",
    "benchdnn": '--dir=BWD_D --dt=f32,f16 --mb=2,3 --attr-post-ops=relu:0.5+sum g2mb2ic4ih8oc4oh8kh3ph1n"x*3"',
    "miopen": "MIOpenDriver convfp16 -n 1 -c 3 -H 22 -W 22 -k 4 -y 3 -x 3 -p 1 -q 1 -u 2 -v 2 -F 0 -m trans -z same",
    "deepbench": "std::make_tuple(22, 22, 3, 1, 4, 3, 3, 1, 1, 2, 2)",
}
LONG = "9" * 5000


# --- texts that were met ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"version: 1\nrules: \xff\n", 2),
        (b"version: 1\nrules: [\x00]\n", 2),
        (b"version: 1\n# \xc2\x80\n", 2),
        (b"[" * 5000, 1),
        (b"version: [1]\n", 1),
        (b"version: 1\ninclude: {packaged: 1}\n", 2),
        (b"version: 1\n? [a, b]\n: 1\n", 2),
        (b"rules:\n- prefer: [a]\n  when: {kh: !!int x}\n", 3),
        (b"rules:\n- prefer: [a]\n  when:\n    kh: " + LONG.encode() + b"\n", 4),
        (b"rules:\n- prefer: [a]\n  when:\n    kh: '>=" + LONG.encode() + b"'\n", 4),
        (b"rules:\n- prefer: [a]\n  when: {kh: !!timestamp 2026-99-99}\n", 3),
        (b"rules:\n- prefer: [a]\n  when: {kh: !!python/object:os.system x}\n", 3),
        ("rules:\n- prefer: [a]\n  when: {kh: '>=²'}\n".encode(), 3),
        (b"a: &x [*x, *y]\n", 1),
        (b'a: "\\U0FFFFFFF"\n', 1),
    ],
)
def test_a_registry_that_is_none_is_refused_with_its_line(tmp_path, monkeypatch, text, line):
    (tmp_path / "rules.yaml").write_bytes(text)
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(tmp_path / "rules.yaml"))
    with pytest.raises(InvalidPolicy) as found:
        registry.registry()
    assert re.match(rf".*rules\.yaml:{line}: ", str(found.value)), str(found.value)


@pytest.mark.parametrize(
    "text",
    [
        f"mb1ic{LONG}ih8oc4kh3",
        f"mb1ic3ih8oc4kh3  name *{LONG}",
        f'--mb={LONG} mb1ic3ih8oc4kh3n"x"',
        f'g1mb1ic3ih8oc4oh6kh3n"x*{LONG}"',
        f"g1mb1ic{LONG}_ih8oc4oh6kh3",
        f"({LONG}, 22, 3, 1, 4, 3, 3, 1, 1, 2, 2)",
        f"MIOpenDriver conv -n {LONG}",
        f"MIOpenDriver conv -n {'9' * 4000}",
        f"mb1ic3ih8oc4kh3+clip(0,{LONG}x)",
        "g (float[1,3,8] x, float[4,3] w) => (float y) { y = Conv (x, w) }",
        "g (float[1,3,8] x) => (float y) { y = Conv (x) }",
        "g (float[1,3,8] x, float[4,3,3] w) => (float y) { y = Conv <strides=[1,1], pads=[]> (x, w) }",
        "g (float[1,3,8] x, float[4,3,3] w) => (float y) { y = Conv <strides=1.5> (x, w) }",
        "g (float[1,3,8] x, float[4,3,3] w) => (float y) { y = Conv <auto_pad=3> (x, w) }",
        "g (float[1,3,8] x, float[4,3,3] w) => (float y) { y = Conv <group=[2]> (x, w) }",
        "g (float[1,3,8] x, float[4,3,3] w) => (float y) { y = ConvTranspose <strides=[0]> (x, w) }",
        f"g (float[1,{LONG},8] x, float[4,3,3] w) => (float y) {{ y = Conv (x, w) }}",
        "g () => () { = Conv",
    ],
)
def test_a_line_that_states_no_problem_is_refused_with_its_place(tmp_path, text):
    (tmp_path / "shapes.txt").write_text(f"mb1ic3ih8oc4kh3\n\n{text}\n")
    with pytest.raises(InvalidProblem, match=r"shapes\.txt:3: ") as found:
        list(grammar.read_file(tmp_path / "shapes.txt"))
    assert len(str(found.value)) < 1000
    assert "\n" not in str(found.value)


def test_a_table_with_an_endless_count():
    with pytest.raises(InvalidProblem, match="t:1: "):
        shapes.parse(f"mb1ic3ih8oc4kh3 name *{LONG}", "t")


@pytest.mark.parametrize(
    "activation", [[], {}, ["relu"], 3, b"relu", "relu\0", "relu(\0)", "\0", f"clip({LONG}x)", "relu\n"]
)
def test_activations_that_are_none(activation):
    import numpy as np

    x, w = np.ones((1, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    with pytest.raises(InvalidProblem, match="activation"):
        cd.conv(x, w, activation=activation)


@pytest.mark.parametrize("place", ["folder", "file"])
@pytest.mark.parametrize("text", [b"\xff\xfe", b"lib\0.so", b"liba.so\nlibb.so"])
def test_an_icd_file_that_names_no_library_is_passed_over(tmp_path, place, text):
    (tmp_path / "bad.icd").write_bytes(text)
    (tmp_path / "good.icd").write_text("libgood.so\n")
    with pytest.warns(ConvDispatchWarning, match=r"bad\.icd is passed over"):
        found = icd._listed_in(tmp_path if place == "folder" else tmp_path / "bad.icd")
    assert [library for _, library in found] == (["libgood.so"] if place == "folder" else [])


# --- fuzz ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parse", "text"), [(registry.parse, RULES), (errata.parse, ERRATA)], ids=["rules", "errata"])
def test_any_registry_or_errata_are_read_or_refused_with_their_line(tmp_path, parse, text):
    path = tmp_path / "fuzz.yaml"

    @seed(2026)
    @FUZZ
    @given(mutated(text) | st.binary(max_size=40))
    def run(data):
        path.write_bytes(data)
        _, words = answer(InvalidPolicy, lambda: parse(registry.read_text(path), str(path)))
        assert not words or re.match(r".*fuzz\.yaml:\d+: ", words), words

    run()


@pytest.mark.parametrize("kind", LINES)
def test_any_line_is_read_or_refused_with_its_place(tmp_path, kind):
    path = tmp_path / "fuzz.txt"

    @seed(2026)
    @FUZZ
    @given(mutated(LINES[kind].encode()))
    def run(data):
        path.write_bytes(data)
        _, words = answer(InvalidProblem, lambda: list(grammar.read_file(path)))
        assert not words or "fuzz.txt" in words
        dialect = "convdispatch" if kind == "trace" else kind
        answer(ConvDispatchError, lambda: grammar.read_all(data.decode(errors="replace"), dialect))

    run()


@seed(2026)
@FUZZ
@given(mutated(b"mb1ic3ih8oc4kh3 name *4  # remark\nmb2ic3ih8oc4kh1 other\n"))
def test_any_table_is_read_or_refused_with_its_line(data):
    _, words = answer(InvalidProblem, lambda: shapes.parse(data.decode(errors="replace"), "table.txt"))
    assert not words or re.match(r"table\.txt:\d+: ", words)


@seed(2026)
@FUZZ
@given(st.text(max_size=20) | mutated(b"clip(-1.5,2e3)").map(lambda data: data.decode(errors="replace")))
def test_any_activation_is_read_or_refused(text):
    answer(InvalidProblem, lambda: parse_activation(text))
