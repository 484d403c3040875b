"""registry.yaml: matching, precedence, and errors that name the line."""

from __future__ import annotations

import fnmatch

import pytest

from convdispatch.api import ConvProblem, DeviceInfo, InvalidPolicy
from convdispatch.registry import parse, registry, registry_path

H200 = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", driver="580.159.04")
CPU = DeviceInfo("AMD EPYC", "intel", "cpu", "simd512", driver="2026.22")
VGG = ConvProblem(mb=8, ic=64, ih=56, iw=56, oc=64, kh=3, kw=3, ph=1, pw=1)
DEPTHWISE = ConvProblem(ic=32, ih=8, iw=8, oc=32, kh=3, kw=3, g=32)


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
        ("{bias: 1}", VGG.replace(bias=True), CPU, False),  # true is not 1
    ],
)
def test_when(when, problem, info, matches):
    rules = parse(f"rules:\n  - when: {when}\n    prefer: [a.b]\n")
    assert bool(rules.preference(problem, info)[0]) is matches


def test_first_match_wins_and_says_its_line():
    text = "version: 1\nrules:\n  - when: {kh: 3}\n    prefer: [first]\n  - prefer: [second, third]\n"
    rules = parse(text, "here.yaml")
    assert rules.preference(VGG, CPU) == (("first",), "here.yaml:3")
    assert rules.preference(VGG.replace(kh=1, kw=1), CPU) == (("second", "third"), "here.yaml:5")


def test_errata_match_solver_device_geometry_and_driver():
    rules = parse(
        "errata:\n  - solver: winograd.*\n    when: {vendor: nvidia, kh: 3, driver: '<590'}\n    reason: wrong edges\n"
    )
    assert rules.erratum("winograd.f4x3", VGG, H200) == "wrong edges (erratum, registry.yaml:2)"
    assert rules.erratum("fft", VGG, H200) is None
    assert rules.erratum("winograd.f4x3", VGG, CPU) is None


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
        ("errata:\n  - solver: a\n", 2, "an erratum needs reason"),
        ("block: fast\n", 1, "block must be a list"),
        ("rules: []\nrules: []\n", 2, "'rules' stands twice"),
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


@pytest.mark.parametrize(
    ("text", "preferred"),
    [
        ("bwd_data_mb1ic64ih28oc64kh3ph1", "[fiw]*"),
        ("bwd_weights_mb1ic192ih28oc64kh1", "[fiw]*"),
        ("bwd_data_mb1ic192ih28oc64kh1", "implicitgemm.pointwise"),
        ("bwd_weights_g64mb1ic64ih28oc64kh3ph1", "im2col*"),
        ("bwd_data_g64mb1ic64ih28oc64kh3ph1sh2", "implicitgemm.depthwise*"),
        ("fwd_f32_nhwc_g64mb1ic64ih28oc64kh3ph1", "implicitgemm.depthwise*"),
        ("mb1ic64ih28oc64kh3ph1", "[fiw]*.*"),
    ],
)
def test_what_a_cpu_prefers(text, preferred):
    """Of gradients the predicted cost decides among all; what says none, as onednn, stands behind."""
    globs, line = registry().preference(ConvProblem.parse(text), CPU)
    assert globs[0] == preferred, line
    assert not any(fnmatch.fnmatchcase("onednn.gradient", glob) for glob in globs)


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
