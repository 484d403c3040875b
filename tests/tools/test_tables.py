"""Tables on terminals of 60, 80 and 120 columns and in a pipe: no line is too wide, and no name or number is lost."""

from __future__ import annotations

import io
import re

import pytest
from records import record
from reports import DEVICE, ENVIRONMENT, ROOFS

from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.device.rates import rates
from convdispatch.measurement.conformance.verify import verify
from convdispatch.selection.plugins import loader
from convdispatch.selection.records import perfdb
from convdispatch.selection.records.record import device_key
from convdispatch.selection.text_table import PIPED_WIDTH, Column, Table, columns, fold, text_width
from convdispatch.tools.benchmark import terminal
from convdispatch.tools.benchmark.report import Choice, Layer, Measured, PeerTime, Report, Row
from convdispatch.tools.cli import main
from convdispatch.tools.cli.options import stdout
from convdispatch.tools.cli.verify import _show

WIDTHS = (60, 80, 120, None)
"""Columns of a terminal; None is a pipe."""
LONG = "implicitgemm.depthwise_transposed"
"""The longest name of a solver."""
NETS = ("efficientnet_b0", "convnext_t")
SIZES = ((1, 96, 56), (2, 48, 28), (8, 24, 14), (1, 3, 224), (4, 64, 7))
PROBLEMS = [f"fwd_f32_mb{mb}ic{ic}ih{ih}iw{ih}oc96kh3kw3ph1pw1" for mb, ic, ih in SIZES]


class Screen(io.StringIO):
    """Standard output that says whether it is a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def screen(monkeypatch):
    """What a function prints on a screen of a width, without colours."""

    def shown(width, show):
        stream = Screen(width is not None)
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", stream)
            patch.setenv("COLUMNS", str(width or 80))
            patch.setenv("TERM", "xterm")
            show()
        return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())

    return shown


@pytest.fixture
def printed(screen):
    """What a command prints on a screen of a width."""

    def invoke(width, *words):
        def run():
            with pytest.raises(SystemExit) as ended:
                main([str(word) for word in words])
            codes.append(ended.value.code)

        codes = []
        text = screen(width, run)
        assert codes[0] in (0, 1), text
        return text

    return invoke


@pytest.fixture(scope="module")
def verified(device):
    """The kit's report on some cases."""
    return verify("im2col", "core", device, case="*3x3*")


def check(text, width, *needed):
    """No line is wider than the terminal, and what is ``needed`` stands there, folded or not."""
    bare = re.sub(r"\s", "", text)
    for words in needed:
        assert re.sub(r"\s", "", str(words)) in bare, f"{words!r} is lost:\n{text}"
    if width:
        wide = [line for line in text.splitlines() if text_width(line) > width]
        assert not wide, f"wider than {width}:\n{text}"


def column(text, start):
    """The cells of the column that begins where ``start`` stands in the heading, row by row, folds joined."""
    lines = text.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("-") and not line.strip("- "))
    left = next(line.index(start) for line in reversed(lines[:place]) if start in line)
    return "".join(line[left:].split("  ")[0].replace(" ", "") for line in lines[place + 1 :])


# --- the helper -------------------------------------------------------------------------------------------------------


def test_what_fits_is_left_as_it_is():
    table = Table(Column("solver", "name"), Column("ms"), title="Times")
    table.add_row("im2col", "1.5")
    table.add_row("winograd.f4x3", "12.25")
    assert str(table).splitlines() == [
        "Times",
        "solver            ms",
        "-------------  -----",
        "im2col           1.5",
        "winograd.f4x3  12.25",
    ]


def test_columns_of_the_highest_rank_go_first_and_are_named():
    table = Table(Column("solver", "name"), Column("ms"), Column("error", rank=2), Column("workspace", rank=1))
    table.add_row(LONG, "1.5", "1e-7", "1000000000")
    text = {width: "\n".join(table.lines(width)) for width in (70, 36, 26)}
    assert "No room" not in text[70]
    assert "1e-7" not in text[36]
    assert "1000000000" in text[36]
    assert "No room for error:" in " ".join(text[36].split())
    assert "No room for error, workspace:" in " ".join(text[26].split())
    for width, lines in text.items():
        check(lines, width, "1.5")
    assert column(text[26], "solver").startswith(LONG)


def _titled(title, name):
    table = Table(Column("name", "name"), Column(title, "sentence"))
    table.add_row(name, "one=1 " * 40)
    return table


def test_a_pipe_loses_nothing_and_wraps_sentences_only():
    figures = columns("number", *(f"figure{n}" for n in range(9)))
    table = Table(Column("name", "name", rank=1), *figures, Column("why", "sentence"))
    table.add_row("a" * 70, *["1234567"] * 9, "because " * 40)
    lines = list(table.lines(10_000))
    assert "a" * 70 in lines[2]
    assert lines[2].count("1234567") == 9
    assert " ".join(lines).count("because") == 40
    assert "No room" not in "".join(lines)
    assert "configuration" in next(iter(_titled("configuration", "name" * 40).lines(10_000)))  # not configuratio, n
    short = Table(Column("name", "name"), Column("why", "sentence"))
    short.add_row("one", "because " * 40)
    assert max(map(len, short.lines(10_000))) <= PIPED_WIDTH


