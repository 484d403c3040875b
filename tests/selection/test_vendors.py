"""Vendors' shared libraries: what the header says, where libraries are found, and what hostile ones come to."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import types
import warnings

import numpy as np
import pyopencl as cl
import pytest
from anew import read_anew
from vendor_libraries import INCLUDE, compiled, installed, source

import convdispatch as cd
from convdispatch.api.device import DeviceInfo
from convdispatch.device import cuda_driver, runtime
from convdispatch.selection import explanation
from convdispatch.selection.plugins import answer_trial, loader, verdicts
from convdispatch.selection.vendors import abi, discovery
from convdispatch.selection.vendors.library import Library
from convdispatch.tools import doctor

PROBLEM = cd.ConvProblem(mb=1, ic=4, ih=6, iw=6, oc=4, kh=3, kw=3, bias=True)
X, W = np.ones(PROBLEM.x_shape, np.float32), np.ones(PROBLEM.w_shape, np.float32)
CPU = DeviceInfo("a processor", "intel", "cpu", "simd512")


@pytest.fixture
def vendors(tmp_path, monkeypatch, read_anew):
    """A folder that CONVDISPATCH_VENDORS names, in a world of its own."""
    folder = tmp_path / "vendors"
    folder.mkdir()
    monkeypatch.setenv("CONVDISPATCH_VENDORS", str(folder))
    monkeypatch.setattr(verdicts, "TRIES_FIRST", True)
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    read_anew()
    return folder


def only(monkeypatch, *names):
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", ",".join(("im2col", *names)))
    read_anew()


# --- the header ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("compiler", "language"), [("cc", "-std=c99"), ("g++", "-std=c++11")], ids=["C", "C++"])
def test_compilers_agree_with_ctypes_on_every_field(tmp_path, compiler, language):
    """The structures that Python reads from the header's text have the offsets and sizes that a compiler gives them."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    structures = {"memory": abi.Memory, "problem": abi.Problem, "device": abi.Device, "call": abi.Call,
                  "solver": abi.Solver, "plugin": abi.Plugin}  # fmt: skip
    asked, expected = [], []
    for name, structure in structures.items():
        asked.append(f"(unsigned long)sizeof(convdispatch_{name})")
        expected.append(ctypes.sizeof(structure))
        for field, *_ in structure._fields_:
            asked.append(f"(unsigned long)offsetof(convdispatch_{name}, {field})")
            expected.append(getattr(structure, field).offset)
    for code, number in abi.CODES.items():
        asked.append(f"(unsigned long)CONVDISPATCH_{code.upper()}")
        expected.append(number)
    assert len(expected) > 120
    lines = "".join(f'  printf("%lu\\n", {each});\n' for each in asked)
    program = f"#include <convdispatch_plugin.h>\n#include <stdio.h>\nint main(void) {{\n{lines}  return 0;\n}}\n"
    file = tmp_path / ("offsets.c" if compiler == "cc" else "offsets.cpp")
    file.write_text(program)
    flags = [language, "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{INCLUDE}"]
    subprocess.run([compiler, *flags, file, "-o", tmp_path / "offsets"], check=True)
    said = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True).stdout
    assert [int(word) for word in said.split()] == expected


