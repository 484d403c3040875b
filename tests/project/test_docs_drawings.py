"""The drawings of the design: boxes name modules that exist, each is drawn from its text and shown on a page."""

from __future__ import annotations

import re
import runpy
from xml.etree import ElementTree

import pytest
from paths import ROOT

DESIGN = ROOT / "docs" / "design"
PACKAGE, PLUGINS = ROOT / "convdispatch", ROOT / "plugins"
TEXTS = sorted((DESIGN / "drawings").glob("*.txt"))
DRAW = runpy.run_path(str(DESIGN / "drawings" / "draw.py"))["draw"]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_each_box_of_a_drawing_is_a_module(text):
    drawing = text.with_suffix(".svg").read_text()
    assert drawing == DRAW(text.read_text()), "python docs/design/drawings/draw.py draws it anew"
    root = ElementTree.fromstring(drawing)
    named = [each.text for each in root.iter(f"{SVG}text") if each.get("class") == "module"]
    assert len(named) == sum(1 for _ in root.iter(f"{SVG}rect")) > 5
    assert [name for name in named if not (PACKAGE / name).exists() and not (PLUGINS / name).exists()] == []
    assert "prefers-color-scheme: dark" in drawing, "it is read on dark pages too"


def test_boxes_of_a_row_do_not_overlap_and_arrows_end_at_boxes():
    for text in TEXTS:
        root = ElementTree.fromstring(DRAW(text.read_text()))
        boxes = [[float(box.get(name)) for name in ("x", "y", "width", "height")] for box in root.iter(f"{SVG}rect")]
        for number, (x, y, width, _) in enumerate(boxes):
            others = [other for other in boxes[:number] if other[1] == y]
            assert all(x + width < other[0] or other[0] + other[2] < x for other in others), text.name
        for path in root.iter(f"{SVG}path"):
            if path.get("d").startswith("M0 0"):
                continue
            *_, x, y = map(float, re.findall(r"[\d.]+", path.get("d")))
            assert any(a - 1 <= x <= a + w + 1 and b - 1 <= y <= b + h + 1 for a, b, w, h in boxes), text.name


@pytest.mark.parametrize("wrong", ["a box without a bar", "a: calls/conv.py conv", "a + b"])
def test_a_line_that_is_no_box_is_named(wrong):
    with pytest.raises(ValueError, match=re.escape(wrong)):
        DRAW(f"Title\n\n{wrong}\n")


def test_pages_show_every_drawing_and_name_what_is_there():
    pages = [*DESIGN.glob("*.md"), ROOT / "README.md"]
    shown = {name for page in pages for name in re.findall(r"drawings/([\w-]+)\.svg\)", page.read_text())}
    assert shown == {path.stem for path in TEXTS}
    for page in ("calls", "torch", "inference"):
        named = set(
            re.findall(
                r"`((?:calls|device|selection|torch|inference)/[\w/]+\.py)`", (DESIGN / f"{page}.md").read_text()
            )
        )
        assert len(named) > 5, page
        assert [name for name in named if not (PACKAGE / name).is_file()] == []
