"""More groups along y or z than CUDA launches: they lie in one row, eagerly and captured, with the host for a GPU.

What PTX computes from a group's place in the row (``test_ptx_rows.py``) is said to the host's compiler in OpenCL C.
"""

from __future__ import annotations

import warnings

import convdispatch_im2col
import convdispatch_implicitgemm
import convdispatch_winograd
import numpy as np
import pytest
from checking import call, compare, make_operands, numpy_dtype
from host_cuda import CudaArray, HostFunction, installed
from plans import SMALL, declared, first

from convdispatch import ConvProblem
from convdispatch.calls import stream_call
from convdispatch.device.commands.interface import Kernel
from convdispatch.device.cuda import modules, stream
from convdispatch.device.programs import kernels
from convdispatch.selection import dispatch

pytestmark = pytest.mark.usefixtures("item_by_item")
SOLVERS = {
    name: solver
    for plugin in (convdispatch_im2col, convdispatch_implicitgemm, convdispatch_winograd)
    for name, solver in declared(plugin, SMALL).items()
}
IN_A_ROW = """
size_t group_of(uint axis) {{
  const size_t group = get_group_id(0);
  return axis == 0 ? group % {0} : axis == 1 ? group / {0} % {1} : group / {0} / {1};
}}
size_t item_of(uint axis) {{ return group_of(axis) * get_local_size(axis) + get_local_id(axis); }}
#define get_group_id group_of
#define get_global_id item_of
#define get_num_groups(axis) ((axis) == 0 ? {0} : (axis) == 1 ? {1} : {2})
#define get_global_size(axis) (get_num_groups(axis) * get_local_size(axis))
"""


class Rows:
    """Makes launches; ``launched`` names the kernels that were launched in a row."""

    def __init__(self, texts):
        self.texts, self.launched = texts, set()

    def function_of(self, cuda, kernel, queue):
        groups, items = modules._sizes(kernel)
        if modules._too_many(groups):
            self.launched.add(kernel.name)
            program = kernels.build(queue.context, IN_A_ROW.format(*groups) + self.texts[kernel.program])
            size = (int(np.prod(groups)) * items[0], *items[1:])
            kernel = Kernel(program, kernel.name, size, items, kernel.dtypes)
        return HostFunction(cuda, kernel, queue)


@pytest.fixture
def rows(monkeypatch, device, queue):
    """(driver, rows): programs are compiled anew, and their texts known."""
    texts, compiled = {}, kernels._compile

    def noted(context, text, options):
        found = compiled(context, text, options)
        texts[found[0]] = text
        return found

    kernels.forget()
    monkeypatch.setattr(kernels, "_compile", noted)
    with installed(monkeypatch, device) as (driver, _):
        rows = Rows(texts)
        monkeypatch.setattr(stream, "function_of", lambda cuda, kernel: rows.function_of(cuda, kernel, queue))
        yield driver, rows
    kernels.forget()


def check(monkeypatch, driver, problem, name):
    """A call and a captured one by the solver, as a GPU's plan; nothing goes through the host."""
    solver = SOLVERS[name]
    config = first(problem, solver)
    dispatch.forget()
    monkeypatch.setattr(
        stream_call.dispatch, "prepare", lambda problem, context, *_: dispatch.make(solver, config, problem, context)
    )
    operands, expected = make_operands(problem, "real")
    arrays = {key: CudaArray(array) for key, array in operands.present().items()}
    limit = 1e-12 if problem.dtype == "float64" else 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = CudaArray(np.full(problem.out_shape, np.nan, numpy_dtype(problem.dtype)))
        compare(call(problem, arrays, out=out).values, expected, limit, f"{problem} {name}")
        out.values[...] = np.nan
        driver.capturing, driver.graph = True, []
        driver._cuMemFreeAsync = lambda *_: None  # a graph keeps the memory of its own
        call(problem, arrays, out=out)
        graph, driver.capturing, driver.graph = driver.graph, False, None
    assert np.isnan(out.values).all(), "nothing runs before the graph is launched"
    for launch in graph:
        launch()
    compare(out.values, expected, limit, f"{problem} {name}, captured")
    del driver._cuMemFreeAsync
    driver.blocks.clear()


@pytest.mark.parametrize(
    ("text", "names", "kernels"),
    [
        ("fwd_f64_g3mb3ic9ih7iw6oc12kh3ph1", "im2col implicitgemm.tiled", {"gemm", "pack"}),
        ("bwd_data_f64_nhwc_mb4ic20ih8oc20kh3ph1", "winograd.tiled_f2x3", {"transform_tiles", "gemm", "inverse"}),
        ("bwd_weights_f64_g3mb8ic9ih20oc6kh1", "im2col", {"gemm", "reduce"}),
    ],
)
def test_kernels_find_their_places_in_a_row(rows, monkeypatch, text, names, kernels):
    """CUDA's limits are lowered to one group along y and z, so that small problems meet them."""
    driver, made = rows
    monkeypatch.setattr(modules, "_MAX_GROUPS", (2**31 - 1, 1, 1))
    monkeypatch.setattr(modules, "_DEFAULT_GROUP_SIZE", 1)
    for name in names.split():
        check(monkeypatch, driver, ConvProblem.parse(text), name)
    assert kernels <= made.launched