def test_the_header_has_all_of_a_problem():
    problem = cd.ConvProblem.parse("mb2ic6ih9iw8oc4kh3kw2sh2sw1ph1pw0ph_r2dh1dw2g2+bias+residual+leaky_relu(0.25)")
    held = abi.problem_of(problem.replace(layout="nhwc", math="tf32", constant_weights=True))
    fields = {name for name, *_ in abi.Problem._fields_}
    assert {field for field in vars(problem) if not field.startswith("_")} - fields == {
        "bias",
        "residual",
        "accumulate",
        # No library fuses these yet, so it is asked for the problem without them.
        "norm",
        "sums",
    }
    bare = problem.replace(bias=False, residual=False, activation=None)
    assert bytes(abi.problem_of(bare.replace(norm="relu", sums=True))) == bytes(abi.problem_of(bare))
    for name in ("mb", "ic", "ih", "iw", "oc", "oh", "ow", "kw", "sh", "ph", "ph_r", "dw", "g", "ndim"):
        assert getattr(held, name) == getattr(problem, name), name
    codes = abi.CODES
    assert held.epilogue == codes["bias"] | codes["residual"] | codes["activation"]
    assert (held.activation, list(held.activation_parameters)) == (b"leaky_relu", [0.25, 0.0])
    assert (held.direction, held.dtype, held.out_dtype) == (codes["forward"], codes["float32"], codes["float32"])
    assert (held.layout, held.math, held.constant_weights) == (codes["nhwc"], codes["math_tf32"], 1)
    quantized = abi.problem_of(cd.ConvProblem.parse("mb1ic4ih8oc4kh3").replace(dtype="uint8", out_dtype="float16"))
    assert (quantized.dtype, quantized.out_dtype) == (codes["uint8"], codes["float16"])
    narrow = abi.problem_of(cd.ConvProblem(ic=4, oc=4, dtype="float8_e4m3", out_dtype="float8_e5m2"))
    assert (narrow.dtype, narrow.out_dtype) == (codes["float8_e4m3"], codes["float8_e5m2"]) == (8, 9)


# --- where libraries are found ---------------------------------------------------------------------------------------


def test_the_order_of_vendors(tmp_path, monkeypatch):
    """The system's folder by file name, then the user's; or what the variable names, and nothing else."""
    system, user = tmp_path / "etc", tmp_path / "user" / "convdispatch" / "vendors"
    for folder, names in ((system, ("b.icd", "a.icd", "a.txt")), (user, ("a.icd",))):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text("libx.so\n")
    monkeypatch.delenv("CONVDISPATCH_VENDORS", raising=False)
    monkeypatch.setattr(discovery, "SYSTEM_FOLDER", system)
    monkeypatch.setattr(discovery, "user_folder", lambda kind: user.parent)
    assert list(discovery.vendor_files()) == [system / "a.icd", system / "b.icd", user / "a.icd"]
    library = tmp_path / "libacme.so.1"
    monkeypatch.setenv("CONVDISPATCH_VENDORS", f"{library}:{user}:{tmp_path / 'gone.icd'}")
    assert list(discovery.vendor_files()) == [library, user / "a.icd", tmp_path / "gone.icd"]
    assert [discovery.name_of(file) for file in discovery.vendor_files()] == ["acme", "a", "gone"]
    assert discovery.library_of(user / "a.icd") == "libx.so", "the dynamic linker looks for a bare name"
    (user / "a.icd").write_text("\n  lib/x.so  \n")
    assert discovery.library_of(user / "a.icd") == str(user / "lib/x.so")


SOLVER = {"solver": {}}
AT_LOAD = {
    "symbol": (source(SOLVER, symbol="other"), "exports no function convdispatch_get_plugin"),
    "refuses": (
        source(SOLVER, getter="(void)version; return NULL;"),
        "must return a table of version 1 to 2, got no table",
    ),
    "older": (source(SOLVER, version="0"), "must return a table of version 1 to 2, got a table of version 0"),
    "newer": (source(SOLVER, version="3"), "must return a table of version 1 to 2, got a table of version 3"),
    "small": (
        source(SOLVER, size="sizeof(convdispatch_plugin) - 8"),
        f"its table must have struct_size {ctypes.sizeof(abi.Plugin)} in version 2",
    ),
    "large": (source(SOLVER, size="0xffffffffu"), "got 4294967295: compile the library for this machine"),
    "solver_size": (source({"a": {}, "solver": {"size": "8"}}), "its solver 1 must have struct_size"),
    "old_size": (source(SOLVER, version="1"), f"must have struct_size {abi.Solver.packed.offset} in version 1"),
    "half_packs": (source({"solver": {"pack": "return 0;"}}), "bad.solver: packed and pack must both be 0, or neither"),
    "many": (source(SOLVER, count="1000000"), "its table must list at most 1000 solvers, got 1000000"),
    "absent": (source(SOLVER, listed="NULL"), "its table must list at most 1000 solvers, got 1 at None"),
    "hole": (source(SOLVER, count="2"), "its solver 1 is NULL"),
    "no_plan": (source({"solver": {"plan": "NULL", "free": "NULL"}}), "bad.solver: plan, free must not be 0"),
    "nowhere": (source({"solver": {"places": "0"}}), "bad.solver: places must not be 0"),
    "bits": (
        source({"solver": {"promises": "0x80000001"}}),
        "bad.solver: promises must be bits of 0x3f, got 0x80000001",
    ),
    "nameless": (source(SOLVER, name=""), "its name must be 1 to 64 letters, digits, _ and -, got ''"),
    "odd_name": (source(SOLVER, name=r"a\nb"), r"its name must be 1 to 64 letters, digits, _ and -, got 'a\nb'"),
    "foreign": (source({"solver": {"name": '"im2col"'}}), "the name of its solver 0 must be bad.VARIANT, got 'im2col'"),
}
FILES = {
    "empty": ("\n", "must be one line, a library's path, got 0 lines"),
    "two": ("a.so\nb.so\n", "must be one line, a library's path, got 2 lines"),
    "text": ("./bad.icd\n", "the library does not load: "),
    "missing": ("./nothing.so\n", "the library does not load: "),
    "binary": ("\0\n", "must be one line, a library's path, got 1 lines"),
}


