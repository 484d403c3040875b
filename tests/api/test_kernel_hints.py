"""What the text of CPU kernels must say, so that a compiler makes one form of each."""

from __future__ import annotations

import re

from paths import ROOT


def test_kernels_of_one_work_item_say_that_they_are_written_in_vectors():
    """Without the hint, Intel's compiler also makes a form for 8 or 16 items, which takes most of the time."""
    attributes = [
        (file, found)
        for folder in (ROOT / "plugins", ROOT / "convdispatch" / "gemm")
        for file in folder.rglob("*.cl*")
        for found in re.findall(r"__attribute__\(\((reqd_work_group_size\(1, 1, 1\).*)\)\)", file.read_text())
    ]
    assert len(attributes) > 20
    for file, found in attributes:
        assert found == "reqd_work_group_size(1, 1, 1), vec_type_hint(float16)", file
