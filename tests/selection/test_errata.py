"""errata.yaml: what is set aside, where, for which versions; who tells; and what is over when it is tried again."""

from __future__ import annotations

import dataclasses
import json

import pytest
from command_line import run_cli
from test_registry import CPU, H200

import convdispatch as cd
from convdispatch import ConvDispatchWarning, ConvProblem
from convdispatch.api.errors import InvalidPolicy
from convdispatch.device import runtime
from convdispatch.measurement.conformance.errata import tries
from convdispatch.selection.choice import set_aside
from convdispatch.selection.plugins import errata, loader, verdicts
from convdispatch.selection.plugins.errata import Versions, parse
from convdispatch.selection.plugins.registry import packaged_path
from convdispatch.tools import doctor

PROBLEM = ConvProblem.parse("mb1ic3ih8oc4kh3ph1")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """``own(text)`` puts a user's errata in force; it returns the file's name."""
    turn = iter(range(100))

    def put(text):
        file = tmp_path / f"own{next(turn)}.yaml"  # a file is read once
        file.write_text(text)
        monkeypatch.setenv("CONVDISPATCH_ERRATA", str(file))
        return file.name

    return put


def entry(**keys):
    return parse("errata:\n  - " + json.dumps({"solver": "winograd.*", "reason": "wrong edges", **keys}))[0]


# --- which solvers, problems, devices and versions -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "inside", "outside"),
    [
        ("id < (kd - 1) * dd + 1 or ih < (kh - 1) * dh + 1", "ic1ih2kh3ph1", "ic1ih3kh3ph1"),
        ("ic * kh * kw > 64 and oc == ic", "ic8ih9oc8kh3", "ic7ih9oc7kh3"),
        ("2 < kh <= 4", "ic1ih9kh4", "ic1ih9kh5"),
        ("ph + ph_r != 2 * ph", "ic1ih9kh3ph1ph_r2", "ic1ih9kh3ph1"),
    ],
)
def test_geometry_compares_sums_and_products_of_sizes(geometry, inside, outside):
    one = entry(when={"geometry": geometry})
    assert one.has(ConvProblem.parse(inside))
    assert not one.has(ConvProblem.parse(outside))


@pytest.mark.parametrize(
    ("versions", "inside", "outside"),
    [
        (Versions("580.1", "590"), ("580.1", "580.159.04", "589.99"), ("580.0.9", "590", "590.1", "600")),
        (Versions(until="3.12.1"), ("1", "3.12", "3.12.0"), ("3.12.1", "3.13", "4")),
        (Versions("2026.9"), ("2026.9", "2026.10"), ("2026.8.7", "2025.10")),
        (Versions(), ("1", "9999"), ()),
    ],
)
def test_versions_are_compared_number_by_number(versions, inside, outside):
    assert all(map(versions.hold, inside))
    assert not any(map(versions.hold, outside))
    assert versions.hold("")  # a version that is not known may be one of the wrong ones


def test_an_entry_holds_for_its_device_driver_plugin_and_library():
    one = entry(when={"vendor": "nvidia", "kh": 3}, driver={"until": "590"}, library={"from": "3.1", "until": "3.2"})
    versions = {"plugin": "0.1", "library": "3.1.5"}
    assert one.names("winograd.f4x3")
    assert not one.names("fft.tiled")
    assert one.misses(H200, versions.get) is None
    assert one.misses(CPU, versions.get) == "it is for vendor nvidia, here it is intel"
    mended = dataclasses.replace(H200, driver="590.1")
    assert one.misses(mended, versions.get) == "it holds until 590 of the driver, here it is 590.1"
    newer = {"plugin": "0.1", "library": "3.2"}
    assert one.misses(H200, newer.get) == "it holds from 3.1 until 3.2 of the library, here it is 3.2"
    assert str(one) == "wrong edges (erratum, errata.yaml:2, until driver 590, until library 3.2)"


def test_of_a_solver_that_is_set_aside_explain_tells_and_the_next_runs(own):
    name = own("errata:\n\n- solver: im2col*\n  when: {kh: 3}\n  plugin: {until: '999'}\n  reason: it is wrong\n")
    refused = {v.solver: v for v in cd.explain(PROBLEM).verdicts}["im2col"]
    assert refused.status == "refused"
    assert refused.reason.startswith("it is wrong (erratum, ")
    assert refused.reason.endswith(f"{name}:3, until plugin 999)")
    with cd.policy(solver="im2col"), pytest.raises(cd.NoSolver, match="it is wrong"):
        cd.conv(*_operands(PROBLEM), padding=1)
    other = PROBLEM.replace(kh=1, kw=1, ph=0, pw=0, ph_r=0, pw_r=0)
    assert {v.solver: v for v in cd.explain(other).verdicts}["im2col"].status != "refused"


