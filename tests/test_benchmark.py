"""The benchmark: figures worked out by hand, runs cut short and resumed, peers against the reference, the page."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from convdispatch.api import ConvProblem
from convdispatch.api.errors import InvalidArgument
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.measurement.peaks import measure_roof, traffic
from convdispatch.measurement.search.trialdata import operands_of, random_operands
from convdispatch.measurement.shapes import Entry
from convdispatch.selection.records.perfdb import perfdb
from convdispatch.tools.benchmark import peers, run, session
from convdispatch.tools.benchmark.export import write_csv, write_json
from convdispatch.tools.benchmark.page import render
from convdispatch.tools.benchmark.published import titanx
from convdispatch.tools.benchmark.report import Choice, Journal, Layer, Measured, PeerTime, Report, Row, load
from convdispatch.tools.benchmark.summary import gaps, geomean, layer_type, lines, nets, solver_times, types
from convdispatch.tools.benchmark.terminal import show
from convdispatch.tools.cli.bench import bench

TINY = "fwd_f32_mb1ic4ih6iw6oc4kh3kw3"
DEVICE = {
    "title": "Simulated: <b>card</b>", "name": "<b>card</b>", "type": "gpu", "arch": "sim", "compute_units": 4,
    "global_mem_size": 1 << 30, "driver": "1", "key": "sim",
}  # fmt: skip
ENVIRONMENT = {
    "created": "2026-01-02T03:04:05Z",
    "device": DEVICE,
    "python": "3",
    "system": "x",
    "packages": {},
    "plugins": {},
}
ROOFS = {"float32": {"flops": {"rate": 1e9, "how": "a"}, "bandwidth": {"rate": 1e9, "how": "b"}, "matrix": None}}


def measured(text: str, best: float, chosen: float, peer: float | None = None) -> Measured:
    """Figures of a problem: two solvers, ``a.one`` the best, and a peer in two layouts, the second one better."""
    problem = ConvProblem.parse(text)
    rows = [
        Row("a.one", {"t": 1}, "measured", "", best, best, best, 9, 1e-7, 64, 5.0, True),
        Row("a.two", {}, "cut", "slower", 2 * best, best, best, 9),
        Row("b.one", {}, "measured", "", 3 * best, best, best, 9),
        Row("c.one", {}, "wrong", "relative error 1"),
    ]
    times = [PeerTime("torch", "nchw", 2 * peer), PeerTime("torch", "nhwc", peer)] if peer else []
    return Measured(
        str(problem), problem.flops, traffic(problem), Choice("b.one", {}, "predicted", chosen),
        Choice("a.one", {"t": 1}, "fastest", best, best, best, 9), rows, times,
    )  # fmt: skip


def example() -> Report:
    one, two = "fwd_f32_mb1ic8ih10oc8kh3", "fwd_f32_mb1ic8ih10oc8kh1"
    found = {m.problem: m for m in (measured(one, 1.0, 1.5, 4.0), measured(two, 2.0, 2.0))}
    layers = [Layer("convnet", f"L{i}", text, count) for i, (text, count) in enumerate(zip(found, (3, 1)))]
    return Report(layers, ENVIRONMENT, {"peers": {"torch": {"version": "2"}}}, ROOFS, found)


# --- figures ----------------------------------------------------------------------------------------------------------


def test_sums_weigh_layers_by_their_count():
    (net,) = nets(lines(example()), ["torch"])
    assert (net.layers, net.best_ms, net.chosen_ms) == (4, 5.0, 6.5)
    assert net.peers["torch"] == (12.0, 3.0, 3)  # three runs of the layer that torch ran, against ours of the same
    assert net.ratios["torch"] == pytest.approx(4.0)
    assert net.algorithms == {"a": (5.0, 4), "b": (15.0, 4)}


def test_regret_is_chosen_over_best_and_never_below_one():
    report = example()
    assert [line.measured.regret for line in lines(report)] == [1.5, 1.0]
    assert measured(TINY, 2.0, 1.9).regret == 1.0
    assert geomean([1.5, None, 6.0]) == pytest.approx(3.0)
    assert geomean([None]) is None


@pytest.mark.parametrize("candidates", [0, 1, 2])
def test_too_few_candidates_make_no_winner_no_regret_and_no_ratio(candidates, tmp_path):
    """Each of them said one "a perfect choice", with nothing measured beside the choice."""
    report = example()
    few = report.measured["fwd_f32_mb1ic8ih10iw10oc8kh3kw3"]
    untried = [Row("c.one", {}, "not tried", "the budget ended"), Row("d.one", {}, "refused", "no")]
    few.rows = [*few.rows[:candidates], *untried]
    line, other = lines(report)
    assert (line.winner, line.measured.regret, line.fastest) == ("", None, "a.one")
    assert line.ratio("torch") is None
    assert line.coverage == f"{candidates} of {candidates + 1}"
    assert line.verdict == "unknown (a.one ran)"
    assert (other.winner, other.measured.regret, other.coverage) == ("a.one", 1.0, "3 of 4")
    said = shown(report)
    assert "regret of the choice: 1, on 1 of 2 problems, of which 3 candidates or more were measured" in said
    assert "of the other 1 winner, regret and ratio are unknown" in said
    assert re.search(rf"L0 \*3.*unknown \(a.one ran\).* {candidates} of {candidates + 1} .*unknown", said)
    assert "torch: its time over ours" not in said
    page = render(report)
    assert "unknown (a.one ran)" in page
    assert "on 1 of 2 problems with evidence" in page
    (row,) = [row for row in types(lines(report), ["torch"]) if row["type"] == "3x3"]
    assert (row["winners"], row["regret"]) == ({"unknown": 1}, None)
    write_csv(report, tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["measured"] == str(candidates)


def test_nothing_searched_is_said():
    report = example()
    report.settings["search"] = False
    for found in report.measured.values():
        found.rows = []
    assert "nothing was searched: times and ratios are the immediate choice's" in shown(report)
    assert lines(report)[0].ratio("torch") == 4.0
    assert lines(report)[0].winner == ""


def shown(report: Report) -> str:
    console = Console(width=300, record=True, file=io.StringIO(), markup=False)
    show(report, console)
    return console.export_text()


def test_a_layer_has_one_number_with_its_interval(tmp_path):
    """The last race took twice the search's time: the others stand in proportion, whichever hour they are of."""
    report = example()
    found = report.measured["fwd_f32_mb1ic8ih10iw10oc8kh3kw3"]
    found.best = replace(found.best, median_ms=3.6, ci_ms=(3.5, 3.75))
    found.rows = [
        Row("a.one", {"t": 1}, "measured", "", 1.8, 1.7, 1.9, 9, ci_ms=(1.7, 1.9), raced=True, look_ms=2.0),
        Row("b.one", {}, "measured", "", 2.7, 2.6, 2.8, 9, raced=True),
        Row("c.one", {}, "cut", "slower", 5.4, 5.4, 5.4, 3, raced=False),
    ]
    line = lines(report)[0]
    assert solver_times(line.measured) == pytest.approx({"a.one": 3.6, "b.one": 5.4, "c.one": 10.8})
    assert re.search(r"L0.* 3\.6 .* 3\.5-3\.75 ", shown(report))
    details = render(report).partition("L0: every solver")[2].partition("</details>")[0]
    cells = re.findall(r"<tr><td>.*?</tr>", details, re.DOTALL)
    texts = [re.sub(r"(<[^>]+>)+", "|", cell) for cell in cells]
    assert "|3.6|3.5-3.75|1|" in texts[0]
    assert "|1.5|" in texts[1]
    assert "|3, not raced|" in texts[2]
    assert not any(ms in text for text in texts for ms in ("1.8", "2.7", "5.4"))
    write_csv(report, tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["layer"] == "L0"]
    assert [row["timed_in"] for row in rows[:5]] == ["race", "race", "search", "search", "first look"]
    assert (rows[0]["ci_low_ms"], rows[0]["ci_high_ms"]) == ("3.5", "3.75")