ENDS = {
    "crash": (source(SOLVER, load="raise(SIGSEGV);"), "it crashes as it is imported (SIGSEGV); skipped"),
    "exits": (source(SOLVER, load="_exit(3);"), "it ends the process as it is imported (exit 3); skipped"),
}


@pytest.mark.parametrize("kind", AT_LOAD)
def test_a_table_that_is_wrong_is_a_sentence(tmp_path, kind):
    text, reason = AT_LOAD[kind]
    with pytest.raises(cd.PluginError, match=re.escape(reason)):
        Library(compiled(tmp_path / "libbad.so", text))


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_names_no_library_is_a_sentence(tmp_path, kind):
    (tmp_path / "bad.icd").write_text(FILES[kind][0])
    with pytest.raises(cd.PluginError, match=re.escape(FILES[kind][1])):
        Library(tmp_path / "bad.icd")


def test_what_does_not_load_is_a_sentence_of_doctor_and_no_others_loss(vendors, monkeypatch):
    """What ends the process does so in a child."""
    for name, (text, _) in ENDS.items():
        installed(vendors, name, text)
    installed(vendors, "older", AT_LOAD["older"][0])
    (vendors / "folder.icd").mkdir()
    installed(vendors, "im2col", source(SOLVER, name="other"))  # a plugin's name, and then a solver's, that others have
    installed(vendors, "zz_good", source({"a": {}}, name="good", unavailable='strcpy(text, "no card"); return 7;'))
    installed(vendors, "zz_last", source({"a": {}}, name="good"))
    names = ["im2col", *(file.stem for file in vendors.glob("*.icd"))]
    only(monkeypatch, *names)
    report = doctor.examine(probe=False)
    found = {entry["name"]: entry for entry in report.plugins if entry["source"].startswith(str(vendors))}
    assert not report.healthy
    expected = {name: reason for name, (_, reason) in ENDS.items()}
    expected |= {"older": AT_LOAD["older"][1], "folder": "cannot be read"}
    for name, reason in expected.items():
        assert found[name]["status"] == "failed", name
        assert reason in found[name]["reason"], found[name]["reason"]
        assert found[name]["mend"], name
    assert (found["im2col"]["status"], found["im2col"]["reason"]) == (
        "duplicate",
        "another plugin named 'im2col' is loaded",
    )
    assert (found["zz_good"]["status"], found["zz_good"]["version"]) == ("loaded", "Acme 1.2")
    assert (found["zz_good"]["solvers"], found["zz_good"]["reason"]) == (("good.a",), "no card")
    assert "'good.a' is already provided by plugin 'zz_good'" in found["zz_last"]["reason"]
    assert "im2col" in loader.plugins().solvers
    assert report.vendor_sources == [str(vendors)]


