"""The parts of a cluster: who waits, what is offered, what errors say."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import types
from dataclasses import replace

import pytest

from convdispatch import find_many
from convdispatch.api.errors import ConvDispatchError, InvalidArgument
from convdispatch.cluster import offers, worker
from convdispatch.cluster.requirements import security
from convdispatch.device import runtime

pytest.importorskip("distributed", reason="pip install 'convdispatch[cluster]'")

PROBLEM = "mb1ic4ih5oc4kh3ph1"


def test_one_at_a_time_on_one_piece_of_silicon():
    text = (
        "import sys; from convdispatch.cluster.worker import exclusive\n"
        "with exclusive('a device of a test'):\n    print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout.readline() == "in\n"
        entered = threading.Event()

        def enter():
            with worker.exclusive("a device of a test"):
                entered.set()

        thread = threading.Thread(target=enter)
        thread.start()
        with worker.exclusive("another device of a test"):
            assert not entered.wait(0.3)
        other.kill()  # the lock ends with its holder
        thread.join(120)
        assert entered.is_set()


def test_a_worker_compiles_for_the_next_problem_while_it_measures_one(monkeypatch):
    """Two searches at a time: their compiling may overlap the other's measuring, the measuring of two never."""
    log, compiled, measuring = [], threading.Event(), threading.Event()

    class Measurer:
        def answer(self, request, silent_s):
            log.append(("measuring", request["problem"]))
            measuring.set()
            if request["problem"] == PROBLEM:
                assert compiled.wait(60), "the second problem is compiled for meanwhile"
            log.append(("measured", request["problem"]))
            return {"problem": request["problem"]}

    def precompile(problems, device, jobs, seconds):
        assert (device, jobs, seconds) == ("0:0", 2, 0.1)
        if measuring.is_set():
            compiled.set()

    offer = offers.Offer("kind", "0:0", "m/0:0", {"type": "gpu", "platform": "a test's"}, 2, "1")
    assert offer.tasks == 2
    dask_worker = types.SimpleNamespace(convdispatch_offer=offer, convdispatch_child=Measurer())
    monkeypatch.setattr(worker, "_worker", lambda: dask_worker)
    monkeypatch.setattr(worker, "precompile", precompile)
    found, problems = {}, (PROBLEM, PROBLEM.replace("ih5", "ih6"))

    def search(problem):
        found[problem] = worker.measure(problem, {"budget_ms": 100})

    threads = [threading.Thread(target=search, args=(problem,)) for problem in problems]
    threads[0].start()
    assert measuring.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(120)
    assert found == {problem: {"problem": problem, "place": "m/0:0"} for problem in problems}
    assert log == [(what, problem) for problem in problems for what in ("measuring", "measured")]


def test_offers(device):
    (offer,) = offers.offers_of_this_machine(["intel"], machine="m")
    info = runtime.device_info(runtime.find_device("intel"))
    assert offer.device == info
    assert offer.place == f"m/{offer.address}"
    assert (offer.silicon, offer.compilers, offer.tasks) == ("cpu", 0, 1)  # a CPU's processors measure
    assert offer.resource == f"{offer.key} {offer.version}"  # other versions' tasks do not come here
    gpu = replace(offer, compilers=3, info={**offer.info, "type": "gpu"})
    assert gpu.tasks == 2  # one measures, the next compiles
    assert gpu.silicon != "cpu"
    assert "oclgrind" not in {each.info["vendor"] for each in offers.offers_of_this_machine()}


def test_errors_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(InvalidArgument, match="TLS needs all three"):
        security(cert="a.pem")
    monkeypatch.setattr("convdispatch.cluster.running.CONNECT_S", 0.5)
    with pytest.raises(ConvDispatchError, match=r"no scheduler can be used at tcp://127\.0\.0\.1:9"):
        find_many([PROBLEM], "tcp://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConvDispatchError, match=re.escape("pip install 'convdispatch[cluster]'")):
        find_many([PROBLEM], "tcp://127.0.0.1:9")
    with contextlib.suppress(KeyError):
        sys.modules.pop("distributed")