def test_roofline_is_the_larger_of_compute_and_traffic():
    compute, memory = lines(example())
    assert compute.bound == "compute"
    assert compute.roof_ms == pytest.approx(compute.measured.flops / 1e9 * 1e3)
    assert compute.measured.flops == 2 * 8 * 8 * 9 * 64
    assert memory.measured.traffic == 4 * (800 + 64 + 800)
    assert memory.fraction == pytest.approx(memory.roof_ms / 2.0)


def test_gaps_come_with_the_most_lost_time_first():
    low = gaps(lines(example()), below=1.0)
    assert [line.layer.name for line in low] == sorted((line.layer.name for line in low), reverse=True)
    assert gaps(lines(example()), below=0.0) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("mb1ic3ih32oc8kh11", "first layer"),
        ("g8mb1ic8ih8oc8kh3", "depthwise"),
        ("mb1ic8ih8oc8kh1sh2", "strided"),
        ("mb1ic8ih8oc8kh1", "1x1"),
        ("mb1ic8ih8oc8kh3ph1", "3x3"),
        ("mb1ic8ih8oc8kh5", "5x5 and more"),
        ("mb1ic8ih8iw8oc8kh1kw3", "other"),
    ],
)
def test_types_of_layer(text, kind):
    assert layer_type(ConvProblem.parse(text)) == kind