def test_a_library_that_hangs_as_it_loads(vendors, monkeypatch):
    only(monkeypatch, "bad")
    monkeypatch.setattr(verdicts, "IMPORT_S", 3.0)
    installed(vendors, "bad", source(SOLVER, load=f'fclose(fopen("{vendors}/begun", "w")); sleep(1000);'))
    with pytest.warns(cd.ConvDispatchWarning, match="it hangs as it is imported: not done within 3 s; skipped"):
        assert "bad.solver" not in loader.plugins().solvers
    read_anew()
    began = verdicts.try_import
    monkeypatch.setattr(verdicts, "try_import", lambda *rest: pytest.fail("what is known is not tried again"))
    with pytest.warns(cd.ConvDispatchWarning, match="it hangs as it is imported"):
        loader.plugins()
    monkeypatch.setattr(verdicts, "try_import", began)
    installed(vendors, "bad", source(SOLVER))  # another text is another version
    monkeypatch.setattr(verdicts, "IMPORT_S", 600.0)
    read_anew()
    assert "bad.solver" in loader.plugins().solvers


# --- what solvers answer ---------------------------------------------------------------------------------------------

QUESTIONS = {
    "crashes": ({"rejects": "raise(SIGSEGV); return 0;"}, "quarantined", "its rejects() crashes (SIGSEGV), in a child"),
    "hangs": ({"rejects": "sleep(1000); return 0;"}, "quarantined", "its rejects() hangs: no answer within"),
    "refuses": ({"rejects": 'snprintf(text, size, "%s of %s", "ships only, got a submarine", d->vendor); return 1;'},
                "refused", "ships only, got a submarine of "),
    "silent": ({"rejects": "return 1;"}, "refused", "the library gives no reason"),
    "unended": ({"rejects": "memset(text, 'x', size); return 1;"}, "refused", "x" * 497 + "..."),
    "beyond": ({"rejects": "memset(text, 'x', size + 1); return 1;"}, "quarantined", "it wrote beyond the 512 bytes"),
    "not_text": ({"rejects": r'strcpy(text, "\x1b[31mred \xff"); return 1;'}, "refused", "red �"),
    "odd_code": ({"rejects": "return -5;"}, "quarantined", "its rejects returned -5, no code of the header"),
    "endless": ({"config": "snprintf(text, size, \"%u\", index); return 0;"}, "quarantined",
                "answered more than 1000 configurations"),
    "no_config": ({"config": "return CONVDISPATCH_END;"}, "quarantined", "its configs() answered"),
    "bad_config": ({"config": 'strcpy(text, "no"); return CONVDISPATCH_INTERNAL;'}, "quarantined",
                   "its config returned 7, internal: no"),
    "nan": ({"cost": "*seconds = NAN; return 0;"}, "quarantined", "its cost() answered nan, where None or a finite"),
    "negative": ({"cost": "*seconds = -1; return 0;"}, "quarantined", "its cost() answered -1.0, where None or"),
    "sound": ({"cost": "*seconds = 0.5; return 0;", "workspace": "return CONVDISPATCH_UNKNOWN;",
               "config": 'if (index > 1) return CONVDISPATCH_END; strcpy(text, index ? "b" : "a"); return 0;'},
              "accepted", None),
    "half": ({"dtypes": "1u << CONVDISPATCH_FLOAT16", "rejects": "abort();"}, "refused", "float16 only, got float32"),
    "elsewhere": ({"places": "CONVDISPATCH_CUDA", "rejects": "abort();"}, "refused", "CUDA only, got cpu of intel"),
}  # fmt: skip


