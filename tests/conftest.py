"""Options, devices and isolation shared by all tests.

``--all-devices`` runs device tests on every OpenCL device that works, not only the default; ``--full`` runs whole
products of shapes, layouts and dtypes instead of a thinned selection; ``--solver GLOB`` pins another solver in the
shape tests than the universal one (``*`` leaves the choice to dispatch): each other plugin has tests of its own.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for ``checking``

from zones import ZONES, zone_of  # noqa: E402 (the path stands above)

# A test must not see the records, registry or plugins of the user who runs it, nor leave any behind.
_HOME = Path(tempfile.mkdtemp(prefix="convdispatch-tests-"))
os.environ.setdefault("CONVDISPATCH_DB", str(_HOME / "records"))
os.environ.setdefault("CONVDISPATCH_RATES", "off")  # whoever measured first would change what is predicted
os.environ.setdefault("CONVDISPATCH_PLUGIN_DIR", str(_HOME / "plugins"))
os.environ.pop("CONVDISPATCH_REGISTRY", None)
# Several workers share the cores: threads that spin while they wait for a core made references 50 times slower. Workers
# of xdist inherit these before they load NumPy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("convdispatch")
    group.addoption("--all-devices", action="store_true", help="every OpenCL device that works, not only the default")
    group.addoption("--full", action="store_true", help="whole products of shapes, layouts and dtypes")
    group.addoption("--solver", default="im2col*", help="the solver of the shape tests (name or glob)")


def pytest_configure(config: pytest.Config) -> None:
    for zone in ZONES:
        config.addinivalue_line("markers", f"{zone}: tests of this zone, see tests/zones.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        zone = zone_of(item.path.stem)
        if zone is not None:
            item.add_marker(zone)


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


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether whole products were asked for."""
    return request.config.getoption("--full")


@pytest.fixture(scope="session")
def solver(request: pytest.FixtureRequest) -> str | None:
    """The solver to pin in shape tests, or None for dispatch's own choice."""
    return request.config.getoption("--solver")


@pytest.fixture
def all_forms(monkeypatch):
    """Every form of a net is built, whatever the prediction says."""
    from convdispatch.inference import net

    monkeypatch.setattr(net, "foretold", lambda graphs, counts, queue: (graphs, counts))


@pytest.fixture
def queue(device):
    """A fresh in-order queue on the shared context of the device."""
    import pyopencl as cl

    from convdispatch.device import runtime

    return cl.CommandQueue(runtime.context(device))


@pytest.fixture
def item_by_item(monkeypatch):
    """Kernels for GPUs, on a CPU: work items run one after another up to each barrier, not 8 or 16 in step.

    A barrier that is missing shows as well, and the compiler makes one form of each kernel instead of two.
    """
    from as_gpu import hinted

    from convdispatch.device import kernels

    compiled = kernels._compile
    monkeypatch.setattr(kernels, "_compile", lambda c, text, options: compiled(c, hinted(c, text), options))


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
def naive(monkeypatch):
    """Loads the naive plugin as a drop-in beside the others, for one test; its solver is ``naive.direct``."""
    from convdispatch.selection import dispatch, loader

    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(HERE / "naive_plugin"))
    yield loader.reload()
    monkeypatch.undo()
    loader.reload()
    dispatch.forget()


@pytest.fixture
def faults(monkeypatch, tmp_path, device):
    """``faults("lies", ...)`` makes these solvers the only ones; records go to a folder of the test."""
    from convdispatch.selection import dispatch, loader
    from convdispatch.selection.records import perfdb

    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(HERE / "faulty_plugin"))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "faulty")

    def load(*names):
        monkeypatch.setenv("FAULTS", ",".join(names))
        perfdb.perfdb.cache_clear()
        dispatch.forget()
        loader.reload()

    yield load
    monkeypatch.undo()
    perfdb.perfdb.cache_clear()
    loader.reload()
    dispatch.forget()


@pytest.fixture
def counted():
    """PyTorch's calls, counted from zero under a seed; routing ends with the test."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    import convdispatch.torch as ct

    torch.manual_seed(0)
    ct.reset_counters()
    yield
    ct.disable()


@pytest.fixture
def cudnn(device):
    """The device, where cuDNN can use it."""
    from convdispatch import ConvProblem
    from convdispatch.device import runtime
    from convdispatch.selection.loader import plugins

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