@pytest.mark.parametrize("text", [LONG, "a b c d", "x" * 50, "日本語の名前がここにある", "first\nsecond", ""])
@pytest.mark.parametrize("room", [2, 8, 12, 16])
def test_folding_keeps_every_character(text, room):
    lines = list(fold(text, room))
    assert "".join(lines).replace(" ", "") == text.replace(" ", "").replace("\n", "")
    assert all(text_width(line) <= room for line in lines)


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def benchmark():
    """A report with long names of nets, layers and solvers, two peers and everything known."""
    found, layers = {}, []
    for number, text in enumerate(PROBLEMS):
        problem = ConvProblem.parse(text).replace(direction="bwd_weights")
        given = {"median_ms": 1.29, "count": 9, "ci_ms": (1.234, 1.345), "error": 1e-7, "error_scaled": 1e-6}
        rows = [Row(f"{LONG}{n}", {}, "measured", workspace=1 << 30, **given) for n in range(3)]
        best = Choice(LONG + "0", {}, "fastest", 1 << 30, **given)
        peers = [PeerTime(peer, "nchw", **given | {"median_ms": 12.345}) for peer in ("torch", "onnxruntime")]
        found[str(problem)] = Measured(str(problem), problem.flops, 10**6, best, best, rows, peers)
        layers.append(Layer(NETS[number % 2], f"features.{number}.block.depthwise", str(problem), 12))
    settings = {"peers": {"torch": {"version": "2"}, "onnxruntime": {"version": "1"}}}
    return Report(layers, ENVIRONMENT | {"device": DEVICE | {"title": "A card"}}, settings, ROOFS, found)


@pytest.mark.parametrize("width", WIDTHS)
def test_bench(screen, benchmark, width):
    text = screen(width, lambda: terminal.show(benchmark, stdout()))
    check(text.partition("problems below")[0].rpartition("\n")[0], width, "fastest", "9.57")
    assert column(text, "layer").startswith("features.0.block.depthwise*12features.1.block.depthwise*12")
    assert column(text, "fastest").startswith(f"{LONG}0{LONG}0")
    assert text.count("1.29") >= 5
    if width is None:
        assert "No room" not in text
        assert all(title in text for title in ("regret", "workspace", "bwd_weights", *NETS))


@pytest.fixture
def records(tmp_path, monkeypatch, read_anew, device):
    """Records of the test's device in a database of their own; gives a pack of them, and of slower ones."""
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    perfdb.perfdb.cache_clear()
    info = runtime.device_info(device)
    for text in PROBLEMS:
        problem = ConvProblem.parse(text)
        config = next(iter(loader.plugins().solvers["im2col"].configs(problem, info)))
        ms = 1e3 * problem.flops / rates(info).flops
        given = {"problem": problem, "device": device_key(info), "config": config, "default": True, "benchmarked": True}
        perfdb.perfdb().record(record("im2col", ms, error=1e-7, workspace=1 << 28, **given))
    return tmp_path


@pytest.mark.parametrize("width", WIDTHS)
def test_records(printed, records, width):
    known = perfdb.perfdb()
    found = [one for key in known.devices() for one in known.all(key)]
    assert len(found) == len(PROBLEMS)
    text = printed(width, "db", "list")
    table = text.rpartition("records in")[0].rpartition("\n")[0]
    check(table, width, "im2col")
    assert column(table, "problem").startswith(found[0].problem)


@pytest.mark.parametrize("width", WIDTHS)
def test_explain(printed, records, width):
    found = perfdb.perfdb()
    text = printed(width, "explain", PROBLEMS[0])
    check(text.partition("\n")[2], width, "im2col", "predicted", "measured", "only, got")
    row = next(line for line in text.splitlines() if line.startswith(("    im2col ", "->  im2col ")))
    record_ms = next(one for key in found.devices() for one in found.all(key) if "mb1ic96" in one.problem).median_ms
    assert f"{record_ms:.3g}" in row.split()


@pytest.mark.parametrize("width", WIDTHS)
def test_doctor(printed, width):
    text = printed(width, "doctor", "--no-probe")
    tables = text[text.index("OpenCL vendors") : text.index("GFLOP/s")].rpartition("\n")[0]
    check(tables, width or PIPED_WIDTH, "implicitgemm", "loaded", "winograd.tiled_f2x3", "platform")


@pytest.mark.parametrize("width", WIDTHS)
def test_find_and_trace(printed, records, width, device, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "im2col")
    loader.reload()
    words = [PROBLEMS[4], "--device", runtime.address(device)]
    text = printed(width, "find", *words, "--budget", "3000", "--again")
    table = text[text.index("solver ") :].partition("im2col:")[0]
    check(table, width, "interval")
    if width == 60 and "measured" not in table:  # a column that finds no room is named
        assert re.search(r"No room for [^:]*\bstate\b", table), table
    else:
        check(table, width, "measured")
    text = printed(width, "trace", *words).partition("\n")[2]
    check(text.partition("programs compiled")[0].rpartition("\n")[0], width)


@pytest.mark.parametrize("width", WIDTHS)
def test_verify(screen, width, verified):
    check(screen(width, lambda: _show(verified)), width, "im2col", "computed", "refused most often")
