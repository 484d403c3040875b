"""A solver declares its dtypes: it is asked about no other, and a new row of the table is offered to nobody unasked."""

from __future__ import annotations

import pytest
from plans import LARGE

from convdispatch import ConvProblem
from convdispatch.api import BuildFailed, ConvDispatchWarning, Declared, build, kernel_text
from convdispatch.api.dtypes import ALL_DTYPES, DTYPES, storage_macros
from convdispatch.measurement.conformance import contract
from convdispatch.measurement.conformance.memory import Fault
from convdispatch.selection import solver_query
from convdispatch.selection.explanation import explain
from convdispatch.selection.plugins.loader import plugins
from convdispatch.selection.solver_query import query

PLUGIN = """
from convdispatch.api import Solver, hookimpl
asked = []
class Made(Solver):
    def __init__(self, name, **traits):
        self.name = "made." + name
        vars(self).update(traits)
    def rejects(self, problem, device):
        asked.append((self.name, problem.dtype, problem.direction))
    def plan(self, context, problem, config):
        raise NotImplementedError
@hookimpl
def convdispatch_solvers(): return [
    Made("silent"), Made("single", dtypes={"float32"}), Made("older", quantized=True),
    Made("turned", dtypes={"fwd": ["float32", "float16"], "bwd_data": ("float32",)})]
"""
ANY = "float32, float64, float16, bfloat16"
CASES = [
    ("silent", "f64_mb1ic4ih5oc4kh3", None),
    ("silent", "u8s8u8_mb1ic4ih5oc4kh3", f"{ANY} only, got uint8"),
    ("single", "bf16_mb1ic4ih5oc4kh3", "float32 only, got bfloat16"),
    ("single", "u8s8u8_mb1ic4ih5oc4kh3", "float32 only, got uint8"),
    ("single", "bwd_weights_mb1ic4ih5oc4kh3", None),
    ("older", "s8s8f32_mb1ic4ih5oc4kh3", None),
    ("older", "mb1ic4ih5oc4kh3", "int8, uint8 only, got float32"),
    ("turned", "f16_mb1ic4ih5oc4kh3", None),
    ("turned", "bwd_data_f16_mb1ic4ih5oc4kh3", "float32 only, got float16"),
    ("turned", "bwd_weights_mb1ic4ih5oc4kh3", "other directions only, got bwd_weights"),
]


@pytest.fixture
def made(tmp_path, monkeypatch, read_anew):
    """The module of PLUGIN, or of another text, beside this package's plugins."""
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path))

    def load(text=PLUGIN):
        (tmp_path / "made.py").write_text(text)
        read_anew()
        solver_query.forget()
        return plugins()

    return load


def asked_of(solver):
    return type(solver).rejects.__globals__["asked"]


@pytest.mark.parametrize(("name", "text", "words"), CASES)
def test_nobody_is_asked_about_a_dtype_that_it_does_not_declare(made, name, text, words):
    solver, problem = made().solvers[f"made.{name}"], ConvProblem.parse(text)
    found = {verdict.solver: verdict.reason for verdict in explain(problem, LARGE).verdicts}
    called = ("made." + name, problem.dtype, problem.direction) in asked_of(solver)
    assert (called, found.get(solver.name) or None) == (words is None, words)
    if words:  # the kit does not ask either
        before = len(asked_of(solver))
        assert contract.answer(solver, problem, LARGE) == words
        assert len(asked_of(solver)) == before


@pytest.mark.parametrize("dtypes", ["'float32'", "3", "[3]", "{'forward': ['float32']}", "{'fwd': 'float32'}"])
def test_what_is_no_set_of_names_is_refused_at_load(made, dtypes):
    with pytest.warns(
        ConvDispatchWarning, match=r"made.single.dtypes is a set of names such as 'float32', or one a dir"
    ):
        assert "made.single" not in made(PLUGIN.replace('dtypes={"float32"}', f"dtypes={dtypes}")).solvers


def test_the_kit_knows_a_misspelt_dtype(made):
    solver = made(PLUGIN.replace('"float32"}', '"float32", "flaot16"}')).solvers["made.single"]
    with pytest.raises(Fault, match="got flaot16"):
        contract.statements(solver, ConvProblem.parse("mb1ic4ih5oc4kh3"), LARGE, {})


def test_a_new_dtype_of_the_table_is_offered_to_no_solver(monkeypatch):
    for table in (DTYPES, ALL_DTYPES):
        monkeypatch.setitem(table, "float7", DTYPES["float16"]._replace(short="f7"))
    for direction in ("fwd", "bwd_data", "bwd_weights"):
        problem = ConvProblem.parse(f"{direction}_f7_mb1ic16ih9oc16kh3")
        for name, solver in plugins().solvers.items():
            assert query(solver, problem, LARGE).refused.endswith(" only, got float7"), name


def test_a_device_that_lacks_the_dtype_is_named():
    lacking = LARGE.__class__(**{**vars(LARGE), "fp64": False})
    words = f"float64 needs cl_khr_fp64, which {LARGE.name} lacks"
    assert query(plugins().solvers["im2col"], ConvProblem.parse("f64_mb1ic4ih5oc4kh3"), lacking).refused == words


def test_a_declaration_says_it_without_importing_its_solver():
    declared = Declared("no.such.module", "Nothing", name="nothing", dtypes=("bfloat16",))
    assert query(declared, ConvProblem.parse("mb1ic4ih5oc4kh3"), LARGE).refused == "bfloat16 only, got float32"
    silent = Declared("no.such.module", "Nothing", name="nothing")
    assert query(silent, ConvProblem.parse("u8s8u8_mb1ic4ih5oc4kh3"), LARGE).refused == f"{ANY} only, got uint8"


@pytest.mark.parametrize(
    ("file", "says"), [("lanes.cl", "lanes.cl"), ("vectors.cl", "vectors.cl"), ("words.cl", "vectors.cl")]
)
def test_a_text_that_has_no_vectors_of_a_dtype_does_not_compile(queue, file, says):
    text = (
        storage_macros("float32").replace("FLOAT32", "FLOAT7") + "#define LANES 4\n#define V float4\n#define VECTOR 4\n"
    )
    with pytest.raises(BuildFailed, match=f"{says} has no vectors of this dtype"):
        build(queue.context, text + kernel_text("convdispatch.api", file) + "kernel void k(global int *p) { *p = 1; }")
