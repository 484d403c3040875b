"""Breaks a kernel on purpose, a copy of the naive plugin's, and asserts that the checks see it each time."""

from __future__ import annotations

import pytest
import shape_tables
from checking import check
from paths import SUPPORT

import convdispatch
from convdispatch.selection import dispatch

SOURCE = SUPPORT / "naive_plugin" / "naive"
MUTANTS = {
    "padding_off_by_one": ("h * SH - PH + b * DH", "h * SH - PH + b * DH + 1", "fwd"),
    "far_pad_for_near": ("w_ * SW - PW + e * DW", "w_ * SW - PW_R + e * DW", "fwd"),
    "no_stride": ("h * SH - PH", "h - PH", "fwd"),
    "no_dilation": ("zh = h * SH - PH + b * DH", "zh = h * SH - PH + b", "fwd"),
    "dilation_of_the_other_axis": ("w_ * SW - PW + e * DW", "w_ * SW - PW + e * DH", "fwd"),
    "first_group_only": ("X(outer, first + i,", "X(outer, i,", "fwd"),
    "last_tap_lost": ("e < KW; ++e", "e < KW - 1; ++e", "fwd"),
    "last_channel_lost": ("i < ICG; ++i", "i < max(1, ICG / 4 * 4); ++i", "fwd"),
    "wraps_at_the_border": ("INSIDE(zw, IW)", "zw < IW", "fwd"),
    "one_element_unwritten": ("STORE(y, get", "if (get_global_id(0)) STORE(y, get", "fwd"),
    "writes_behind_the_end": (
        "STORE(y, get_global_id(0), sum);",
        "STORE(y, get_global_id(0), sum); if (get_global_id(0) == 0) STORE(y, (long)MB * OC * OD * OH * OW, sum);",
        "fwd",
    ),
    "writes_its_input": (
        "STORE(y, get_global_id(0), sum);",
        "STORE(y, get_global_id(0), sum); if (get_global_id(0) == 0) STORE((global REAL *)x, 0, sum + 1);",
        "fwd",
    ),
    "gradient_ignores_the_stride_s_rest": ("zh % SH == 0 &&", "", "bwd_data"),
    "gradient_of_the_wrong_group": ("Y(outer, first + o,", "Y(outer, o,", "bwd_data"),
    "gradient_pads_twice": ("w_ + PW - e * DW", "w_ + 2 * PW - e * DW", "bwd_data"),
    "weights_of_the_wrong_group": ("outer / OCG * ICG + c", "c", "bwd_weights"),
    "weights_lose_the_last_image": ("n < MB; ++n", "n < max(1, MB - 1); ++n", "bwd_weights"),
    "weights_lose_the_last_row": ("b < OH; ++b", "b < max(1, OH - 1); ++b", "bwd_weights"),
}


@pytest.fixture
def broken(request, tmp_path, monkeypatch, read_anew):
    """The direction in which the loaded ``naive.direct`` is wrong."""
    old, new, direction = MUTANTS[request.param]
    folder = tmp_path / "naive"
    folder.mkdir()
    (folder / "__init__.py").write_text((SOURCE / "__init__.py").read_text())
    text = (SOURCE / "direct.cl").read_text()
    assert old in text, f"the kernel has no {old!r} to break any more"
    (folder / "direct.cl").write_text(text.replace(old, new))
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path))
    forget_text()
    read_anew()
    yield direction
    forget_text()


def forget_text() -> None:
    """Kernel files are read once a process; a mutant has the healthy file's name."""
    from convdispatch.device.programs import kernels

    kernels._read.cache_clear()
    dispatch.forget()


@pytest.mark.parametrize("broken", MUTANTS, indirect=True)
def test_the_checks_see(broken, device):
    """At least one near miss fails, and not for another reason than a wrong result or a wrong write."""
    caught = []
    for entry in shape_tables.load("near_miss")[10:30] + shape_tables.load("near_miss")[57:90]:
        try:
            check(entry.problem.replace(direction=broken), device, solver="naive.direct")
        except AssertionError as error:
            caught.append(str(error))
            break
        except convdispatch.PlanFailed as error:
            pytest.fail(f"the mutant does not run: {error}")
    assert caught, "no check failed"
    assert "rerun: pytest 'tests/measurement/test_mutants.py::" in caught[0]