def test_types_count_a_problem_once():
    report = example()
    report.layers.append(Layer("other", "again", report.layers[0].problem))
    assert [(row["type"], row["problems"]) for row in types(lines(report), ["torch"])] == [("1x1", 1), ("3x3", 1)]


def test_published_times():
    rows = {(row.net, row.library): row for row in titanx()}
    assert rows["convnet", "DeepCL"].forward_ms == 2648
    assert rows["overfeat", "CL-nn (Torch)"].forward_ms == 1181, "the README's row repeats AlexNet's"
    assert {row.net for row in titanx()} == {"convnet", "alexnet", "overfeat", "vgg_a", "googlenet"}


# --- files ------------------------------------------------------------------------------------------------------------


def test_json_round_trip(tmp_path):
    report = example()
    write_json(report, tmp_path / "r.json")
    assert load(tmp_path / "r.json") == report


def test_csv_has_a_line_for_all_that_was_timed(tmp_path):
    write_csv(example(), tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["what"] for row in rows[:8]] == ["best", "chosen", *["candidate"] * 4, "peer", "peer"]
    assert json.loads(rows[0]["config"]) == {"t": 1}
    assert float(rows[0]["gflops"]) == pytest.approx(example().layers and rows and 2 * 8 * 8 * 9 * 64 / 1e6)


def test_journal_survives_a_torn_line(tmp_path):
    report, path = example(), tmp_path / "j"
    journal = Journal(path, report)
    first, second = report.measured.values()
    journal.add(first)
    with path.open("a") as file:
        file.write(json.dumps(asdict(second))[:50])
    assert list(load(path).measured) == [first.problem]
    Journal(path, report).add(second)
    assert load(path) == report


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99}', "no json", '{"schema": 1, "layers": []}'])
def test_what_is_no_report_is_refused(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(InvalidArgument):
        load(tmp_path / "x")


# --- the page ---------------------------------------------------------------------------------------------------------


def test_page_stands_alone_and_escapes():
    page = render(example())
    assert not re.search(r"<script[^>]|<link|<img|(src|href)\s*=|url\(|@import|\bimport\b|fetch\(|https?:", page)
    assert "<b>card</b>" not in page
    assert "another card" in page
    assert "relative error 1" in page, "a wrong solver is shown"
    assert "prefers-color-scheme: dark" in page
    assert page.count("<svg") == 3, "geometry, coverage, one net's timeline"


def test_a_busy_machine_is_said():
    report = example()
    report.environment = {**ENVIRONMENT, "load": 3.0, "device": {**DEVICE, "type": "cpu"}}
    assert "Other work was running" in render(report)
    report.environment = {**report.environment, "load": 0.1}
    assert "Other work was running" not in render(report)


def test_sources_name_no_folder():
    assert session.placeless("/home/me/registry.yaml:11") == "registry.yaml:11"
    assert session.placeless("measured 1.2 ms, user record") == "measured 1.2 ms, user record"
    assert session.placeless("lock file /a/b.lock") == "lock file b.lock"


def test_page_of_a_run_that_measured_nothing():
    report = example()
    report.measured, report.interrupted = {}, True
    assert "2 problems that were asked for are not measured" in render(report)


# --- running ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Ceilings cost a second: invented here, measured in a test of their own."""
    roof = type("Roof", (), {})
    monkeypatch.setattr(run, "measure_roof", lambda device, dtype: roof)
    monkeypatch.setattr(run, "asdict", lambda value: ROOFS["float32"])
    monkeypatch.setattr(session, "ROUNDS", (5, 5))


def entries(*texts):
    return {"net": [Entry(text, ConvProblem.parse(text), 1) for text in texts]}


def test_command_measures_and_writes_everything(device, quick, tmp_path):
    paths = {name: tmp_path / f"r.{name}" for name in ("json", "csv", "html")}
    options = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    asked = [TINY, "mb1ic4ih6oc4kh1", "--budget", "2000", "--regret", "--no-isolate"]
    done = CliRunner().invoke(bench, [*asked, *options])
    assert done.exit_code == 0, done.output
    report = load(paths["json"])
    assert len(report.measured) == 2
    for found in report.measured.values():
        assert found.best_ms > 0
        assert found.regret >= 1
        for choice in (found.best, found.chosen):
            assert 0 < choice.error < 1e-5
            assert 0 < choice.error_scaled < 1e-5
        assert all(row.error_scaled is not None for row in found.rows if row.error is not None)
    assert report.regret["immediate"]["geomean"] >= 1
    again = CliRunner().invoke(bench, ["--render", str(paths["json"]), "--html", str(tmp_path / "again.html")])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "again.html").read_text() == paths["html"].read_text()
    assert str(tmp_path) not in paths["html"].read_text(), "a page names no folder of the machine it was made on"


