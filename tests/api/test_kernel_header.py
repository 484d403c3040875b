"""The header's kernel texts: included by name, and right for every dtype and epilogue."""

from __future__ import annotations

import itertools
from importlib import resources

import numpy as np
import pyopencl as cl
import pytest
from checking import TOLERANCE, numpy_dtype

from convdispatch import ConvProblem
from convdispatch.api import build, kernel_text, storage_macros
from convdispatch.api.activations import apply_activation
from convdispatch.api.dtypes import DTYPES
from convdispatch.device import runtime
from convdispatch.measurement.reference import relative_error

PROBLEM = ConvProblem.parse("mb2ic4ih4oc6kh1")


def package(tmp_path, monkeypatch, text: str, name: str) -> str:
    """The rendered text of a package's kernel file."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "kernel.cl").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return kernel_text(name, "kernel.cl")


def test_an_include_keeps_the_lines_of_both_files(tmp_path, monkeypatch):
    text = package(tmp_path, monkeypatch, "// first\n#include <convdispatch/output.cl>\n// third\n", "including")
    lines = text.splitlines()
    assert lines[:3] == ['#line 1 "including/kernel.cl"', "// first", '#line 1 "convdispatch/output.cl"']
    own = (resources.files("convdispatch.api") / "output.cl").read_text().splitlines()
    after = own.index("#include <convdispatch/epilogue.cl>") + 2
    assert lines[lines.index(f'#line {after} "convdispatch/output.cl"') + 1] == own[after - 1]
    assert lines[-2:] == ['#line 3 "including/kernel.cl"', "// third"]
    assert "#include" not in text


def test_an_include_that_the_header_lacks(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"nothing\.cl"):
        package(tmp_path, monkeypatch, "#include <convdispatch/nothing.cl>\n", "lacking")


def ran(queue, text: str, kernel: str, items: int, out: np.ndarray, *given: np.ndarray | None) -> np.ndarray:
    """``out`` after a kernel over it and ``given``."""
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(queue.context, flags, hostbuf=array) for array in (out, *given) if array is not None]
    cl.Kernel(build(queue.context, text), kernel)(queue, (items,), None, *buffers)
    result = np.empty_like(out)
    cl.enqueue_copy(queue, result, buffers[0])
    return result


@pytest.fixture
def dtypes(device):
    """The dtypes of the device."""
    info = runtime.device_info(device)
    return [dtype for dtype in DTYPES if info.supports(dtype) is None]


ELEMENTS = ("output.cl", 1, "put(OUT_ARGS, sums[i], i, i % OC);")
ONES = ("output_lanes.cl", 1, "put_one(OUT_ARGS, i, sums[i], B);")
VECTORS = ("output_lanes.cl", 4, "if (i < 120) put_vector(OUT_ARGS, i, LOADW(sums + i), B);")
"""A header's file, the elements that a work item of a kernel writes, and what it says."""


