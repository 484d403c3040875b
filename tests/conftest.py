"""Options, devices and isolation shared by all tests.

``--all-devices`` runs device tests on every OpenCL device that works, not only on a CPU or ``CONVDISPATCH_DEVICE``;
``--full`` runs whole products of shapes, layouts and dtypes instead of a thinned selection; ``--solver GLOB`` pins
another solver in the shape tests than the universal one (``*`` leaves the choice to dispatch): each other plugin has
tests of its own.
``--processor avx2`` (or another of ``PROCESSORS``) runs all on a lesser processor than the machine's, and the tests of
choice as on a greater one.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Rooms are named as what they test, ``torch`` and ``onnx`` too: where such a library is not installed, pytest's own
# entry for this folder would let a room be imported in its place.
SUPPORT = Path(__file__).parent / "support"
ROOT = SUPPORT.parents[1]
sys.path[:] = [str(SUPPORT), str(ROOT), *(entry for entry in sys.path if entry != str(SUPPORT.parent))]

from processors import DESCRIBED, PROCESSORS, become  # noqa: E402 (the path stands above)

# A test must not see the records, registry or plugins of the user who runs it, nor leave any behind. Set always, for
# workers of xdist inherit the variables of the process that started them, and would share its records.
_HOME = Path(tempfile.mkdtemp(prefix="convdispatch-tests-"))
os.environ["CONVDISPATCH_DB"] = str(_HOME / "records")
os.environ.setdefault("CONVDISPATCH_PLUGIN_DIR", str(_HOME / "plugins"))  # a test that runs pytest names its own
os.environ.setdefault("CONVDISPATCH_RATES", "off")  # whoever measured first would change what is predicted
os.environ.pop("CONVDISPATCH_REGISTRY", None)
# Several workers share the cores: threads that spin while they wait for a core made references 50 times slower. Workers
# of xdist inherit these before they load NumPy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("CONVDISPATCH_CHECK", "1")  # the first result of each form is compared with PyTorch's


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("convdispatch")
    group.addoption("--all-devices", action="store_true", help="every OpenCL device that works, not only the default")
    group.addoption("--full", action="store_true", help="whole products of shapes, layouts and dtypes")
    group.addoption("--processor", choices=PROCESSORS, help="be this one, or, of a greater one, choose as there")
    group.addoption("--solver", default="im2col*", help="the solver of the shape tests (name or glob)")


def pytest_configure(config: pytest.Config) -> None:
    if name := config.getoption("--processor"):
        become(name)
    if importlib.util.find_spec("hypothesis") is not None:
        from hypothesis import settings

        settings.register_profile("no deadline", deadline=None)  # beside other work any example may take long
        settings.load_profile("no deadline")
    on_a_cpu()
    import as_gpu

    as_gpu.optimised = config.getoption("--full")
    config.addinivalue_line("markers", "computes: its kernels run for longer than a compiler optimises them")
    config.addinivalue_line("markers", "full: run with --full, else not even collected")


def on_a_cpu() -> None:
    """Beside a GPU, too, the device of tests is a CPU, whose kernels and stand-ins they know; a GPU's ask for it."""
    if "CONVDISPATCH_DEVICE" in os.environ:
        return
    default = _devices(everything=False)
    if default and _type(default[0]) != "cpu":
        from convdispatch.device import runtime

        for device in _devices(everything=True):
            if _type(device) == "cpu":
                os.environ["CONVDISPATCH_DEVICE"] = runtime.address(device)
                break


def _type(device: Any) -> str:
    from convdispatch.device import runtime

    return runtime.device_info(device).type


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


MANY = 100_000
"""Objects, as PyTorch's compiler and the tables of its tests are when they are imported."""


def settle() -> None:
    """Python's collector leaves out what is alive now, and looks once through what it left out before.

    Tests, their items and PyTorch's modules are a million objects that live to the end: it went through them in half a
    second, several hundred times, for tests of leaks and by itself.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session):
    """What collection makes lives to the end, and is no garbage to look for meanwhile."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        settle()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("full")])
        items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """A test that must run what ``--processor`` only describes is skipped."""
    try:
        return (yield)
    except Exception as error:
        if item.config.getoption("--processor") and DESCRIBED in str(error):
            pytest.skip(DESCRIBED)
        raise