def test_each_solver_that_answers_badly_is_a_sentence_of_explain(vendors, monkeypatch):
    """Asked as users' are: in a child first, whose crash or silence is the solver's, and no other solver's."""
    only(monkeypatch, "bad")
    monkeypatch.setattr(answer_trial, "LIMIT_S", 1.5)
    monkeypatch.setattr(answer_trial, "LOAD_S", 500.0)
    installed(vendors, "bad", source({name: parts for name, (parts, *_) in QUESTIONS.items()}))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cd.ConvDispatchWarning)
            found = {verdict.solver: verdict for verdict in explanation.explain(PROBLEM, CPU).verdicts}
    finally:
        answer_trial._end_all()
        answer_trial._children.clear()
    for name, (_, status, reason) in QUESTIONS.items():
        verdict = found[f"bad.{name}"]
        assert verdict.status == status, (name, verdict)
        assert reason is None or reason in verdict.reason, (name, verdict.reason)
    assert found["bad.sound"].predicted_ms == 500
    solver = loader.plugins().solvers["bad.sound"]
    assert list(solver.configs(PROBLEM, CPU)) == [{"config": "a"}, {"config": "b"}]
    assert found["im2col"].status == "chosen"


# --- what plans do ---------------------------------------------------------------------------------------------------

PLANS = {
    "no_plan": ({"plan": 'strcpy(text, "no licence"); return CONVDISPATCH_INTERNAL;'},
                "its plan returned 7, internal: no licence"),
    "null": ({"plan": "return 0;"}, "its plan is NULL"),
    "build": ({"plan": 'strcpy(text, "line 3: no type"); return CONVDISPATCH_BUILD_FAILED;'}, "line 3: no type"),
    "memory": ({"plan": "return CONVDISPATCH_OUT_OF_MEMORY;"}, "no memory"),
    "enqueue": ({"enqueue": 'strcpy(text, "lost the card"); return CONVDISPATCH_LAUNCH_FAILED;'},
                "its enqueue returned 6, launch failed: lost the card"),
    "silent": ({"enqueue": "return -1;"}, "its enqueue returned -1, no code of the header"),
}  # fmt: skip


@pytest.mark.parametrize("place", ["HOST", "OPENCL"])
def test_a_plan_that_fails_is_a_sentence_and_another_solver_computes(device, vendors, monkeypatch, tmp_path, place):
    """Each solver is the preferred one for its own number of images."""
    if place == "HOST" and runtime.device_info(device).type != "cpu":
        pytest.skip("a CPU's host memory only")
    rules = [f"  - when: {{mb: {mb}}}\n    prefer: [bad.{kind}, im2col]\n" for mb, kind in enumerate(PLANS, 1)]
    (tmp_path / "registry.yaml").write_text("version: 1\nrules:\n" + "".join(rules))
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(tmp_path / "registry.yaml"))
    fields = {"places": f"CONVDISPATCH_{place}"}
    installed(vendors, "bad", source({kind: parts | fields for kind, (parts, _) in PLANS.items()}))
    only(monkeypatch, "bad")
    for mb, (kind, (_, reason)) in enumerate(PLANS.items(), 1):
        loader.forget_reported()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            y = cd.conv(np.repeat(X, mb, 0), W)
        assert (y == 36).all(), kind
        words = [str(one.message) for one in said if one.category is cd.ConvDispatchWarning]
        assert any(reason in each and f"bad.{kind}" in each for each in words), (kind, words)


COUNTS = """
const float *x = call->x.base, *w = call->w.base, *b = call->bias.base; float *y = call->y.base;
if (call->struct_size < sizeof *call || call->place != CONVDISPATCH_HOST || call->queue) return CONVDISPATCH_INTERNAL;
if (call->x.size != 4 * 144 || call->w.size != 4 * 144 || call->y.size != 4 * 64 || call->workspace.size != 64)
  return CONVDISPATCH_INTERNAL;
memset(call->workspace.base, 255, 64);
for (int o = 0; o < 4; ++o) for (int i = 0; i < 16; ++i) {
  float sum = b ? b[o] : 0;
  for (int c = 0; c < 4; ++c) for (int k = 0; k < 9; ++k)
    sum += w[(o * 4 + c) * 9 + k] * x[(c * 6 + i / 4 + k / 3) * 6 + i % 4 + k % 3];
  y[o * 16 + i] = sum;
}
return CONVDISPATCH_OK;
"""
SUMS = {"enqueue": COUNTS, "workspace": "*bytes = 64; return 0;", "places": "CONVDISPATCH_HOST", "fuses": "1"}


