"""explain: the sentence, the predicted and measured milliseconds, the table of 80 columns, the same in JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from records import record

from convdispatch.api import ConvProblem, DeviceInfo
from convdispatch.api.errors import NoSolver
from convdispatch.api.policy import policy
from convdispatch.selection.choice.ranking import rank
from convdispatch.selection.explanation import by_workspace, ceilings_text, explain
from convdispatch.selection.records import perfdb
from convdispatch.selection.records.record import device_key

CPU = DeviceInfo(
    "AMD EPYC", "intel", "cpu", "simd512", simd_width=16, compute_units=2, fp64=True,
    max_work_group_size=8192, max_work_item_sizes=(8192,) * 3, local_mem_size=1 << 15, global_mem_size=16 << 30,
    max_alloc_size=8 << 30,
)  # fmt: skip
DENSE = ConvProblem.parse("mb1ic64ih56oc64kh3ph1")
POINTWISE = ConvProblem.parse("mb1ic64ih56oc64kh1")


@pytest.fixture
def db(monkeypatch, tmp_path, read_anew):
    """``db(solver, ms, ...)`` puts a record of CPU into a database of the test."""
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    read_anew()

    def put(solver, ms, problem=DENSE, **more):
        given = {"benchmarked": True, "config": explain(problem, CPU).verdicts[names(problem).index(solver)].config}
        perfdb.perfdb().record(record(solver, ms, problem, device=device_key(CPU), **(given | more)))

    return put


def names(problem):
    return [verdict.solver for verdict in explain(problem, CPU).verdicts]


def test_the_sentence_names_the_rule_its_line_the_prediction_and_the_next(db):
    found = explain(DENSE, CPU)
    first, second = found.verdicts[:2]
    line = found.source.rpartition(":")[2]
    assert found.why == (
        f"{first.solver} runs: registry.yaml:{line} prefers costed (amx.*, fft.*, im2col, implicitgemm.*, "
        f"winograd.*) for type cpu; "
        f"predicted {first.predicted_ms:.3g} ms, next {second.solver} predicted {second.predicted_ms:.3g} ms"
    )
    assert found.predicted_by == "at estimated rates: convdispatch calibrate measures them"
    assert found.why in " ".join(str(found).splitlines()[1:4])


def test_a_rule_with_alternatives_and_one_for_everything(db):
    depthwise = explain(ConvProblem.parse("g16mb1ic16ih9oc16kh3"), CPU)
    assert "registry.yaml:19 prefers costed_depthwise" in depthwise.why
    assert "dtype float32 or float64" in depthwise.why
    few = explain(ConvProblem.parse("fwd_f16_mb1ic4ih9oc4kh3"), replace(CPU, type="accelerator"))
    assert "prefers implicitgemm.* for everything; predicted" in few.why


def test_a_rule_of_one_s_own_stands_with_its_path(db, tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("include: packaged\nrules:\n  - {when: {kh: 3}, prefer: [im2col]}\n")
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(tmp_path / "mine.yaml"))
    assert explain(DENSE, CPU).why.startswith(
        f"im2col runs: {tmp_path}/mine.yaml:3 prefers im2col for kh 3; predicted "
    )


def test_measured_times_benchmarking_before_a_look(db):
    db("im2col", 0.2, error=2e-7, workspace=3 << 20)
    db("fft.tiled", 0.19, benchmarked=False)
    found = explain(DENSE, CPU)
    assert found.why == "im2col runs: measured 0.2 ms, user record; next fft.tiled measured 0.19 ms at screening"
    first, second = found.verdicts[:2]
    assert (first.measured_ms, first.benchmarked, first.error, first.workspace) == (0.2, True, 2e-7, 3 << 20)
    assert (second.measured_ms, second.benchmarked) == (0.19, False)
    lines = str(found).splitlines()
    (chosen,) = [line for line in lines if line.startswith("->")]
    assert chosen.split() == ["->", "im2col", f"{first.predicted_ms:.3g}", "0.2", "2.0e-07", "3", "MiB", "record"]
    assert any(
        line.split()[0] == "fft.tiled" and line.endswith("screening") for line in lines if "0.19 screened" in line
    )


def test_json_says_the_same(db):
    db("im2col", 0.2)
    said = json.loads(json.dumps(explain(DENSE, CPU).to_dict()))
    assert said["why"].startswith("im2col runs: measured 0.2 ms")
    assert said["predicted_by"]
    first = said["solvers"][0]
    wanted = {"measured_ms": 0.2, "benchmarked": True, "workspace": 0, "status": "chosen"}
    assert {key: first[key] for key in wanted} == wanted
    assert first["ci_ms"] == pytest.approx([0.18, 0.22])
    assert any(solver["predicted_ms"] for solver in said["solvers"])


@pytest.mark.parametrize(
    "text",
    [
        "mb1ic64ih56oc64kh3ph1",
        "bwd_data_g2mb2ic4ih9oc6kh3ph1sh2+bias+relu",
        "fwd_f64_nhwc_g4mb12ic64id10ih20iw30oc128kd2kh7kw3dd2pd1ph2pw1sd2+bias+residual+relu",
    ],
)
def test_everything_fits_80_columns_and_everybody_is_listed(db, text):
    """But for the problem's own name, which is never broken."""
    problem = ConvProblem.parse(text)
    found = explain(problem, CPU)
    lines = str(found).splitlines()
    assert max(map(len, lines[1:])) <= 80
    for verdict in found.verdicts:
        assert any(verdict.solver in line for line in found.text(80, every=True).splitlines()), verdict.solver
    refused = [verdict for verdict in found.verdicts if verdict.status == "refused"]
    assert re.search(r"x  \d+ solvers \([\w.]+, ...\): GPUs and accelerators only, got a CPU", str(found))
    assert len([line for line in lines if line.startswith("  x  ")]) < len(refused) / 2


