"""What a machine's earlier processes chose is known to the next, until anything that a choice follows from changes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import convdispatch as cd
from convdispatch import inference
from convdispatch.api.policy import Policy, policy
from convdispatch.api.problem import ConvProblem
from convdispatch.device import rates, runtime
from convdispatch.device.cache import keys, store
from convdispatch.nn import Conv2d
from convdispatch.selection import decision_store, dispatch, solver_query
from convdispatch.selection.choice import lockfile, ranking
from convdispatch.selection.plugins import loader
from convdispatch.selection.records import perfdb as records
from convdispatch.selection.records.perfdb import user_folder

CHOSEN = {"solver": "im2col", "config": {"tile": 8, "gemm": {"kc": 27}}, "source": "predicted 0.1 ms", "math": "ieee"}
KEY = "fwd_f32_mb1ic3ih9iw9oc8kh3kw3"


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    monkeypatch.setenv("CONVDISPATCH_RATES", str(tmp_path / "rates"))
    return tmp_path / "kernels"


@pytest.fixture(scope="module")
def device():
    return runtime.devices()[0]


class Process:
    """What the next process reads and writes."""

    def __init__(self, device):
        decision_store.forget()
        self.device = runtime.device_info(device)

    def put(self, table, key, value):
        store.TABLES[table].put(decision_store.key(self.device, key), value, key)

    def get(self, table, key):
        return store.TABLES[table].get(decision_store.key(self.device, key))


another_process = Process


def test_the_next_process_knows_it(device):
    another_process(device).put("decisions", KEY, CHOSEN)
    assert another_process(device).get("decisions", KEY) == CHOSEN
    assert another_process(device).get("decisions", KEY + "+bias") is None
    assert another_process(device).get("forms", KEY) is None


def test_a_later_decision_replaces_an_earlier_one(device):
    other = {**CHOSEN, "solver": "fft.cpu"}
    for each in (CHOSEN, CHOSEN, other):
        another_process(device).put("decisions", KEY, each)
    assert another_process(device).get("decisions", KEY) == other


def _record(device, monkeypatch, tmp_path):
    user_folder().mkdir(parents=True)
    (user_folder() / "a.jsonl").write_text("{}")


def _record_of_a_device(device, monkeypatch, tmp_path):
    (user_folder() / "cpu-one").mkdir(parents=True)
    another_process(device).put("decisions", KEY, CHOSEN)
    (user_folder() / "cpu-one" / "a.json").write_text("[]")


def _lock(device, monkeypatch, tmp_path):
    monkeypatch.setenv("CONVDISPATCH_LOCK", str(tmp_path / "lock"))
    another_process(device).put("decisions", KEY, CHOSEN)
    (tmp_path / "lock").write_text("{}")


def _rate(device, monkeypatch, tmp_path):
    path = rates.place(runtime.device_info(device))
    path.parent.mkdir(parents=True)
    path.write_text("{}")


def _registry(device, monkeypatch, tmp_path):
    (tmp_path / "registry.yaml").write_text("rules: []\n")
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(tmp_path / "registry.yaml"))


def _variable(device, monkeypatch, tmp_path):
    monkeypatch.setenv("CONVDISPATCH_ANYTHING", "1")


def _compiler(device, monkeypatch, tmp_path):
    monkeypatch.setenv("CL_CONFIG_CPU_TARGET_ARCH", "core-avx2")


def _compute_units(device, monkeypatch, tmp_path):
    known = runtime.device_info(device)
    other = dataclasses.replace(known, compute_units=known.compute_units + 1)
    monkeypatch.setattr(runtime, "device_info", lambda device: other)


def _driver(device, monkeypatch, tmp_path):
    other = dataclasses.replace(runtime.device_info(device), driver="1.2.3")
    monkeypatch.setattr(runtime, "device_info", lambda device: other)


def _plugin_version(device, monkeypatch, tmp_path):
    loaded = loader.plugins()
    monkeypatch.setattr(loaded, "fingerprints", loaded.fingerprints | {"im2col": "2.0 abc"})


def _package(device, monkeypatch, tmp_path):
    stamp = keys.stamp
    monkeypatch.setattr(keys, "stamp", lambda home: stamp(home) + (" edited" if home == "convdispatch.nn" else ""))


@pytest.mark.parametrize(
    "change",
    [_record, _record_of_a_device, _lock, _rate, _registry, _variable, _compiler, _compute_units, _driver,
     _plugin_version, _package],
)  # fmt: skip
def test_what_a_decision_follows_from_asks_anew(device, change, monkeypatch, tmp_path):
    another_process(device).put("decisions", KEY, CHOSEN)
    assert another_process(device).get("decisions", KEY) == CHOSEN
    change(device, monkeypatch, tmp_path)
    assert another_process(device).get("decisions", KEY) is None


def test_another_policy_is_another_decision(device, asked):
    planned(device, asked)
    with policy(workspace_limit=1 << 20):
        assert "rejects" in planned(device, asked)[1]
        assert not planned(device, asked)[1]
    assert not planned(device, asked)[1]


def test_a_disk_that_refuses_keeps_nothing_and_says_nothing(device, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (str(tmp_path / "file" / "below"), "off"):
        monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", folder)
        another_process(device).put("decisions", KEY, CHOSEN)
        assert another_process(device).get("decisions", KEY) is None


# --- who reads it ----------------------------------------------------------------------------------------------------

PROBLEM = ConvProblem.parse(KEY)


@pytest.fixture
def asked(monkeypatch):
    """What solvers were asked, beside whether they serve the device."""
    found, ask = [], solver_query.ask
    monkeypatch.setattr(solver_query, "ask", lambda solver, what, *more: found.append(what) or ask(solver, what, *more))
    return found


def planned(device, asked):
    """What runs the problem in a new process, and what solvers were asked for it."""
    dispatch.forget()
    asked.clear()
    prepared = dispatch.prepare(PROBLEM, runtime.context(device))
    return prepared, {what for what in asked if what != "serves"}


def test_a_second_process_ranks_nothing(device, asked):
    """Also of the layouts that a net might be built in: ``choices`` are what nets ask."""
    first, what = planned(device, asked)
    assert {"rejects", "configs"} <= what
    again, what = planned(device, asked)
    assert not what
    assert (again.solver.name, again.config, again.math) == (first.solver.name, first.config, first.math)
    assert again.source == first.source
    info, policy = runtime.device_info(device), Policy()
    asked.clear()
    found = decision_store.choices(PROBLEM, info, policy)
    assert (found.first.solver.name, found.first.config) == (first.solver.name, first.config)
    assert not {"rejects", "configs", "cost"} & set(asked)
    assert [each.solver.name for each in found] == [each.solver.name for each in ranking.rank(PROBLEM, info)]


BAD = [
    {**CHOSEN, "solver": "nobody"},
    {**CHOSEN, "solver": "im2col+sideways"},
    {**CHOSEN, "config": None},
    {**CHOSEN, "math": "fast"},  # less accurate than the problem
    {"solver": "im2col"},
]


@pytest.mark.parametrize("decision", BAD, ids=str)
def test_a_decision_that_means_nothing_is_taken_anew(device, asked, decision):
    first, _ = planned(device, asked)
    another_process(device).put("decisions", KEY, decision)
    again, what = planned(device, asked)
    assert "rejects" in what
    assert (again.solver.name, again.config) == (first.solver.name, first.config)


def test_what_was_set_aside_is_not_stored_and_not_run(device, asked):
    """A stored solver that fails here is replaced in this process; the next one tries it again."""
    first, _ = planned(device, asked)
    info = runtime.device_info(device)
    with pytest.warns(match="is set aside"):
        dispatch.quarantine(PROBLEM, info, first.solver.name, "it failed")
    other = dispatch.prepare(PROBLEM, runtime.context(device))
    assert other.solver.name != first.solver.name
    again, what = planned(device, asked)
    assert (again.solver.name, what) == (first.solver.name, set())


def test_a_lock_file_comes_first_and_is_not_stored(device, asked, monkeypatch):
    first, _ = planned(device, asked)
    other = ranking.rank(PROBLEM, runtime.device_info(device))[-1]
    with monkeypatch.context() as patched:
        patched.setattr(lockfile, "_agreed", {KEY: lockfile.Decision(other.solver.name, dict(other.config))})
        assert planned(device, asked)[0].solver.name == other.solver.name
    assert planned(device, asked)[0].solver.name == first.solver.name


def test_records_that_no_file_holds_are_ranked(device, asked, monkeypatch):
    planned(device, asked)
    monkeypatch.setattr(records.PerfDB, "is_partly_in_memory", lambda *_: True)
    assert "rejects" in planned(device, asked)[1]


def test_a_solver_that_no_plugin_brought_is_ranked(device, asked, monkeypatch):
    planned(device, asked)
    loaded = loader.plugins()
    monkeypatch.setattr(loaded, "loaded_as", {})
    assert "rejects" in planned(device, asked)[1]


# --- every door reads it, whichever decided --------------------------------------------------------------------------

X, W = np.ones((1, 3, 9, 9), np.float32), np.ones((8, 3, 3, 3), np.float32)


def _conv():
    return cd.conv(X, W)


def _net():
    layer = Conv2d(3, 8, 3)
    layer.eval()
    return inference.build(layer, X.shape, recall=True)(X)


def _onnx():
    pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
    from onnx_models import model, node

    from convdispatch.onnx import InferenceSession

    content = model([node("Conv", "x w", "y")], {"x": X.shape}, ["y"], {"w": W}).SerializeToString()
    return InferenceSession(content).run(None, {"x": X})


def _torch():
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    import convdispatch.torch as ct

    with ct.enable(), torch.no_grad():
        return torch.nn.functional.conv2d(torch.from_numpy(X), torch.from_numpy(W))


def _jax():
    jax = pytest.importorskip("jax", reason="jax is not installed (extra: jax)")
    from convdispatch.jax import conv_general_dilated

    return conv_general_dilated(jax.numpy.asarray(X), jax.numpy.asarray(W), (1, 1), "VALID")


@pytest.mark.parametrize("door", [_conv, _net, _onnx, _torch, _jax])
def test_a_second_process_ranks_nothing_by_any_door(door, device, asked):
    dispatch.forget()
    door()
    assert {"rejects", "configs"} <= set(asked), "the first one ranks"
    dispatch.forget()
    asked.clear()
    door()
    assert not {"rejects", "configs"} & set(asked)


@pytest.mark.parametrize("door", [_torch, _jax])
def test_what_conv_decided_other_doors_read(door, device, asked):
    door()  # whatever is tried once a process
    _conv()
    dispatch.forget()
    store.DECISIONS.clear()
    _conv()
    dispatch.forget()
    asked.clear()
    door()
    assert not {"rejects", "configs"} & set(asked)
    assert store.DECISIONS.size()[0] == 1


def test_sources_that_a_process_has_not_imported_count_as_in_one_that_has(monkeypatch):
    """Else what conv() decided is not found where nets are built, which import more of this package."""
    imported = [keys.stamp.__wrapped__(f"convdispatch.{zone}") for zone in decision_store.SOURCES]
    for zone in decision_store.SOURCES:
        monkeypatch.delitem(keys.sys.modules, f"convdispatch.{zone}", raising=False)
    assert [keys.stamp.__wrapped__(f"convdispatch.{zone}") for zone in decision_store.SOURCES] == imported
    assert len({text.rpartition(" ")[2] for text in imported}) == len(imported), "none is of nothing"