def _devices(everything: bool) -> list:
    from convdispatch.api.errors import NoDevice
    from convdispatch.device import runtime

    try:
        default = runtime.default_device()
    except NoDevice:
        return []
    if not everything:
        return [default]
    others = [d for d in runtime.devices() if d != default and runtime.device_info(d).vendor != "oclgrind"]
    return [default, *(device for device in others if runtime.probe(device) is None)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        from convdispatch.device import runtime

        found = _devices(metafunc.config.getoption("--all-devices"))
        skip = pytest.mark.skip(reason="no OpenCL device works; convdispatch doctor says why")
        params = [pytest.param(d, id=runtime.device_info(d).vendor) for d in found] or [
            pytest.param(None, marks=skip, id="none")
        ]
        metafunc.parametrize("device", params, scope="session")


@pytest.fixture(scope="session", autouse=True)
def patience():
    """Ten minutes for what users wait one for: a busy machine's delay would be a verdict on a plugin, which is kept.

    Forms of nets are timed for a moment, not for 0.4 s each: any of them may win.
    """
    from convdispatch.inference import form_benchmark
    from convdispatch.measurement.search import probing, session
    from convdispatch.selection.plugins import answer_trial, loader, verdicts

    verdicts.IMPORT_S = probing.RUN_S = session.LEAST_TRIAL_S = 600.0
    form_benchmark.SAMPLE_S = 0.0
    # Hundreds of plugins, each of a text of its own, would each cost a child or two.
    answer_trial.LIMIT_S, verdicts.TRIES_FIRST = None, False
    # Nor is each packaged one imported in a child for every folder of records: the commands' own processes do so.
    packaged, trial = {each.name for each in loader._candidates() if each.own}, verdicts.trial
    verdicts.trial = lambda words, *more: "" if words[-1] in packaged else trial(words, *more)


@pytest.fixture(scope="module", autouse=True)
def settled():
    """A file begins with few objects that may be garbage, whatever the files before it imported."""
    if "torch._dynamo" in sys.modules:  # nor does it find what Dynamo captured for others
        sys.modules["torch._dynamo"].reset()
    if len(gc.get_objects()) > MANY:
        settle()


@pytest.fixture(scope="module", autouse=True)
def no_race(request):
    """Where a form of a PyTorch graph and inductor would race, the form wins: on a busy machine either may."""
    modules = [each.__name__ for each in vars(request.module).values() if isinstance(each, ModuleType)]
    if not any(name.partition(".")[0] == "torch" for name in modules):
        yield
        return
    from convdispatch.inference.form_benchmark import Verdict
    from convdispatch.torch.graph import engine_choice

    with pytest.MonkeyPatch.context() as patch:
        verdict = Verdict(0, (1.0, 1.0), agreed=True, noise=0.0)
        form_wins = functools.wraps(engine_choice.faster)(lambda candidates, inputs: verdict)
        patch.setattr(engine_choice, "faster", form_wins)
        yield


@pytest.fixture(scope="module", autouse=True)
def no_records_of_others():
    """What the tests of one file measured decides nothing in the next file, nor in its children."""
    yield
    if (_HOME / "records").exists():
        from convdispatch.selection import dispatch
        from convdispatch.selection.records import perfdb

        shutil.rmtree(_HOME / "records")
        perfdb.perfdb.cache_clear()
        dispatch.forget()


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether whole products were asked for."""
    return request.config.getoption("--full")


@pytest.fixture
def thinned(full):
    """``thinned(out)`` skips a case that ``--full`` alone runs."""

    def skip(out: object) -> None:
        if out and not full:
            pytest.skip("thinned out; --full runs it")

    return skip


@pytest.fixture(scope="session")
def solver(request: pytest.FixtureRequest) -> str | None:
    """The solver to pin in shape tests, or None for dispatch's own choice."""
    return request.config.getoption("--solver")


@pytest.fixture
def all_forms(monkeypatch):
    """Every form of a net is built, whatever the prediction says."""
    from convdispatch.inference import building

    monkeypatch.setattr(building, "pruned", lambda graphs, queue: (graphs, {}))


@pytest.fixture
def queue(device):
    """A fresh in-order queue on the shared context of the device."""
    import pyopencl as cl

    from convdispatch.device import runtime

    return cl.CommandQueue(runtime.context(device))


@pytest.fixture
def item_by_item(request, monkeypatch):
    """Kernels for GPUs, on a CPU: work items run one after another up to each barrier, not 8 or 16 in step.

    A barrier that is missing shows as well, and the compiler makes one form of each kernel instead of two, which is not
    optimised but with ``--full`` and for tests with the marker ``computes``.
    """
    from as_gpu import hinted, hurried

    from convdispatch.device.programs import kernels

    compiled, computes = kernels._compile, request.node.get_closest_marker("computes")

    def compile_as_gpus(context, text, options):
        return compiled(context, hinted(context, text), options if computes else hurried(context, options))

    monkeypatch.setattr(kernels, "_compile", compile_as_gpus)


@pytest.fixture
def compiled(monkeypatch):
    """Texts that were compiled."""
    from convdispatch.device.programs import binary_cache

    texts, real = [], binary_cache._from_text
    monkeypatch.setattr(binary_cache, "_from_text", lambda c, text, o: texts.append(text) or real(c, text, o))
    return texts


@pytest.fixture
def sabotage(tmp_path, monkeypatch, read_anew):
    """A function that puts the text of a plugin ``bad`` beside im2col, in a world of their own."""
    from sabotaging import placed

    return placed(tmp_path, monkeypatch, read_anew)


@pytest.fixture
def folders(tmp_path):
    """Where a performance database would keep its records, by source."""
    return {source: tmp_path / source for source in ("user", "pack", "shipped")}


@pytest.fixture
def db(folders):
    """An empty performance database."""
    from convdispatch.selection.records.perfdb import PerfDB

    return PerfDB(folders)


@pytest.fixture
def read_anew(monkeypatch):
    """``read_anew()``: plugins, records and decisions are as another process would see them; so they are at the end."""
    from anew import read_anew

    yield read_anew
    monkeypatch.undo()
    read_anew()


@pytest.fixture
def naive(monkeypatch, read_anew):
    """Loads the naive plugin as a drop-in beside the others, for one test; its solver is ``naive.direct``."""
    from convdispatch.selection.plugins import loader

    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(SUPPORT / "naive_plugin"))
    return loader.reload()


