"""registry.yaml: matching, precedence, and errors that name the line."""

from __future__ import annotations

import dataclasses
import fnmatch

import pytest

from convdispatch.api import ConvDispatchWarning, ConvProblem, DeviceInfo, InvalidPolicy, cpu
from convdispatch.selection.choice.ranking import Preferred, rank
from convdispatch.selection.plugins import loader
from convdispatch.selection.plugins.registry import packaged_path, parse, registry, registry_path
from convdispatch.tools import doctor

H200 = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", driver="580.159.04")
CPU = DeviceInfo("AMD EPYC", "intel", "cpu", "simd512", driver="2026.22")
VGG = ConvProblem(mb=8, ic=64, ih=56, iw=56, oc=64, kh=3, kw=3, ph=1, pw=1)
DEPTHWISE = ConvProblem(ic=32, ih=8, iw=8, oc=32, kh=3, kw=3, g=32)


@pytest.fixture
def own(tmp_path, monkeypatch, read_anew):
    """``own(text)`` puts a registry file of the user's in force."""
    turn = iter(range(100))

    def put(text):
        file = tmp_path / str(next(turn)) / "own.yaml"  # a file is read once
        file.parent.mkdir()
        file.write_text(text)
        monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(file))

    return put


@pytest.mark.parametrize(
    ("when", "problem", "info", "matches"),
    [
        ("{kh: 3, kw: 3}", VGG, CPU, True),
        ("{kh: 3, kw: 5}", VGG, CPU, False),
        ('{ic: ">=32"}', VGG, CPU, True),
        ('{ic: ">64"}', VGG, CPU, False),
        ('{ic: "<= 64"}', VGG, CPU, True),
        ('{ic: "!=64"}', VGG, CPU, False),
        ("{ic: [16, 64]}", VGG, CPU, True),
        ("{ic: [16, 32]}", VGG, CPU, False),
        ("{vendor: nvidia}", VGG, H200, True),
        ("{vendor: nvidia}", VGG, CPU, False),
        ('{arch: "sm_*"}', VGG, H200, True),
        ('{driver: "<580.160"}', VGG, H200, True),
        ('{driver: "<580.9"}', VGG, H200, False),  # versions compare by number, not by letter
        ('{driver: ">=580"}', VGG, H200, True),
        ("{depthwise: true}", DEPTHWISE, CPU, True),
        ("{depthwise: true}", VGG, CPU, False),
        ("{direction: [bwd_data, bwd_weights]}", VGG, CPU, False),
        ("{type: cpu, layout: nchw, dtype: float32}", VGG, CPU, True),
        ("{activation: relu}", VGG.replace(activation="relu"), CPU, True),
        ("{g: 1}", VGG, CPU, True),
        ("{bias: true}", VGG.replace(bias=True), CPU, True),
        ("{activation: null}", VGG, CPU, True),
        ("{activation: null}", VGG.replace(activation="relu"), CPU, False),
        ('{ic: "64"}', VGG, CPU, True),
    ],
)
def test_when(when, problem, info, matches):
    rules = parse(f"rules:\n  - when: {when}\n    prefer: [a.b]\n")
    assert (rules.rule(problem, info) is not None) is matches


