"""The kit catches every fault that it is there for, passes what is sound, and says what it found."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys

import numpy as np
import pytest
from command_line import run_cli
from paths import ROOT, SUPPORT

from convdispatch import ConvProblem, InvalidArgument
from convdispatch.api.activations import apply_activation
from convdispatch.measurement import reference
from convdispatch.measurement.conformance import levels
from convdispatch.measurement.conformance.checks import CHECKS, LONG, RUNS_PER_THREAD
from convdispatch.measurement.conformance.data import data_for
from convdispatch.measurement.conformance.memory import NAN, _pattern, holds
from convdispatch.measurement.conformance.outcome import Outcome, Report
from convdispatch.measurement.conformance.session import Kit
from convdispatch.measurement.conformance.verify import verify
from convdispatch.measurement.search.trialdata import operands_of
from convdispatch.selection.plugins import loader

DROP_IN = SUPPORT / "shoddy_plugin"
_spec = importlib.util.spec_from_file_location("shoddy_faults", DROP_IN / "shoddy.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
FAULTS = _module.FAULTS
THE_FIVE = ["forgets_stride", "far_pad_for_near", "ignores_group", "reads_stale_workspace", "one_element_too_many"]


def outcomes(solver: str, level: str = "core", pattern: str | None = None, first: bool = False) -> Report:
    return verify("shoddy", level, solver=f"shoddy.{solver}", case=pattern, first=first)


# --- what the kit catches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_plugin_is_caught(drop_in, device, fault, full, monkeypatch):
    """At the lowest level, by the check that is there for it, in words that lead to it."""
    monkeypatch.setattr("convdispatch.measurement.conformance.checks.WAIT_S", 0.3)
    forgets = fault in ("forgets_layout", "forgets_dtype", "forgets_rank", "forgets_direction")
    among = "[b3]*" if forgets else "border_*constant*" if fault == "one_key_for_all" else None
    report = outcomes(fault, pattern=None if full else among, first=not full)
    assert report.verdict() == "failed"
    failed = report.of(status="failed")
    assert all(outcome.check in CHECKS and outcome.reason for outcome in failed)
    if FAULTS[fault] is not None:
        assert FAULTS[fault] in {outcome.check for outcome in failed}
    assert f"--solver 'shoddy.{fault}' --case '{failed[0].case}'" in failed[0].rerun("shoddy")
    if forgets:  # no plain case shows it
        assert all(outcome.case.startswith("border_") for outcome in failed)


@pytest.mark.parametrize("fault", THE_FIVE)
def test_the_five_are_not_seen_by_plain_shapes(drop_in, device, fault):
    """It is the near misses and the long memory of the checks that find them, not any one convolution."""
    plain = {"forgets_stride": "3x3", "far_pad_for_near": "3x3", "ignores_group": "3x3"}
    if fault in plain:
        assert outcomes(fault, pattern=plain[fault]).verdict() == "passed"


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_a_fill_is_found_in_elements_of_each_size(itemsize):
    """Results of one byte, too: a wrong one of float8 was an error of the kit."""
    filled = _pattern(NAN, 6 * itemsize).view(f"u{itemsize}").reshape(2, 3)
    filled[1, 2] ^= 1
    assert holds(filled, NAN).tolist() == [[True, True, True], [True, True, False]]


def test_a_sound_solver_that_fuses_norms_and_sums_passes(drop_in, device):
    report = outcomes("fused_and_sound", "training")
    assert report.of(status="failed") == []
    problems = [ConvProblem.parse(outcome.problem) for outcome in report.of(status="passed")]
    assert {(problem.direction, problem.norm is not None, problem.sums) for problem in problems} >= {
        ("fwd", True, False), ("fwd", False, True), ("bwd_data", True, True)
    }  # fmt: skip


def test_a_sound_plugin_passes(drop_in, device, full):
    report = outcomes("sound", "full" if full else "training")
    assert report.of(status="failed") == []
    assert report.verdict() == "passed"
    assert len(report.of(status="passed")) > 60
    assert "thin" not in report.verdict()
    assert {o.reason for o in report.of(status="refused")} >= {"forward only, got bwd_data", "nchw only, got nhwc"}
    ran_long = [o for o in report.of(status="passed") if set(LONG) <= set(o.checks)]
    assert len(ran_long) > 8
    assert all(set(CHECKS) - {*LONG, "families", "digest"} <= set(o.checks) for o in report.of(status="passed"))


def test_a_sound_plugin_of_few_images_passes(drop_in, device):
    """Batches are compared within the largest that the solver takes, not the largest that the kit draws."""
    report = outcomes("few_images", pattern="3x3*")
    assert report.verdict() == "passed", report.of(status="failed")
    assert any("batch" in o.checks for o in report.of(status="passed"))


def test_everything_refused_is_no_pass(drop_in, device):
    report = verify("shoddy", "core", solver="shoddy.sound", case="border_bwd*")
    assert report.verdict() == "nothing computed"


PORTABLE = ["im2col", "implicitgemm", "winograd", "fft"]


@pytest.mark.parametrize("plugin", PORTABLE)
def test_the_portable_plugins_on_a_few_cases(plugin, device, full):
    """Whole levels: `convdispatch verify NAME --level training`, docs/plugins/conformance.md."""
    if not next(entry for entry in loader.plugins().report if entry.name == plugin).solvers:
        pytest.skip(f"{plugin} has no solvers yet")
    patterns = ["3x3_far_side_pads", "1x1_s2.bwd_*", "border_constant", f"depthwise_2d.fwd.0[1-{4 if full else 2}]"]
    if not full:  # each plugin takes two, each pattern two plugins
        turn = PORTABLE.index(plugin)
        patterns = [patterns[turn], patterns[turn - 1]]
    for pattern in patterns:
        report = verify(plugin, "training", case=pattern)
        assert report.of(status="failed") == [], report.of(status="failed")


def test_work_has_ended_when_its_event_has(device, monkeypatch):
    """The kit waits for what a plan's ``enqueue`` returns, not for queues alone: Mesa's clFinish may be early."""
    import pyopencl as cl

    real_finish, real_wait, waits = cl.CommandQueue.finish, cl.Event.wait, []

    def finish(queue):
        if "conformance" not in sys._getframe(1).f_globals["__name__"]:
            real_finish(queue)

    def wait(event):
        waits.append(sys._getframe(1).f_code.co_name)
        real_wait(event)

    monkeypatch.setattr(cl.CommandQueue, "finish", finish)
    monkeypatch.setattr(cl.Event, "wait", wait)
    report = verify("im2col", "core", case="1x1")  # this case has the long checks, of several queues and threads
    assert report.of(status="failed") == []
    assert {"order", "queues", "threads"} <= set(report.outcomes[0].checks)
    # Each of these functions enqueues; ``_enqueue_behind`` runs once more where a device has out-of-order queues.
    assert waits.count("_queues") == 4
    assert waits.count("turn") == 2 * RUNS_PER_THREAD
    assert waits.count("_enqueue_behind") >= 1
    assert waits.count("_run_once") >= 4


def test_derived_solvers_go_through_the_same(drop_in, device):
    report = verify("shoddy", "training", solver="shoddy.sound*", case="3x3_s2.bwd_data", derived=True)
    assert [(o.solver, o.status) for o in report.outcomes] == [
        ("shoddy.sound", "refused"),
        ("shoddy.sound+rotated", "passed"),
    ]


# --- the lists --------------------------------------------------------------------------------------------------------


def test_the_lists_are_the_ones_of_their_version():
    """Whoever changes a case raises VERSION and pins the new digest here."""
    assert (levels.VERSION, levels.digest()) == (14, "092a5655db6f9e29")


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "hardsigmoid(0.3,0.4)"])
@pytest.mark.parametrize("kind", ["integer", "real"])
def test_what_enters_an_activation_does_not_saturate_it(kind, activation):
    plain = ConvProblem.parse("nhwc_mb2ic16ih9oc24kh3ph1+bias")
    before, after = (data_for(plain.replace(activation=each), kind, 1) for each in (None, activation))
    entered = reference.compute(plain, **operands_of(plain, after.operands))
    assert 0.5 < entered.std() < 2
    scale = np.abs(after.operands["w"]).max() / np.abs(before.operands["w"]).max()
    assert np.log2(scale).is_integer(), "no digit is lost"
    np.testing.assert_array_equal(entered, before.expected * scale)
    np.testing.assert_array_equal(after.expected, apply_activation(activation, entered))


def test_levels_hold_each_other_and_names_are_unique():
    counts = [len(levels.cases(level)) for level in levels.LEVELS]
    assert counts == [235, 488, 2023, 69]
    assert levels.cases("full")[: counts[1]] == levels.cases("training")
    names = [case.name for case in levels.cases()]
    assert len(set(names)) == len(names)
    assert len({str(case.problem) for case in levels.cases()}) == len(names)
    core = [case.problem for case in levels.cases("core") if not case.name.startswith("border_")]
    assert {(p.direction, p.dtype, p.layout, p.ndim) for p in core} == {("fwd", "float32", "nchw", 2)}
    whole = [case.problem for case in levels.cases()]
    assert {p.direction for p in whole} == {"fwd", "bwd_data", "bwd_weights"}
    assert {p.ndim for p in whole} == {1, 2, 3}
    bytes_ = {"int8", "uint8", "float8_e4m3", "float8_e5m2"}
    assert {p.dtype for p in whole} == {"float32", "float64", "float16", "bfloat16", *bytes_}
    assert {p.math for p in whole} == {"float32", "ieee", "tf32", "fast", "reproducible"}
    with pytest.raises(InvalidArgument, match="core, training, full, accuracy"):
        levels.cases("half")


def test_the_documented_counts_are_right():
    text = (ROOT / "docs" / "plugins" / "conformance.md").read_text()
    for level in levels.LEVELS:
        assert f"| `{level}` | {len(levels.cases(level))} |" in text
    for name in CHECKS:
        assert f"| {name} |" in text


def test_a_vendor_s_own_problems_are_cases(drop_in, device, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("mb1ic4ih9oc4kh3ph1sh2\n")
    done = run_cli(
        "verify",
        "shoddy",
        "--solver",
        "shoddy.sound",
        "--from",
        str(file),
        "--case",
        "*ic4ih9*",
        "--jobs",
        "0",
        "-v",
        status=0,
    )
    assert "1 outcomes" in done.output


# --- the command and its report ---------------------------------------------------------------------------------------


def test_the_command_reports(drop_in, device, full, tmp_path):
    json_path = tmp_path / "report.json"
    arguments = ["verify", "shoddy", "--level", "core", "--solver", "shoddy.ignores_group", "--jobs", "0"]
    arguments += [] if full else ["--case", "3x3*"]
    done = run_cli(*arguments, "--json", str(json_path), status=1)
    assert "3x3_grouped" in done.output
    values = json.loads(json_path.read_text())
    assert values["verdict"] == "failed"
    assert values["version"] == levels.VERSION
    assert {outcome["status"] for outcome in values["outcomes"]} >= {"failed"}


def test_there_is_one_verdict(drop_in, device, tmp_path):
    """A vendor's own failing problem fails the whole; levels have counts, no verdicts of their own."""
    file = tmp_path / "mine.txt"
    file.write_text("g2mb2ic4ih9oc4kh3ph1sh2  mine\n")
    arguments = ["verify", "shoddy", "--solver", "shoddy.ignores_group", "--from", str(file), "--jobs", "0"]
    done = run_cli(*arguments, "--case", "[m3]*", "--level", "core", status=1)
    words = " ".join(done.output.split())
    assert "own: 0 passed, 0 refused, 1 failed" in words
    assert "core: " in words
    assert ": passed" not in words
    assert words.count(": failed") == 1


