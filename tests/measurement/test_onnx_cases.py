"""ONNX's own backend node cases for Conv and ConvTranspose, every one, through the public calls.

``auto_pad`` and ``output_shape`` are ONNX's ways to say paddings; the adapter here turns them into numbers.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import convdispatch

onnx = pytest.importorskip("onnx", reason="onnx, whose backend cases these are, is not installed (extra: test)")

KNOWN = {"auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides"}
LEAST = {"Conv": 6, "ConvTranspose": 11}
"""Cases in onnx 1.16; later versions only add."""


def _cases() -> dict:
    """Cases by name; only two operators' modules are loaded, since all of them take 10 seconds."""
    package = "onnx.backend.test.case.node"
    for kind in LEAST:
        importlib.import_module(f"{package}.{kind.lower()}")
    found = {}
    for case in importlib.import_module(package)._NodeTestCases:
        nodes = case.model.graph.node if case.model is not None else []
        if len(nodes) == 1 and nodes[0].op_type in LEAST:
            found[case.name] = case
    return found


CASES = _cases()


def _attributes(node) -> dict:
    from onnx.helper import get_attribute_value

    values = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
    assert set(values) <= KNOWN, f"an attribute that the adapter does not know: {set(values) - KNOWN}"
    values["auto_pad"] = values.get("auto_pad", b"NOTSET").decode()
    return values


def _halves(total: int, mode: str) -> tuple[int, int]:
    return (total // 2, total - total // 2) if mode == "SAME_UPPER" else (total - total // 2, total // 2)


def run(kind: str, given: dict, x, w, bias=None):
    """One Conv or ConvTranspose node by the public call."""
    ndim, kernel = x.ndim - 2, w.shape[2:]
    strides, dilations = given.get("strides", [1] * ndim), given.get("dilations", [1] * ndim)
    pads, mode = given.get("pads", [0] * 2 * ndim), given["auto_pad"]
    padding = list(zip(pads[:ndim], pads[ndim:]))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel)]
    keywords = {"stride": strides, "dilation": dilations, "groups": given.get("group", 1)}
    if kind == "Conv":
        if mode.startswith("SAME"):
            outputs = [-(-size // stride) for size, stride in zip(x.shape[2:], strides)]
            needed = [(o - 1) * s + r - i for o, s, r, i in zip(outputs, strides, reach, x.shape[2:])]
            padding = [_halves(max(0, total), mode) for total in needed]
        return convdispatch.conv(x, w, bias, padding=padding, **keywords)
    extra = list(given.get("output_padding", [0] * ndim))
    wanted = given.get("output_shape")
    if wanted is None and mode.startswith("SAME"):
        wanted = [size * stride for size, stride in zip(x.shape[2:], strides)]
    if wanted is not None:
        natural = [(i - 1) * s + r + e for i, s, r, e in zip(x.shape[2:], strides, reach, extra)]
        totals = [size - target for size, target in zip(natural, wanted)]
        padding = [_halves(max(0, total), mode) for total in totals]
        extra = [e + max(0, -total) for e, total in zip(extra, totals)]
    return convdispatch.conv_transpose(x, w, bias, padding=padding, output_padding=extra, **keywords)


def test_no_case_has_vanished():
    kinds = [case.model.graph.node[0].op_type for case in CASES.values()]
    assert {kind: kinds.count(kind) >= least for kind, least in LEAST.items()} == dict.fromkeys(LEAST, True)


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    case = CASES[name]
    node = case.model.graph.node[0]
    assert case.data_sets
    for inputs, (expected,) in case.data_sets:
        got = run(node.op_type, _attributes(node), *(np.asarray(array) for array in inputs))
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=case.rtol, atol=case.atol)
