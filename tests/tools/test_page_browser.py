"""The page in a real browser: nothing is cut at 1300 pixels, a click sorts, words filter, dark is dark, no network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from test_benchmark import DEVICE, ENVIRONMENT

from convdispatch.measurement import shapes
from convdispatch.tools.benchmark.pages.page import render
from convdispatch.tools.benchmark.report import Choice, Layer, Measured, PeerTime, Report, Row

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (apt-get install chromium)")
SOLVERS = ("winograd.f4x3", "implicitgemm.local_memory", "fft.tiled", "im2col.gemm")
ROOFS = {"float32": {"flops": {"rate": 1e12, "how": "a"}, "bandwidth": {"rate": 2e11, "how": "b"}, "matrix": None}}


def wide_report() -> Report:
    """A net of many kinds of layer with long names and two peers: the widest table that there is."""
    layers, found = [], {}
    for number, entry in enumerate(shapes.load("efficientnet_b0")[:20]):
        problem = entry.problem
        ms = problem.flops / 1e12 * 1e3 / (0.05 + 0.04 * number)
        around = lambda t, w=0.05: ((1 - w) * t, (1 + 2 * w) * t)  # noqa: E731
        solver = SOLVERS[number % 4]
        rows = [
            Row(name, {"tile": 4}, "measured", "", ms * (1 + i), ms, ms, 9, 1e-7, 1 << 20, 5.0, True, around(ms), True)
            for i, name in enumerate(sorted(SOLVERS, key=lambda name: name != solver))
        ]
        best = Choice(solver, {"tile": 4}, "fastest", ms, ms, ms, 9, 1.2e-7, 1 << 20, around(ms), 3.4e-7)
        chosen = Choice(SOLVERS[3], {}, "registry.yaml:30 prefers im2col.*", 1.3 * ms, ms, ms, 9, 2e-7, 0, None, 1e-6)
        peers = [
            PeerTime(name, "nhwc", ms * more, ms, ms, 9, 1e-7, "", around(ms * more, 0.1), 2e-7)
            for name, more in (("torch", 1.234), ("onnxruntime", 0.876))
        ]
        found[str(problem)] = Measured(str(problem), problem.flops, problem.bytes, chosen, best, rows, peers)
        layers.append(Layer("efficientnet_b0", entry.name, str(problem), entry.count))
    peers = {"torch": {"version": "2"}, "onnxruntime": {"version": "1"}}
    environment = {**ENVIRONMENT, "device": {**DEVICE, "name": "Card", "title": "Card"}}
    return Report(layers, environment, {"peers": peers, "command": "convdispatch bench efficientnet_b0"}, ROOFS, found)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render(wide_report()), encoding="utf-8")
    return path


def browse(page: Path, script: str, width: int = 1300, *options: str) -> dict:
    """What ``script`` puts into ``told`` once the page has been drawn, and ``errors`` of all scripts."""
    text = page.read_text(encoding="utf-8")
    text = text.replace("<head>", "<head><script>errors = []; onerror = (m) => errors.push(m)</script>", 1)
    end = f"<script>told = {{}}; {script}; told.errors = errors; document.body.innerHTML = ''; "
    end += "document.body.append(Object.assign(document.createElement('pre'), {textContent: JSON.stringify(told)}))"
    asked = page.with_name("asked.html")
    asked.write_text(text.replace("</body>", end + "</script></body>"), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
    command += [f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},2000", *options]
    done = subprocess.run([*command, "--dump-dom", asked.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r"<pre>(.*)</pre>", done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    told = json.loads(unescape(found[1]))
    assert told.pop("errors") == []
    return told


@pytest.mark.parametrize("width", [1300, 1600])
def test_no_column_is_cut(page, width):
    told = browse(
        page,
        """
        told.width = innerWidth;
        told.body = document.documentElement.scrollWidth;
        told.cut = [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth)
          .map((e) => [e.scrollWidth, e.clientWidth, e.textContent.trim().slice(0, 60)]);
        told.tables = document.querySelectorAll('.scroll').length;
        """,
        width,
    )
    assert told["width"] == width
    assert told["body"] <= width
    assert told["tables"] > 3
    assert told["cut"] == []


SORT = """
const table = document.querySelector('table.layers');
const column = (name) => [...table.querySelectorAll('th')].findIndex((h) => h.textContent === name);
const cells = (name) => [...table.querySelectorAll('tr')].filter((r) => r.querySelector('td'))
  .map((r) => r.children[column(name)].innerText.split('\\n')[0].trim());