def test_a_pass_of_few_cases_is_thin():
    """3 of 594 computed is no pass like another's."""
    report = Report({"name": "acme", "version": "1"}, {}, "full", levels.VERSION, "")
    for number in range(594):
        status = "passed" if number < 3 else "refused"
        report.outcomes.append(Outcome("acme.a", f"case{number}", "", "full", status))
    assert report.verdict() == "passed, thin: 3 of 594 computed"
    assert report.passed
    assert report.to_json()["levels"] == {"full": {"passed": 3, "refused": 591, "failed": 0}}
    report.outcomes += [Outcome("acme.b", f"case{number}", "", "full", "passed") for number in range(100, 160)]
    assert report.verdict() == "passed"  # counted by case, whoever computed it
    report.outcomes[0].status = "failed"
    assert report.verdict() == "failed"
    assert not report.passed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody"], "no plugin is named 'nobody'; loaded are"),
        (["im2col", "--solver", "fft*"], "has no solver 'fft*'; it has im2col"),
        (["im2col", "--case", "7x9"], "no case of level full is named '7x9'"),
        ([], "name a plugin"),
    ],
)
def test_errors_are_words(arguments, words, device):
    done = run_cli("verify", *arguments)
    assert done.exit_code != 0
    assert words in done.output.replace("\n", " ")


def test_the_list_is_printed():
    done = run_cli("verify", "--list", "--level", "core", status=0)
    lines = done.output.splitlines()
    assert len(lines) == 235 + 4 + 1
    assert lines[235].startswith("dense_2d.fwd: 42 cases hold all 1122 pairs of ndim=2 direction=fwd ic=1,3,16,17")
    assert levels.digest() in done.output


def test_a_kit_counts_its_own(drop_in, device):
    """The first cases of a direction get the long checks, marked or not."""
    kit = Kit("shoddy", solver="shoddy.sound")
    plain = [case for case in levels.cases("core") if not case.long][:4]
    ran = [kit.run(case)[0] for case in plain]
    assert [set(LONG) <= set(outcome.checks) for outcome in ran] == [True, True, False, False]
    assert ConvProblem.parse(ran[0].problem) == plain[0].problem
