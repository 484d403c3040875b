"""Which task goes where: by Dask, with tasks that only sleep."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace

import pytest

from convdispatch import __version__
from convdispatch.cluster.offers import Offer
from convdispatch.cluster.running import Run, Task

distributed = pytest.importorskip("distributed", reason="pip install 'convdispatch[cluster]'")

KEY = "a-kind"
INFO = {"name": "pretended", "vendor": "none", "type": "gpu", "arch": "", "platform": "", "driver": ""}
INFO |= {"max_work_item_sizes": [1, 1, 1], "extensions": []}
OFFER = Offer(KEY, "0:0", "node/0:0", INFO, 0, __version__)


def offers(count):
    """Workers' addresses to what they offer."""
    return {f"tcp://10.0.0.1:{4000 + number}": replace(OFFER, place=f"n/0:{number}") for number in range(count)}


def sleep(number, seconds):
    """A measurement that takes a while: its number, where and when it was."""
    begun = time.monotonic()
    time.sleep(seconds)
    return number, distributed.get_worker().convdispatch_offer.place, begun, time.monotonic()


@pytest.fixture
def four():
    """A client of four workers in this process, each of which pretends to offer a device; and the workers."""
    resources = {OFFER.resource: 1}
    options = {"threads_per_worker": 2, "processes": False, "dashboard_address": None, "resources": resources}
    options["memory_limit"] = 0  # none: in a process of so many tests workers would pause for good
    with distributed.LocalCluster(n_workers=4, silence_logs=50, **options) as cluster:
        for worker, offer in zip(cluster.workers.values(), offers(4).values()):
            worker.convdispatch_offer = offer
        with distributed.Client(cluster, set_as_default=False) as client:
            yield client, list(cluster.workers.values())


def test_dask_keeps_all_devices_busy_and_none_twice(four):
    client, _ = four
    run = Run(client)
    chance = random.Random(1)
    seconds = [chance.uniform(0.05, 0.15) for _ in range(48)]
    run.add(*(Task(str(n), KEY, sleep, (n, s)) for n, s in enumerate(seconds)))
    answers = [answer for _, answer in run.answers()]
    assert sorted(number for number, *_ in answers) == list(range(48))
    busy = dict.fromkeys((offer.place for offer in offers(4).values()), 0.0)
    for place in busy:
        spans = sorted((begun, ended) for _, where, begun, ended in answers if where == place)
        assert all(ended <= begun for (_, ended), (begun, _) in itertools.pairwise(spans))
        busy[place] = sum(ended - begun for begun, ended in spans)
    # By what the tasks took, not by a clock's hour: on a busy machine they take longer. Who gets the next task has had
    # no more than the others, so that the most of all is beyond their mean by a task or two.
    longest = max(ended - begun for *_, begun, ended in answers)
    assert max(busy.values()) <= sum(busy.values()) / 4 + 2 * longest
    print(f"{(max(a[3] for a in answers) - min(a[2] for a in answers)) / (sum(busy.values()) / 4):.3f} of the ideal")


def test_an_answer_that_died_with_its_worker_is_asked_for_elsewhere(four, monkeypatch):
    """The worker ends after it has answered and before the answer is fetched."""
    client, workers = four
    run = Run(client)
    run.add(*(Task(str(n), KEY, sleep, (n, 0.05)) for n in range(8)))
    result, victims = Run._result, []

    def late(self, future):
        if not victims:
            (address,) = client.who_has([future])[future.key]
            victims.append(address)
            client.sync(next(w for w in workers if w.address == address).close, nanny=False)
        return result(self, future)

    monkeypatch.setattr(Run, "_result", late)
    assert sorted(answer[0] for _, answer in run.answers()) == list(range(8))
    assert victims


def test_a_kind_without_workers_is_waited_for_and_given_up(four, monkeypatch):
    client, workers = four
    monkeypatch.setattr("convdispatch.cluster.running.LOOK_S", 0.1)
    told = []
    run = Run(client, tell=told.append, gone_s=0.3)
    for worker in workers:
        client.sync(worker.close, nanny=False)
    run.add(*(Task(str(n), KEY, sleep, (n, 0.01)) for n in range(2)))
    assert all("no worker offers a-kind any more" in str(failed) for _, failed in run.answers())
    assert told == ["no worker offers a-kind any more: waiting 0 s for one"]