@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "out of order"])
def test_a_host_library_waits_for_what_is_before_it_and_holds_back_what_is_behind(
    device, vendors, monkeypatch, ordered
):
    """``enqueue`` returns while the queue is blocked; the values are those that earlier commands leave."""
    if runtime.device_info(device).type != "cpu":
        pytest.skip("a CPU's host memory only")
    only(monkeypatch, "bad")
    installed(vendors, "bad", source({"sums": SUMS}))
    context = runtime.context(device)
    properties = 0 if ordered else cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    queue = cl.CommandQueue(context, device, properties=properties)
    plan = loader.plugins().solvers["bad.sums"].plan(context, PROBLEM, {})
    sizes = (X.nbytes, W.nbytes, 4 * 64, 16, plan.workspace_size)
    x, w, y, bias, workspace = (cl.Buffer(context, cl.mem_flags.READ_WRITE, size) for size in sizes)
    gate, zero, one, two = cl.UserEvent(context), np.float32(0), np.float32(1), np.float32(2)
    fills = ((x, zero, X.nbytes, [gate]), (w, one, W.nbytes, None), (bias, two, 16, None))
    events = [cl.enqueue_fill_buffer(queue, each, value, 0, size, wait_for=after) for each, value, size, after in fills]
    events.append(cl.enqueue_fill_buffer(queue, x, one, 0, X.nbytes, wait_for=[events[0]]))
    event = plan.enqueue(queue, x, w, y, workspace, events, bias=bias)
    result = np.zeros(64, np.float32)
    read = cl.enqueue_copy(queue, result, y, wait_for=[event], is_blocking=False)
    assert event.command_execution_status != cl.command_execution_status.COMPLETE
    gate.set_status(cl.command_execution_status.COMPLETE)
    read.wait()
    np.testing.assert_array_equal(result, np.full(64, 38, np.float32))


def test_a_library_of_the_first_version_still_computes(device, vendors, monkeypatch):
    if runtime.device_info(device).type != "cpu":
        pytest.skip("a CPU's host memory only")
    only(monkeypatch, "bad")
    older = {"size": "offsetof(convdispatch_solver, packed)", "dtypes": "1u << 1 | 1u << CONVDISPATCH_FLOAT8_E5M2"}
    installed(vendors, "bad", source({"sums": SUMS | older}, version="1"))
    solver = loader.plugins().solvers["bad.sums"]
    assert (solver.dtypes, solver.spreads_nonfinite) == ({"float32", "float8_e5m2"}, None)
    with cd.policy(solver="bad.sums"):
        assert (cd.conv(X, cd.constant(W), np.full(4, 2, np.float32)) == 38).all()


PACKED = COUNTS.replace("call->w.size != 4 * 144", "call->w.size != 8 * 144").replace("w[(", "2 * w[144 + (")
PACK = """
if (call->w.size != 4 * 144 || call->y.size != 8 * 144) return CONVDISPATCH_INTERNAL;
if (call->x.base || call->workspace.base) return CONVDISPATCH_INTERNAL;
const float *w = call->w.base; float *to = call->y.base;
for (int i = 0; i < 144; ++i) to[i] = NAN, to[144 + i] = w[i] / 2;
FILE *file = fopen("FOLDER/packed", "a"); fputs("x", file); fclose(file);
return CONVDISPATCH_OK;
"""


def test_a_library_packs_constant_weights_once(device, vendors, monkeypatch):
    """The packed form is as long again as the weights and holds half of each: only with it are sums right."""
    if runtime.device_info(device).type != "cpu":
        pytest.skip("a CPU's host memory only")
    only(monkeypatch, "bad")
    parts = {"enqueue": PACKED, "pack": PACK.replace("FOLDER", str(vendors)),
             "packed": "*bytes = p->constant_weights ? 8 * 144 : 0; return 0;",
             "rejects": 'if (p->constant_weights) return 0; strcpy(text, "constant weights only"); return 1;',
             "promises": "CONVDISPATCH_CONFINES_NONFINITE"}  # fmt: skip
    installed(vendors, "bad", source({"sums": SUMS | parts}))
    random, weights = np.random.default_rng(1), []
    with cd.policy(solver="bad.sums", strict_nan=True):
        for _ in range(2):
            w = random.integers(-3, 4, W.shape).astype(np.float32)
            weights.append(cd.constant(w))
            for _ in range(2):
                x = random.integers(-3, 4, X.shape).astype(np.float32)
                windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
                expected = np.einsum("ockl,nchwkl->nohw", w, windows)
                np.testing.assert_array_equal(cd.conv(x, weights[-1]), expected)
    assert (vendors / "packed").read_text() == "xx"