def test_interrupt_keeps_what_was_measured_and_a_rerun_goes_on(device, quick, tmp_path, monkeypatch):
    asked, true = [], session.Session.measure

    def measure(self, problem, without=None):
        asked.append(str(problem))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return true(self, problem)

    monkeypatch.setattr(session.Session, "measure", measure)
    problems = entries(TINY, "mb1ic4ih6oc4kh1")
    options = {"search": False, "resume": tmp_path / "j"}
    first = run.run(problems, device, **options)
    assert first.interrupted
    assert list(first.measured) == [str(ConvProblem.parse(TINY))]
    second = run.run(problems, device, **options)
    assert not second.interrupted
    assert len(second.measured) == 2
    assert asked.count(str(ConvProblem.parse(TINY))) == 1, "what was measured is not measured again"


def test_resume_measures_again_what_another_search_measured(device, quick, tmp_path):
    first = run.run(entries(TINY), device, search=False, resume=tmp_path / "j")
    path = tmp_path / "j"
    path.write_text(path.read_text().replace('"search": false', '"search": true'))
    second = run.run(entries(TINY), device, search=False, resume=path)
    assert second.measured != first.measured


def test_resume_refuses_another_device(device, quick, tmp_path):
    run.run(entries(TINY), device, search=False, resume=tmp_path / "j")
    path = tmp_path / "j"
    path.write_text(re.sub(r'"key": "[^"]*"', '"key": "elsewhere"', path.read_text()))
    with pytest.raises(InvalidArgument, match="elsewhere"):
        run.run(entries(TINY), device, resume=path)


def test_no_solver_is_said_and_ends_nothing(device, quick):
    report = run.run(entries(TINY), device, solver="nobody.*", search=False)
    (found,) = report.measured.values()
    assert "no solver" in found.failure
    render(report)


def test_dispatch_knows_only_the_given_measurements_inside(device):
    db = perfdb()
    folders, info = dict(db.folders), runtime.device_info(device)
    problem = ConvProblem.parse(TINY)
    found = session.Session(device, budget_ms=2000).measure(problem)
    with session.knowing(device, [found]):
        assert {record.problem for record in db.all(info)} == {str(problem)}
    with session.knowing(device, []):
        assert db.all(info) == []
    assert db.folders == folders


def test_ceilings_are_measured(device):
    roof = measure_roof(device, "float32")
    assert 1e8 < roof.flops.rate < 1e15
    assert 1e8 < roof.bandwidth.rate < 1e14


# --- peers ------------------------------------------------------------------------------------------------------------

PEER_PROBLEMS = [
    "mb2ic6ih9iw7oc4kh3kw2sh2sw1ph1pw0",
    "g2mb2ic6ih9oc4kh3ph1dh2",
    "g4mb1ic4ih9oc4kh3sh2ph1",
    "mb1ic4ih9oc6kh1+bias+relu",
    "mb1ic4ih9iw9oc6kh3kw3ph0pw1ph_r1pw_r2",
]
CPU = type("Info", (), {"type": "cpu", "vendor": "intel", "compute_units": 1})()


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
@pytest.mark.parametrize("text", PEER_PROBLEMS)
@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_peers_compute_the_same_convolution(name, text, direction, layout):
    pytest.importorskip(name)
    pytest.importorskip("onnx")
    problem = ConvProblem.parse(text)
    if direction != "fwd":
        problem = problem.replace(direction=direction, bias=False, activation=None)
    problem = problem.replace(layout=layout)
    host = random_operands(problem, 0)
    (peer,), _ = peers.load([name], CPU)
    one_sided = (problem.ph, problem.pw) != (problem.ph_r, problem.pw_r)
    if direction != "fwd" and (name == "onnxruntime" or one_sided):
        with pytest.raises(peers.Unable):
            peer.variants(problem, host, 2)
        return
    variants = peer.variants(problem, host, 2)
    expected = reference.compute(problem, **operands_of(problem, host))
    for variant in variants:
        variant.run(3)
        got = np.asarray(variant.result())
        assert got.shape == expected.shape
        assert reference.relative_error(got, expected) < 1e-5, variant.name


def test_unknown_peers_are_refused_and_missing_ones_said():
    with pytest.raises(InvalidArgument, match="torch, onnxruntime"):
        peers.load(["cutlass"], CPU)
    tpu = type("Info", (), {"type": "accelerator", "vendor": "x", "compute_units": 1, "__str__": lambda self: "TPU"})()
    pytest.importorskip("torch")
    found, missing = peers.load(["torch"], tpu)
    assert not found
    assert "TPU" in missing["torch"]