const click = (name) => table.querySelectorAll('th')[column(name)].click();
"""


def test_a_click_on_a_heading_sorts_and_another_turns_it(page):
    told = browse(
        page,
        SORT
        + """
        told.before = cells('ms, 95 %');
        click('ms, 95 %'); told.up = cells('ms, 95 %');
        click('ms, 95 %'); told.down = cells('ms, 95 %');
        told.arrow = table.querySelectorAll('th')[column('ms, 95 %')].getAttribute('aria-sort');
        click('layer'); told.names = cells('layer');
        click('roofline'); told.shares = [...table.querySelectorAll('tr[data-kind]')].map((r) =>
          r.children[column('roofline')].textContent.trim());
        """,
    )
    number = lambda text: float(re.match(r"[\d.e-]+", text.replace(",", ""))[0])  # noqa: E731
    assert len(told["before"]) == 20
    up = sorted(map(number, told["before"]))
    assert list(map(number, told["before"])) != up
    assert list(map(number, told["up"])) == up
    assert list(map(number, told["down"])) == up[::-1]
    assert told["arrow"] == "descending"
    assert told["names"] == sorted(told["names"])
    assert list(map(number, told["shares"])) == sorted(map(number, told["shares"]))


def test_words_kinds_and_algorithms_filter_layers(page):
    told = browse(
        page,
        """
        const shown = () => [...document.querySelectorAll('tr[data-kind]')].filter((r) => r.offsetParent)
          .map((r) => [r.dataset.kind, r.dataset.engine, r.children[0].textContent]);
        const set = (id, value) => { const e = document.getElementById(id); e.value = value;
          e.dispatchEvent(new Event('input')); };
        told.all = shown().length;
        set('kind', 'depthwise'); told.kind = shown();
        set('engine', 'fft'); told.both = shown(); told.count = document.getElementById('count').textContent;
        set('kind', ''); set('engine', ''); set('words', 'B3_expand 1x1'); told.words = shown();
        set('words', 'nothing like it'); told.none = shown().length;
        """,
    )
    assert told["all"] == 20
    assert {kind for kind, _, _ in told["kind"]} == {"depthwise"}
    assert 0 < len(told["both"]) < len(told["kind"]) < 20
    assert all((kind, engine) == ("depthwise", "fft") for kind, engine, _ in told["both"])
    assert told["count"] == f"{len(told['both'])} of 20 layers"
    assert [name.split()[0] for _, _, name in told["words"]] == ["b3_expand"]
    assert told["none"] == 0


def test_error_bars_stand_where_the_intervals_are(page):
    told = browse(
        page,
        """
        told.bars = [...document.querySelectorAll('table.layers .times span')].map((e) => {
          const whole = e.getBoundingClientRect(), bar = e.querySelector('i').getBoundingClientRect();
          const mark = e.querySelector('u').getBoundingClientRect();
          return [whole.left, bar.right, mark.left, mark.right, whole.right]; });
        """,
    )
    assert len(told["bars"]) == 60, "ours and two peers in each of twenty layers"
    long = [bar for bar in told["bars"] if bar[1] - bar[0] > 20]
    assert len(long) == 60, "each layer has a scale of its own"
    for left, bar, low, high, right in long:
        assert left < low < bar < high <= right + 1, "an interval is about the median, within the column"


def test_dark_and_light_by_the_system_and_by_the_button(page):
    script = """
        const colours = () => ['body', '.tiles div', 'pre'].map((e) =>
          getComputedStyle(document.querySelector(e)).backgroundColor);
        told.first = colours();
        document.getElementById('theme').click(); told.second = colours();
        document.getElementById('theme').click(); told.third = colours();
        """
    light = browse(page, script, 1300, "--blink-settings=preferredColorScheme=1")
    dark = browse(page, script, 1300, "--blink-settings=preferredColorScheme=0")
    brightness = lambda colours: [sum(map(int, re.findall(r"\d+", c)[:3])) / 765 for c in colours]  # noqa: E731
    assert min(brightness(light["first"])) > 0.8
    assert max(brightness(dark["first"])) < 0.2
    assert (light["second"], light["third"]) == (dark["first"], light["first"])
    assert (dark["second"], dark["third"]) == (light["first"], dark["first"])


def test_nothing_is_wider_than_a_telephone(page):
    """Tables and pictures scroll within themselves. Chromium's own windows are 500 pixels wide at least."""
    told = browse(page, "told.wide = document.documentElement.scrollWidth; told.room = innerWidth;", 400)
    assert told["wide"] <= told["room"] <= 500


def test_nothing_is_fetched(page):
    told = browse(page, "told.resources = performance.getEntriesByType('resource').map((e) => e.name)")
    assert told["resources"] == []


def test_pictures_are_drawn(page):
    told = browse(
        page,
        """
        const box = (e) => { const b = e.getBoundingClientRect(); return [b.width, b.height]; };
        told.boxes = [...document.querySelectorAll('svg')].map(box);
        told.marks = document.querySelectorAll('svg circle').length;
        """,
    )
    assert all(width > 900 and height > 60 for width, height in told["boxes"])
    distinct = len(wide_report().measured)
    marks = distinct + 2 * distinct * len(SOLVERS) + 1
    assert told["marks"] == marks, "roofline; each candidate by error and workspace; the one step of the staircase"