def test_first_match_wins_and_says_its_line():
    text = "version: 1\nrules:\n  - when: {kh: 3}\n    prefer: [first]\n  - prefer: [second, third]\n"
    rules = parse(text, "here.yaml")
    first, second = rules.rule(VGG, CPU), rules.rule(VGG.replace(kh=1, kw=1), CPU)
    assert (first.prefer, first.where) == (("first",), "here.yaml:3")
    assert (second.prefer, second.where) == (("second", "third"), "here.yaml:5")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("version: 2\n", 1, "version must be 1, got 2"),
        ("rules: []\nwhitelist: []\n", 2, "unknown key 'whitelist' in the registry"),
        ("rules:\n  - when: {khh: 3}\n    prefer: [a]\n", 2, "unknown key 'khh' in when"),
        ("rules:\n  - when: {kh: 3}\n", 2, "a rule needs prefer"),
        ("rules:\n  - prefer: [a]\n    extra: 1\n", 3, "unknown key 'extra' in a rule"),
        ("rules:\n  - prefer: a\n", 2, "prefer must be a list"),
        ("rules:\n\n  - when: {ic: '>=many'}\n    prefer: [a]\n", 3, "must compare with a whole number"),
        ("rules: [\n", 2, ""),
        ("rules:\n  - when: {kh: {a: 1}}\n    prefer: [a]\n", 2, "kh takes a value, a list of values or a comparison"),
        ("block: fast\n", 1, "block must be a list"),
        ("rules: []\nrules: []\n", 2, "'rules' stands twice"),
        ("include: mine\n", 1, "include takes packaged and nothing else"),
        ("version: 1\ninclude: [packaged]\n", 2, "include takes packaged and nothing else"),
        *(
            (f"rules:\n  - when:\n      {condition}\n    prefer: [a]\n", 3, words)
            for condition, words in (
                ("ic: abc", "ic takes a whole number, a list of them or a comparison such as '>=32', got 'abc'"),
                ("ic: 6.5", "ic takes a whole number"),
                ("ic: true", "ic takes a whole number"),
                ("ic: '6*'", "ic takes a whole number"),
                ("ic: [32, abc]", "ic takes a whole number"),
                ("ic: null", "ic takes a whole number"),
                ("bias: 1", "bias takes true or false, got 1"),
                ("depthwise: 'yes'", "depthwise takes true or false, got 'yes'"),
                ("direction: forward", "direction is one of fwd, bwd_data, bwd_weights, got 'forward'"),
                ("dtype: [float32, single]", "got 'single'"),
                ("type: cuda", "type is one of cpu, gpu, accelerator, got 'cuda'"),
                ("layout: '>=2'", "layout takes a name or a glob, got '>=2'"),
                ("vendor: 7", "vendor takes a name or a glob, got 7"),
                ("driver: 580", "driver takes a name or a glob or a comparison such as '>=580', got 580"),
            )
        ),
    ],
)
def test_errors_name_file_and_line(text, line, words):
    with pytest.raises(InvalidPolicy) as caught:
        parse(text, "broken.yaml")
    assert str(caught.value).startswith(f"broken.yaml:{line}: ")
    assert words in str(caught.value)


def test_an_empty_file_is_an_empty_registry():
    assert parse("", "empty.yaml").rules == ()


def test_the_packaged_registry_reads():
    assert registry_path() is not None
    assert registry().rules


def test_a_file_of_ones_own_replaces_the_packaged_one_or_includes_it(own):
    packaged = parse(packaged_path().read_text(), str(packaged_path()))
    own("rules:\n  - when: {kh: 3}\n    prefer: [im2col]\nblock: [slow]\n")
    assert registry().rule(DEPTHWISE.replace(kh=1, kw=1), CPU) is None
    assert registry().own is None
    own("include: packaged\nrules:\n  - when: {kh: 3}\n    prefer: [im2col]\nblock: [slow]\n")
    assert registry().own == 1
    assert registry().rule(VGG, CPU).prefer == ("im2col",)
    assert registry().rule(VGG, CPU).where.endswith("own.yaml:3")
    other = VGG.replace(kh=1, kw=1, ph=0, pw=0, ph_r=0, pw_r=0)
    assert registry().rule(other, CPU) == packaged.rule(other, CPU)
    assert registry().rule(other, CPU).where.startswith(str(packaged_path()))
    assert registry().block == {"slow", *packaged.block}
    own("include: packaged\n")
    assert registry().rules == packaged.rules


def test_doctor_says_that_a_file_replaces_the_packaged_rules(own):
    own("rules: []\n")
    assert "`include: packaged`" in doctor.examine(probe=False).registry_note
    own("include: packaged\n")
    assert doctor.examine(probe=False).registry_note == ""


def test_globs_that_mean_nothing_are_said_with_their_line(own):
    own("rules:\n  - prefer: [winogrd.*, im2col, im2col+*]\n")
    with pytest.warns(ConvDispatchWarning) as said:
        loader.reload()
    words = [str(one.message) for one in said]
    assert len(words) == 1
    assert "own.yaml:2: 'winogrd.*' names no loaded solver" in words[0]


ENGINE = """
from convdispatch_im2col import Im2col
from convdispatch.api import hookimpl

class Engine(Im2col):
    name = "{name}.engine"

@hookimpl
def convdispatch_solvers():
    return [Engine()]
"""