def test_an_entry_ends_with_its_version(own):
    info = runtime.device_info(runtime.find_device(None))
    driver, when = info.driver, f"{{vendor: {info.vendor}, type: {info.type}}}"
    own(f"errata:\n- solver: im2col\n  when: {when}\n  driver: {{until: '{driver}'}}\n  reason: mended since\n")
    assert {v.solver: v for v in cd.explain(PROBLEM).verdicts}["im2col"].status != "refused"
    (told,) = [one for one in doctor.examine(probe=False).errata if "mended since" in one["reason"]]
    assert f"it holds until {driver} of the driver, here it is {driver}" in told["state"]
    trial = next(one for one in tries() if one.erratum.solver == "im2col")
    assert (trial.state, trial.reason) == ("untried", f"it holds until {driver} of the driver, here it is {driver}")


def _operands(problem):
    from convdispatch.measurement.search.trialdata import random_operands

    operands = random_operands(problem, 1)
    return operands["x"], operands["w"]


# --- kernels of libraries --------------------------------------------------------------------------------------------


def test_of_a_library_s_kernels_those_are_set_aside_that_an_entry_names(own):
    own(
        "errata:\n"
        "  - {solver: vendor.conv, kernel: ['jit:*', 'brgemm *'], when: {kh: 3}, reason: one}\n"
        "  - {solver: vendor.conv, kernel: 'ref', remedy: zeroed, reason: two}\n"
    )
    problem, pointwise = PROBLEM, ConvProblem.parse("mb1ic3ih8oc4kh1")
    assert set_aside.kernel_erratum("vendor.conv", problem, "jit:avx2").startswith("one (erratum, ")
    assert set_aside.kernel_erratum("vendor.conv", problem, "brgemm nhwc").startswith("one (erratum, ")
    assert set_aside.kernel_erratum("vendor.conv", pointwise, "jit:avx2") is None
    assert set_aside.kernel_erratum("vendor.other", problem, "jit:avx2") is None
    assert set_aside.kernel_erratum("vendor.conv", problem, "ref") is None
    assert set_aside.kernel_erratum("vendor.conv", problem, "ref", "zeroed").startswith("two (erratum, ")
    # An entry about kernels leaves the solver's other kernels alone.
    assert set_aside.erratum("vendor.conv", problem, CPU) is None


def test_explain_tells_which_kernels_are_set_aside(own):
    name = own("errata:\n  - {solver: im2col, kernel: 'jit:*', when: {kh: 3}, reason: it is wrong}\n")
    explained = cd.explain(PROBLEM)
    (told,) = next(v for v in explained.verdicts if v.solver == "im2col").errata
    assert told.startswith("set aside: jit:*: it is wrong (erratum, ")
    assert f"{name}:2" in explained.text(1000)


# --- the files -------------------------------------------------------------------------------------------------------


def test_what_the_package_ships_is_sound():
    """Each entry says who saw it, names problems that it is about, and a solver that a plugin of this package has."""
    for one in errata.read(str(packaged_path(errata.FILE_NAME))):
        assert one.source
        assert one.problems
        assert all(one.has(problem) for problem in one.problems)
        assert any(one.names(solver) for solver in loader.plugins().solvers)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("version: 2\n", 1, "version must be 1, got 2"),
        ("rules: []\n", 1, "unknown key 'rules' in the file; known: errata, version"),
        ("errata:\n  - solver: a\n", 2, "an erratum needs reason"),
        ("errata:\n  - reason: a\n", 2, "an erratum needs solver"),
        ("errata:\n  - {solver: a, reason: b, since: 3}\n", 2, "unknown key 'since' in an erratum"),
        ("errata:\n- solver: [a]\n  reason: x\n", 2, "solver must be one word or sentence"),
        ("errata:\n- solver: a\n  reason: {b: c}\n", 3, "reason must be one word or sentence"),
        ("errata:\n- solver: a\n  reason: b\n  driver: 590\n", 4, "driver must be a mapping of from, until"),
        ("errata:\n- solver: a\n  reason: b\n  driver: {to: 590}\n", 4, "unknown key 'to' in driver"),
        ("errata:\n- solver: a\n  reason: b\n  driver: {until: soon}\n", 4, "a version such as 590.12, got 'soon'"),
        ("errata:\n- solver: a\n  reason: b\n  kernel: [[c]]\n", 4, "kernel must hold names"),
        ("errata:\n- solver: a\n  reason: b\n  problems:\n  - mb1ic3ih8oc4kh9\n", 5, "is no problem: "),
        ("errata:\n- solver: a\n  reason: b\n  when: {geometri: 1}\n", 4, "unknown key 'geometri' in when"),
        *(
            (f"errata:\n- solver: a\n  reason: b\n  when: {{geometry: {json.dumps(text)}}}\n", 4, "compares sums and")
            for text in (
                "ih", "ih <", "ih < height", "ih < 2.5", "__import__('os').system('true') < 1", "ih.real < 3",
                "kh[0] < 3", "ih < 3 if kw else 4", "(lambda: 1)() < 2", "ih ** 99999999 > 1", "1 // 0 < 1",
                "'a' < 'b'", "(" * 99, 7, "(ih := 3) < 4", "f'{ih}' < 'a'", "True < ih",
            )
        ),
    ],
)  # fmt: skip
def test_what_is_no_erratum_is_refused_with_its_line(text, line, words):
    with pytest.raises(InvalidPolicy) as found:
        parse(text, "here.yaml")
    assert str(found.value).startswith(f"here.yaml:{line}: ")
    assert words in str(found.value)


