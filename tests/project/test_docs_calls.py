"""The drawings of a warm and a cold call: each box names a module that exists, and the page shows both."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from paths import ROOT

DESIGN = ROOT / "docs" / "design"
PACKAGE = ROOT / "convdispatch"
DRAWINGS = sorted(DESIGN.glob("calls-*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_each_box_of_a_drawing_is_a_module(drawing):
    root = ElementTree.parse(drawing).getroot()
    named = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "module"]
    assert len(named) == sum(1 for _ in root.iter(f"{SVG}rect")) > 5
    assert [name for name in named if not (PACKAGE / name).is_file()] == []
    assert "prefers-color-scheme: dark" in drawing.read_text(), "it is read on dark pages too"


def test_the_page_shows_the_drawings_and_names_what_is_there():
    text = (DESIGN / "calls.md").read_text()
    assert {path.name for path in DRAWINGS} == set(re.findall(r"\((calls-\w+\.svg)\)", text))
    assert len(DRAWINGS) == 2
    named = set(re.findall(r"`((?:calls|device|selection)/[\w/]+(?:\.py)?)`", text))
    assert len(named) > 8
    assert [name for name in named if not (PACKAGE / name).exists()] == []