@pytest.fixture
def shipped(tmp_path, monkeypatch, read_anew):
    """``shipped(acme="rules...")`` makes plugins that ship these rules; gives the order, and the first one's source."""
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path / "plugins"))
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))

    def load(problem="mb1ic64ih28oc64kh3ph1", **rules):
        for name, text in rules.items():
            folder = tmp_path / "plugins" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").write_text(ENGINE.format(name=name))
            (folder / "registry.yaml").write_text(text)
        read_anew()
        found = rank(ConvProblem.parse(problem), CPU)
        return [candidate.solver.name for candidate in found], found[0].source

    return load


def test_a_plugin_s_rules_stand_before_the_packaged_ones(shipped, own):
    packaged, _ = shipped()
    order, source = shipped(acme="rules:\n  - when: {kh: 3}\n    prefer: [acme.*]\n")
    assert (order[0], source[-21:]) == ("acme.engine", "/acme/registry.yaml:2")
    assert [name for name in order if name != "acme.engine"] == packaged, "the packaged rules order the others"
    order, source = shipped("mb1ic64ih28oc64kh1")
    assert order[0] != "acme.engine", "no rule of acme's matches"
    assert source.startswith(str(packaged_path()))
    own("include: packaged\nrules:\n  - when: {ic: 32}\n    prefer: [im2col]\n")
    assert shipped()[0][0] == "acme.engine", "included with what is packaged"
    own("include: packaged\nrules:\n  - when: {ic: 64}\n    prefer: [im2col]\n")
    assert shipped()[0][0] == "im2col", "the user's own rule goes before"
    own("rules: []\n")
    assert all("registry.yaml" not in c.source for c in rank(VGG, CPU)), "a file of one's own replaces all"


def test_a_plugin_s_rules_mean_its_own_solvers_only(shipped):
    with pytest.warns(ConvDispatchWarning, match=r"acme/registry.yaml:2: 'im2col' names no loaded solver"):
        order, source = shipped(acme="rules:\n  - prefer: [im2col, acme.*]\n")
    assert (order[0], source.endswith("/acme/registry.yaml:2")) == ("acme.engine", True)


def test_plugins_share_the_first_place_whoever_s_name_comes_first(shipped, monkeypatch):
    rules = "rules:\n  - prefer: [{}.*]\n"
    shipped(acme=rules.format("acme"), zeta=rules.format("zeta"))
    monkeypatch.setattr(type(loader.plugins().solvers["zeta.engine"]), "cost", lambda *_: 1e-12)
    assert [c.solver.name for c in rank(VGG, CPU)][:2] == ["zeta.engine", "acme.engine"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules:\n  - when: {ic: abc}\n    prefer: [acme.*]\n", "registry.yaml:2: ic takes a whole number"),
        ("rules: []\nblock: [im2col]\n", "registry.yaml:2: unknown key 'block' in the registry; known: rules, version"),
        ("errata: []\n", "unknown key 'errata'"),
    ],
)
def test_what_is_wrong_with_a_plugin_s_rules_costs_only_them(shipped, text, words):
    with pytest.warns(ConvDispatchWarning, match="plugin acme: its rules are passed over"):
        order, _ = shipped(acme=text)
    assert "acme.engine" in order
    (entry,) = [entry for entry in loader.plugins().report if entry.name == "acme"]
    assert entry.status == "loaded"
    assert words in entry.reason


@pytest.mark.parametrize(
    ("text", "preferred"),
    [
        ("bwd_data_mb1ic64ih28oc64kh3ph1", "costed"),
        ("bwd_weights_mb1ic192ih28oc64kh1", "costed"),
        ("bwd_data_mb1ic192ih28oc64kh1", "costed"),
        ("mb1ic480ih1oc20kh1", "products"),
        ("fwd_f16_mb1ic192ih28oc64kh1", "costed"),
        ("bwd_weights_g64mb1ic64ih28oc64kh3ph1", "costed_depthwise"),
        ("bwd_data_g64mb1ic64ih28oc64kh3ph1sh2", "costed_depthwise"),
        ("bwd_data_f32_nhwc_g64mb1ic64ih28oc64kh3ph1sh2", "implicitgemm.depthwise*"),
        ("fwd_f32_nhwc_g64mb1ic64ih28oc64kh3ph1", "implicitgemm.depthwise*"),
        ("mb1ic64ih28oc64kh3ph1", "costed"),
        ("fwd_bf16_nhwc_mb1ic64ih28oc64kh3ph1sh2", "costed"),
        ("fwd_bf16_nhwc_g64mb1ic64ih28oc64kh3ph1", "implicitgemm.depthwise*"),
    ],
)
def test_what_a_cpu_prefers(text, preferred):
    """Of gradients the predicted cost decides among all; what says none, as onednn, stands behind."""
    problem = ConvProblem.parse(text)
    rule = registry().rule(problem, CPU)
    assert rule.prefer[0] == preferred, rule.where
    globs = [glob for name in rule.prefer for glob in rule.globs(name)]
    for stranger in ("onednn.gradient", "amd.direct", "flash.forward", "imagine", "wide.conv"):
        assert not any(fnmatch.fnmatchcase(stranger, glob) for glob in globs)