@pytest.fixture(scope="module")
def drop_in(request):
    """Loads the plugin in the module's ``DROP_IN`` beside the others; the kit's data are kept for all its solvers."""
    from convdispatch.measurement.conformance import checks
    from convdispatch.selection import dispatch
    from convdispatch.selection.plugins import loader

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONVDISPATCH_PLUGIN_DIR", str(request.module.DROP_IN))
        patch.setattr(checks, "data_for", functools.cache(checks.data_for.__wrapped__))
        yield loader.reload()
    loader.reload()
    dispatch.forget()


@pytest.fixture
def faults(monkeypatch, tmp_path, device, read_anew):
    """``faults("lies", ...)`` makes these solvers the only ones; records go to a folder of the test."""
    from convdispatch.selection.plugins import loader

    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(SUPPORT / "faulty_plugin"))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "faulty")

    def load(*names):
        monkeypatch.setenv("FAULTS", ",".join(names))
        read_anew()
        loader.reload()

    return load


@pytest.fixture
def hanging(monkeypatch, tmp_path):
    """What hangs in a child says so, by a file of its process's number in the folder HANGING: its silence ends there.

    So a test waits a minute for what a slow machine is at, and no second for what never comes.
    """
    from convdispatch.device.child import Child, Silent

    folder, hear = tmp_path / "hanging", Child.hear
    folder.mkdir()
    monkeypatch.setenv("HANGING", str(folder))

    def heard(self: Child, timeout_s: float) -> dict | None:
        until = time.monotonic() + timeout_s
        while True:
            try:
                return hear(self, min(0.1, until - time.monotonic()))
            except Silent:
                if time.monotonic() >= until or (folder / str(self._process.pid)).exists():
                    raise Silent(f"it gave no answer within {timeout_s:.3g} s") from None

    monkeypatch.setattr(Child, "hear", heard)


@pytest.fixture
def counted():
    """PyTorch's calls, counted from zero under a seed; routing ends with the test."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    import convdispatch.torch as ct

    torch.manual_seed(0)
    ct.reset_counters()
    yield
    ct.disable()


@pytest.fixture(scope="module")
def without_compiler():
    """Graphs that no form computes run operator by operator: inductor would compile each for seconds."""
    pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    from convdispatch.torch.graph import inductor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inductor, "available", lambda device: False)
        yield


@pytest.fixture
def cudnn(device):
    """The device, where cuDNN can use it."""
    from convdispatch import ConvProblem
    from convdispatch.device import runtime
    from convdispatch.selection.plugins.loader import plugins

    problem = ConvProblem.parse("mb2ic16ih9oc32kh3ph1")
    reason = plugins().solvers["cudnn.convolution"].rejects(problem, runtime.device_info(device))
    if reason:
        pytest.skip(f"cudnn: {reason}")
    return device


@pytest.fixture
def clean_memory(device):
    """The test begins with no free blocks, and ends without a limit."""
    from convdispatch.device import runtime

    gc.collect()
    runtime.release_memory(device)
    yield
    runtime.set_memory_limit(device, None)