def test_nobody_runs_it():
    none = DeviceInfo("odd", "odd", "accelerator", "odd", fp64=False)
    found = explain(DENSE.replace(dtype="float64"), none)
    assert found.why == "nobody runs it: every solver refuses"
    assert found.chosen is None
    assert "predicted ms" not in str(found)


# --- by the ceiling of the workspace ---------------------------------------------------------------------------------


def test_each_ceiling_at_which_the_choice_changes(db):
    """What stands there runs under that ceiling and under each higher one, up to the next."""
    found = by_workspace(DENSE, CPU)
    assert len(found) > 3
    assert [one.workspace for one in found] == sorted({one.workspace for one in found})
    for one, after in zip(found, [*found[1:], None], strict=True):
        for limit in (one.workspace, after.workspace - 1 if after else None):
            with policy(workspace_limit=limit):
                if one.solver is None:
                    with pytest.raises(NoSolver):
                        rank(DENSE, CPU)
                    continue
                first = rank(DENSE, CPU)[0]
                assert (first.solver.name, dict(first.config)) == (one.solver, one.config)
    lines = ceilings_text(DENSE, CPU, found).splitlines()
    assert lines[0].endswith("by the ceiling of the workspace")
    assert re.search(r"0 bytes +nobody +- +-", lines[-len(found)])
    assert found[-1].solver == explain(DENSE, CPU).chosen
    assert f"{found[-1].solver} " in lines[-1]
    assert f"{found[-1].predicted_ms:.3g}" in lines[-1]


def test_a_record_s_time_stands_at_its_ceiling(db):
    workspace = next(v.workspace for v in explain(DENSE, CPU).verdicts if v.solver == "im2col")
    db("im2col", 0.001, workspace=workspace)
    found = by_workspace(DENSE, CPU)
    assert (found[-1].solver, found[-1].workspace, found[-1].measured_ms) == ("im2col", workspace, 0.001)
    assert "0.001" in ceilings_text(DENSE, CPU, found).splitlines()[-1]
    assert all(one.measured_ms is None for one in found[:-1])


def test_a_limit_of_the_policy_is_the_highest_ceiling(db):
    found = by_workspace(DENSE, CPU)
    with policy(workspace_limit=found[2].workspace):
        assert by_workspace(DENSE, CPU) == found[:3]