def test_a_file_that_cannot_be_read_is_told_by_the_call_and_by_doctor(own, tmp_path):
    name = own("errata: everything\n")
    with pytest.raises(InvalidPolicy, match=f"{name}:1: errata must be a list"):
        cd.explain(PROBLEM)
    report = doctor.examine(probe=False)
    assert f"{name}:1: errata must be a list" in report.errata_problem
    assert not report.healthy


def test_a_plugin_that_asks_for_its_library_hears_nothing_of_a_users_file(own):
    """Else a user's slip would set the plugin aside; the caller hears it where a solver is chosen."""
    problem = ConvProblem.parse("bwd_weights_bf16_mb3ic17ih25iw51oc1kh3kw3dh2dw1")
    kernel = "jit_bf16:avx512_core channels-last"
    before = set_aside.kernel_erratum("onednn.gradient", problem, kernel)
    assert before is not None
    own("errata: everything\n")
    assert set_aside.kernel_erratum("onednn.gradient", problem, kernel) == before
    with pytest.raises(InvalidPolicy):
        set_aside.erratum("onednn.gradient", problem, CPU)


def test_a_solver_that_nobody_has_is_said_with_its_line(own):
    name = own("errata:\n  - {solver: winogrd.*, reason: wrong}\n")
    with pytest.warns(ConvDispatchWarning, match=f"{name}:2: 'winogrd.\\*' names no loaded solver"):
        loader.reload()
    (told,) = [one for one in doctor.examine(probe=False).errata if one["solver"] == "winogrd.*"]
    assert told["state"] == "no solver named winogrd.* is loaded"


# --- tried again -----------------------------------------------------------------------------------------------------


def test_verify_says_which_entries_hold_which_are_over_and_which_it_cannot_try(own, faults, tmp_path):
    faults("good", "lies")
    name = own(
        "errata:\n"
        f"  - {{solver: faulty.lies, reason: it lies, problems: [{PROBLEM}]}}\n"
        f"  - {{solver: faulty.good, reason: it lied, problems: [{PROBLEM}]}}\n"
        "  - {solver: faulty.good, reason: nobody knows where}\n"
        f"  - {{solver: faulty.good, kernel: 'jit:*', reason: a kernel, problems: [{PROBLEM}]}}\n"
        f"  - {{solver: faulty.good, when: {{vendor: acme}}, reason: of another's, problems: [{PROBLEM}]}}\n"
    )
    done = run_cli("verify", "--errata", "--json", str(tmp_path / "errata.json"), status=1)
    assert f"1 over: {tmp_path / name}:3" in done.output
    values = {one["where"].rpartition(":")[2]: one for one in json.loads((tmp_path / "errata.json").read_text())}
    told = {line: (one["state"], one["tried"]) for line, one in values.items() if name in one["where"]}
    assert [state for state, _ in told.values()] == ["holds", "over", "untried", "untried", "untried"]
    assert "relative error" in told["2"][1]
    assert told["4"][1] == "it names no problem to try"
    assert told["5"][1] == "none of the kernels that it names came up here"
    assert told["6"][1].startswith("it is for vendor acme, here it is ")


def test_what_this_machine_saw_is_tried_again_too(faults, device):
    """What ``find`` saw is an erratum for one problem, told by doctor; another version of the plugin begins anew."""
    faults("good", "lies")
    info = runtime.device_info(device)
    for name in ("faulty.lies", "faulty.good"):
        verdicts.note(PROBLEM, info, name, loader.plugins().fingerprint(name), "find: wrong: relative error 1")
    verdicts.note(PROBLEM, info, "faulty.older", "another version", "find: wrong")
    assert {v.solver: v.status for v in cd.explain(PROBLEM, device).verdicts} == {
        "faulty.lies": "quarantined", "faulty.good": "quarantined",
    }  # fmt: skip
    found = {one.erratum.solver: one.state for one in tries(device) if one.erratum.where.startswith("seen")}
    assert found == {"faulty.lies": "holds", "faulty.good": "over"}
    told = [one["solver"] for one in doctor.examine(probe=False).errata if "seen earlier" in one["reason"]]
    assert sorted(told) == ["faulty.good", "faulty.lies"]