FAMILIES = """
version: 1
families:
  small: ["amx.*", "im2col", "acme.a+*"]
rules:
  - when: {type: cpu}
    prefer: [small, "amd.*"]
"""


def test_a_family_is_one_place(monkeypatch):
    """Its solvers share a place, others do not enter it by likeness, and it is written out where it decides."""
    rule = parse(FAMILIES, "here.yaml").rule(VGG, CPU)
    first, second = (Preferred(place, name, rule) for place, name in enumerate(rule.prefer))
    assert [name for name in ("amx.tiles", "im2col", "amd.tiles", "amd", "im2col.x", "amx") if first.selects(name)] == [
        "amx.tiles",
        "im2col",
    ]
    assert second.selects("amd.tiles")
    assert first.selects("acme.a+rotated")
    assert first.may_select_derived()
    assert not second.may_select_derived()
    assert str(first) == "here.yaml:6 prefers small (amx.*, im2col, acme.a+*) for type cpu"
    assert str(second) == "here.yaml:6 prefers amd.* for type cpu"
    assert parse(FAMILIES).unmatched(["amx.a", "im2col", "acme.a", "amd.a"]) == []
    assert "'amx.*' names no loaded solver" in parse(FAMILIES).unmatched(["im2col", "acme.a", "amd.a"])[0]


@pytest.mark.parametrize(
    ("families", "says"),
    [
        ("[a]", "here.yaml:2: families must be a mapping of"),
        ("{a: x}", "here.yaml:2: the family a must be a list"),
        ("{a: [[x]]}", "here.yaml:2: the family a must hold names"),
        ("{a: [x], a: [y]}", "here.yaml:2: 'a' stands twice in families"),
        ("{[a]: [x]}", "here.yaml:2: a key of families is a word"),
    ],
)
def test_families_that_are_none(families, says):
    with pytest.raises(InvalidPolicy) as caught:
        parse(f"version: 1\nfamilies: {families}\n", "here.yaml")
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("text", "glob"),
    [
        ("mb4ic64iw4000oc128kw2dw128", "im2col"),  # two taps: transforms save nothing
        ("mb4ic512ih4oc512kh3ph1", "winograd.*"),  # weights of 9 MB, transformed where they are used
        ("mb4ic512ih4oc512kh3ph1+constant", "winograd.*"),
        ("bwd_data_mb4ic512ih4oc512kh3ph1", "winograd.*"),
        ("mb4ic256ih14oc256kh3ph1", "winograd.*"),  # large enough that it pays
    ],
)
def test_what_a_cpu_chooses_unmeasured(text, glob, monkeypatch):
    """Weights that change at every call count what packing or transforming them takes; without matrix registers."""
    monkeypatch.setattr(cpu, "lacking", lambda *_: "this processor has none")
    device = dataclasses.replace(CPU, compute_units=2, simd_width=16, local_mem_size=1 << 18)
    first = rank(ConvProblem.parse(text), device)[0]
    assert fnmatch.fnmatchcase(first.solver.name, glob), first


def test_a_missing_or_broken_file_is_the_callers_error(monkeypatch, tmp_path):
    import numpy as np

    import convdispatch as cd

    x, w = np.ones((1, 1, 5, 5), np.float32), np.ones((1, 1, 3, 3), np.float32)
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(tmp_path / "none.yaml"))
    with pytest.raises(InvalidPolicy, match=r"none\.yaml cannot be read"):
        cd.explain("mb1ic1ih5oc1kh3")
    broken = tmp_path / "broken.yaml"
    broken.write_text("rules:\n  - when: {kh: 3}\n")
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(broken))
    out = np.full((1, 1, 3, 3), 7, np.float32)
    with pytest.raises(InvalidPolicy, match=r"broken\.yaml:2: a rule needs prefer"), cd.policy(workspace_limit=2**40):
        cd.conv(x, w, out=out)
    assert (out == 7).all()