SEEN = r"""
snprintf(text, size, "place %u queue %p x %p w %p y %p bias %p of %u", call->place, call->queue, call->x.base,
         call->w.base, call->y.base, call->bias.base, (unsigned)call->bias.size);
return CONVDISPATCH_LAUNCH_FAILED;
"""


def test_a_cuda_library_gets_addresses_and_the_stream(vendors, monkeypatch):
    """On a caller's stream as they are; beside an OpenCL queue those of stand-ins, in the queue's order."""
    from convdispatch.device.cuda import bridge, stream
    from convdispatch.selection.vendors import plan as plans

    only(monkeypatch, "bad")
    installed(vendors, "bad", source({"cuda": {"enqueue": SEEN, "fuses": "1", "places": "CONVDISPATCH_CUDA"}}))
    gpu = DeviceInfo("a card", "nvidia", "gpu", "sm_90")
    solver = loader.plugins().solvers["bad.cuda"]
    assert (solver.place(gpu), solver.serves(gpu)) == (0, "CUDA only, got gpu of nvidia")
    monkeypatch.setattr(cuda_driver, "unavailable", lambda: None)
    assert (solver.place(gpu), solver.rejects(PROBLEM, gpu)) == (abi.CODES["cuda"], None)
    assert abi.device_of(gpu, 4).cuda_capability == 90
    monkeypatch.setattr(plans.Bridge, "prepare", lambda context, device: None)
    context, notes = types.SimpleNamespace(devices=[None]), []
    made = plans.VendorPlan(solver._table, 1, (abi.CODES["cuda"], 0, 0), context, PROBLEM)
    current = types.SimpleNamespace(current=lambda: warnings.catch_warnings())
    place = types.SimpleNamespace(current=current.current, kind="cuda", number=0, recent=[])
    memory = [stream.StreamMemory(address, 1 << 10) for address in (0x1000, 0x2000, 0x3000, 0x4000)]
    with pytest.raises(cd.PluginError, match=r"place 4 queue 0x77 x 0x1000 w 0x2000 y 0x3000 bias 0x4000 of 16$"):
        made.enqueue(stream.CudaStream(place, 0x77), *memory[:3], None, bias=memory[3])

    class FakeBridge:
        cuda, stream = current, ctypes.c_void_p(0x88)
        __enter__ = __exit__ = lambda *rest: None
        shares = lambda self, size: True  # noqa: E731
        allocate = lambda self, size: memory[3]  # noqa: E731
        copy = lambda self, *given: notes.append(given[:3])  # noqa: E731
        enter = lambda self, events: notes.append("enter")  # noqa: E731

    monkeypatch.setattr(plans, "bridge_of", lambda queue: FakeBridge())
    monkeypatch.setattr(bridge, "cuda_address", lambda memory: None if memory == "foreign" else memory.address)
    with pytest.raises(cd.PluginError, match=r"place 4 queue 0x88 x 0x4000 w 0x2000 y 0x3000 bias 0x1000 of 16$"):
        made.enqueue(None, "foreign", memory[1], memory[2], None, bias=memory[0])
    assert notes == [(memory[3], "foreign", X.nbytes), "enter"]


def test_the_command_names_the_headers_folder():
    from click.testing import CliRunner

    from convdispatch.tools.cli import main

    said = CliRunner().invoke(main, ["config", "--include"]).output
    assert said.strip() == str(INCLUDE)
    assert re.search(r"PLUGIN_VERSION 2$", (INCLUDE / "convdispatch_plugin.h").read_text(), re.MULTILINE)
