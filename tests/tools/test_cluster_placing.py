"""Which task goes where: simulated farms in virtual time, and the same by Dask with tasks that only sleep."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from dataclasses import replace

import pytest

from convdispatch import __version__
from convdispatch.cluster.connecting import Workers
from convdispatch.cluster.offers import Offer
from convdispatch.cluster.running import Pool, Run, Task

distributed = pytest.importorskip("distributed", reason="pip install 'convdispatch[cluster]'")

KEY = "a-kind"
INFO = {"name": "pretended", "vendor": "none", "type": "gpu", "arch": "", "platform": "", "driver": ""}
INFO |= {"max_work_item_sizes": [1, 1, 1], "extensions": []}
OFFER = Offer(KEY, "0:0", "node/0:0", INFO, 3, (), __version__)
BUDGET_S = 3.0
TURN_S = 0.01
"""What an answer's way to the client and the next task's to the worker take."""


def offers(count):
    """Workers' addresses to what they offer."""
    return {f"tcp://10.0.0.1:{4000 + number}": replace(OFFER, place=f"n/0:{number}") for number in range(count)}


class Farm:
    """Workers in virtual time, which work on the tasks that they are given one after another."""

    def __init__(self, workers, seconds):
        self.pool, self.seconds = Pool(), seconds
        self.pool.workers = workers
        self.now, self.free, self.serial = 0.0, {}, itertools.count()
        self.events: list = []
        self.spans: dict = {worker: [] for worker in workers}
        self.done: Counter = Counter()
        self.gone: set = set()

    def at(self, when, what):
        heapq.heappush(self.events, (when, next(self.serial), what))

    def give(self):
        for task, worker in self.pool.steps():
            assert worker in self.pool.workers
            begun = max(self.now + TURN_S, self.free.get(worker, 0.0))
            self.free[worker] = ended = begun + self.seconds[task.words]
            self.spans[worker].append((begun, ended))
            self.at(ended, (task, worker))

    def lose(self, worker):
        self.gone.add(worker)
        self.pool.workers = {at: offer for at, offer in self.pool.workers.items() if at != worker}
        for _, _, what in self.events:
            if not callable(what) and what[1] == worker:
                self.pool.again(what[0])
        self.spans[worker] = [span for span in self.spans[worker] if span[1] <= self.now]

    def run(self):
        for name in self.seconds:
            self.pool.add(Task(name, KEY, print, ()))
        self.give()
        while self.pool:
            self.now, _, what = heapq.heappop(self.events)
            if callable(what):
                what()
            elif what[1] not in self.gone:
                self.done[what[0].words] += 1
                self.pool.ended(what[0])
            self.give()
        assert self.done == dict.fromkeys(self.seconds, 1)  # nothing is lost, nothing done twice
        for spans in self.spans.values():
            assert all(ended <= begun for (_, ended), (begun, _) in itertools.pairwise(spans))
        return self.now


def searches(count, budget_s=BUDGET_S):
    """By problem, what its search takes: some end before their budget, some go a little beyond it."""
    chance = random.Random(0)
    return {f"problem {number}": budget_s * chance.uniform(0.7, 1.5) for number in range(count)}


@pytest.mark.parametrize(
    ("devices", "count", "budget_s", "share"),
    [(2, 24, 1.0, 1.1), (2, 36, 1.0, 1.1), (4, 288, 3.0, 1.02), (1, 24, 1.0, 1.05), (8, 80, 3.0, 1.13)],
)
def test_devices_share_the_work_evenly(devices, count, budget_s, share):
    seconds = searches(count, budget_s)
    spent = Farm(offers(devices), seconds).run()
    assert spent <= share * sum(seconds.values()) / devices


def test_four_devices_take_less_than_three_tenths_of_one():
    seconds = searches(288)
    one, four = (Farm(offers(devices), seconds).run() for devices in (1, 4))
    assert four < 0.27 * one


def test_a_long_task_among_the_last_does_not_hold_up_others():
    """The last tasks are given out one by one: behind a long one none waits."""
    seconds = {f"problem {number}": 4.0 if number == 8 else 1.0 for number in range(12)}
    farm = Farm(offers(2), seconds)
    assert farm.run() < 8.7
    assert sorted(map(len, farm.spans.values())) == [5, 7]


def test_a_worker_that_goes_or_comes_costs_little():
    seconds = searches(48)
    four, whole = offers(4), sum(seconds.values())
    last = list(four)[-1]
    gone = Farm(four, seconds)
    gone.at(10.0, lambda: gone.lose(last))
    assert gone.run() <= 1.15 * ((whole - 10) / 3 + 3)
    come = Farm({at: offer for at, offer in four.items() if at != last}, seconds)
    come.spans[last] = []

    def comes():
        come.pool.workers = four

    come.at(10.0, comes)
    assert come.run() <= 1.1 * ((whole - 30) / 4 + 10)
    assert len(come.spans[last]) >= 9


def test_most_workers_may_go():
    four = offers(4)
    farm = Farm(four, searches(24))
    for at in list(four)[1:]:
        farm.at(7.0, lambda at=at: farm.lose(at))
    farm.run()


def test_what_only_one_device_may_run_goes_there():
    two, pool = offers(2), Pool()
    pool.workers = two
    first, second = two
    for n in range(3):
        pool.add(Task(str(n), KEY, print, (), places={two[second].place}))
    worked = []
    while pool:
        for task, worker in list(pool.steps()):
            worked.append(worker)
            pool.ended(task)
    assert worked == [second] * 3
    assert first not in worked


# --- by Dask ---------------------------------------------------------------------------------------------------------


def sleep(number, seconds):
    """A measurement that takes a while: its number, where and when it was."""
    begun = time.monotonic()
    time.sleep(seconds)
    return number, distributed.get_worker().convdispatch_offer.place, begun, time.monotonic()


@pytest.fixture
def four():
    """A client of four workers in this process, each of which pretends to offer a device; and the workers."""
    resources = {KEY: 1}
    options = {"threads_per_worker": 2, "processes": False, "dashboard_address": None, "resources": resources}
    options["memory_limit"] = 0  # none: in a process of so many tests workers would pause for good
    with distributed.LocalCluster(n_workers=4, silence_logs=50, **options) as cluster:
        for worker, offer in zip(cluster.workers.values(), offers(4).values()):
            worker.convdispatch_offer = offer
        with distributed.Client(cluster, set_as_default=False) as client:
            yield client, list(cluster.workers.values())


def test_dask_keeps_all_devices_busy_and_none_twice(four):
    client, _ = four
    run = Run(client, Workers(client))
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
    """The worker ends after it has answered and before the answer is fetched: Dask alone would wait for ever."""
    client, workers = four
    monkeypatch.setattr("convdispatch.cluster.running.FETCH_S", 0.5)
    run = Run(client, Workers(client))
    run.add(*(Task(str(n), KEY, sleep, (n, 0.05)) for n in range(8)))
    fetched, victims = Run._fetched, []

    def late(self, futures):
        if futures and not victims:
            victims.append(self._flying_before[futures[0].key])
            client.sync(next(w for w in workers if w.address == victims[0]).close, nanny=False)
        return fetched(self, futures)

    submit = Run._submit

    def submits(self):
        submit(self)
        self._flying_before = {
            **getattr(self, "_flying_before", {}),
            **{k: f.worker for k, f in self._in_flight.items()},
        }

    monkeypatch.setattr(Run, "_fetched", late)
    monkeypatch.setattr(Run, "_submit", submits)
    assert sorted(answer[0] for _, answer in run.answers()) == list(range(8))
    assert victims