@pytest.mark.parametrize("form", [ELEMENTS, ONES, VECTORS], ids=["put", "put_one", "put_vector"])
@pytest.mark.parametrize("parts", ["", "bias", "residual", "bias residual", "bias accumulate", "residual accumulate"])
def test_output(queue, full, dtypes, parts, form):
    """Each part of the epilogue in its order, for elements of six channels; long offsets and int ones, by turns unless
    ``full``: every dtype has one, and the other with the next parts."""
    file, width, body = form
    kernel = f"#define LANES 4\n#define V {{}}4\n#define B {'LOAD(bias, i % OC)' if 'bias' in parts else '0'}\n"
    if width > 1:
        four = ", ".join(f"LOAD(bias, (i + {lane}) % OC)" for lane in range(4))
        kernel = kernel.replace("LOAD(bias, i % OC)", f"(V)({four})")
    tail = "kernel void run(OUT_PARAMS, global const ACC *sums) {\n"
    tail += f"  const int i = get_global_id(0) * {width};\n  {body}\n}}\n"
    has = dict.fromkeys(parts.split(), True)
    activation = None if "accumulate" in has else "relu"
    random = np.random.default_rng(0)
    for (turn, dtype), long in itertools.product(enumerate(dtypes), (True, False)):
        if not full and (turn + len(parts.split()) + bool("residual" in parts)) % 2 == long:
            continue
        index = "" if long else "#define OUT_INDEX int\n"
        problem = PROBLEM.replace(dtype=dtype, activation=activation, **has)
        kind = np.float64 if dtype == "float64" else np.float32
        sums, old, residual = (random.standard_normal((20, 6)) for _ in range(3))
        sums, bias = sums.astype(kind), random.standard_normal(6).astype(numpy_dtype(dtype))
        old, residual = (array.astype(numpy_dtype(dtype)) for array in (old, residual))
        given = (bias if problem.bias else None, residual if problem.residual else None, sums)
        text = problem.macros() + index + kernel.format(DTYPES[dtype].accumulator)
        text += kernel_text("convdispatch.api", file) + tail
        got = ran(queue, text, "run", sums.size // width, old, *given)
        wanted = sums.astype(float) + problem.bias * bias.astype(float) + problem.residual * residual.astype(float)
        wanted = apply_activation(activation, wanted) + problem.accumulate * old.astype(float)
        assert relative_error(got.astype(float), wanted) <= TOLERANCE[dtype], (dtype, parts)


def test_partial_sums_go_to_the_workspace_as_they_are(queue):
    problem = PROBLEM.replace(bias=True, activation="relu")
    text = problem.macros() + "#define PARTIAL 1\n#define PARTIAL_AT 3L\n"
    text += kernel_text("convdispatch.api", "output.cl")
    text += "kernel void run(OUT_PARAMS, global const ACC *sums) {\n  const int i = get_global_id(0);\n"
    text += "  put(OUT_ARGS, sums[i], i, 0);\n}\n"
    sums = np.array([-1.0, 2.0, -3.0], np.float32)
    got = ran(queue, text, "run", 3, np.zeros(8, np.float32), sums)
    assert got.tolist() == [0, 0, 0, -1, 2, -3, 0, 0]


@pytest.mark.parametrize("width", [1, 2, 4, "4 at any element", "16 at any element"])
def test_vectors_are_loaded_and_rounded_as_elements_are(queue, dtypes, width):
    """The same bits as LOAD and STORE: ties, infinities, values beyond the range, numbers below the normal ones."""
    exact = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11]
    file, name = "vectors.cl", width
    if isinstance(width, str):
        file, name, width = "lanes.cl", "V", int(width.split()[0])
    values = np.array([*exact, 65520.0, 3.3895e38, -1e-7, 3e-5, np.nan, 7.0], np.float64)
    for dtype in dtypes:
        kind = np.float64 if dtype == "float64" else np.float32
        text = storage_macros(dtype) + f"#define LANES {width}\n#define V {DTYPES[dtype].accumulator}{width}\n"
        text += kernel_text("convdispatch.api", file) * 2  # a second time is no harm
        text += f"""
kernel void wide(global REAL *to, global REAL *again, global const ACC *from) {{
  const int i = get_global_id(0) * {width};
  STORE{name}(to + i, *(global const {"V" if name == "V" else f"ACC{width}"} *)(from + i));
  STORE{name}(again + i, LOAD{name}(to + i));
}}
kernel void plain(global REAL *to, global REAL *again, global const ACC *from) {{
  const int i = get_global_id(0);
  STORE(to, i, from[i]);
}}
"""
        given, blank = values.astype(kind), np.zeros(len(values), numpy_dtype(dtype))
        plain = ran(queue, text, "plain", len(values), blank, blank, given)
        wide = ran(queue, text, "wide", len(values) // width, blank, blank, given)
        numbers = ~np.isnan(given)  # which bits a NaN keeps is the compiler's affair
        assert wide[numbers].tobytes() == plain[numbers].tobytes(), dtype
        with np.errstate(all="ignore"):
            wanted = given.astype(blank.dtype)
        np.testing.assert_array_equal(wide.astype(float), wanted.astype(float), err_msg=dtype)
        # The first buffer is what comes back: now the one that was written from what LOAD gave.
        turned = text.replace("global REAL *to, global REAL *again", "global REAL *again, global REAL *to")
        again = ran(queue, turned, "wide", len(values) // width, blank, blank, given)
        np.testing.assert_array_equal(again.astype(float), wanted.astype(float), err_msg=dtype)
