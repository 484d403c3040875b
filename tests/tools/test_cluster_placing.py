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
from convdispatch.cluster.placing import Pool, Task
from convdispatch.cluster.running import Run

distributed = pytest.importorskip("distributed", reason="pip install 'convdispatch[cluster]'")

KEY = "a-kind"
INFO = {"name": "pretended", "vendor": "none", "type": "gpu", "arch": "", "platform": "", "driver": ""}
INFO |= {"max_work_item_sizes": [1, 1, 1], "extensions": []}
OFFER = Offer(KEY, "0:0", "node/0:0", INFO, 3, (), __version__)
BUDGET_S = 3.0
TURN_S = 0.01
"""What an answer's way to the client and the next task's to the worker take."""


def offers(count, hosts=1, compilers=3):
    """Workers' addresses, spread over hosts, to what they offer."""
    return {
        f"tcp://10.0.0.{number % hosts}:{4000 + number}": replace(OFFER, place=f"n/0:{number}", compilers=compilers)
        for number in range(count)
    }


class Farm:
    """Workers in virtual time, which do the steps that they are given one after another, compiling beside measuring."""

    def __init__(self, workers, seconds, compile_s=BUDGET_S, elsewhere_s=0.0):
        self.pool, self.seconds, self.elsewhere_s = Pool(compile_s), seconds, elsewhere_s
        self.pool.workers = workers
        self.now, self.free, self.serial = 0.0, {}, itertools.count()
        self.events: list = []
        self.spans: dict = {worker: [] for worker in workers}
        self.done: Counter = Counter()
        self.gone: set = set()

    def at(self, when, what):
        heapq.heappush(self.events, (when, next(self.serial), what))

    def give(self):
        for step in self.pool.steps():
            assert step.worker in self.pool.workers
            working = step.seconds is None
            begun = max(self.now + TURN_S, self.free.get((step.worker, working), 0.0))
            took = self.seconds[step.task.words] if working else step.seconds
            self.free[step.worker, working] = begun + took
            if working:
                self.spans[step.worker].append((begun, begun + took))
            self.at(begun + took, step)

    def lose(self, worker):
        self.gone.add(worker)
        self.pool.workers = {at: offer for at, offer in self.pool.workers.items() if at != worker}
        for _, _, step in [event for event in self.events if getattr(event[2], "worker", None) == worker]:
            self.pool.again(step.task)
        self.spans[worker] = [span for span in self.spans[worker] if span[1] <= self.now]

    def run(self, compiles=True):
        for name in self.seconds:
            self.pool.add(Task(name, KEY, print, (), compiles=name if compiles else None))
        self.give()
        while self.pool:
            self.now, _, what = heapq.heappop(self.events)
            if callable(what):
                what()
            elif what.worker not in self.gone:
                if what.seconds is None:
                    self.done[what.task.words] += 1
                    self.pool.ended(what.task)
                else:
                    self.pool.compiled(what.task)
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
    ("devices", "hosts", "count", "budget_s", "share"),
    [(2, 1, 24, 1.0, 1.1), (2, 1, 36, 1.0, 1.1), (2, 2, 36, 1.0, 1.15), (4, 1, 288, 3.0, 1.02), (4, 2, 288, 3.0, 1.02),
     (1, 1, 24, 1.0, 1.05), (8, 2, 80, 3.0, 1.13)],
)  # fmt: skip
def test_devices_share_the_work_evenly(devices, hosts, count, budget_s, share):
    seconds = searches(count, budget_s)
    spent = Farm(offers(devices, hosts), seconds, budget_s).run()
    assert spent <= share * sum(seconds.values()) / devices


def test_four_devices_take_less_than_three_tenths_of_one():
    seconds = searches(288)
    one, four = (Farm(offers(devices), seconds).run() for devices in (1, 4))
    assert four < 0.27 * one


@pytest.mark.parametrize("compilers", [0, 3])
def test_a_long_task_among_the_last_does_not_hold_up_others(compilers):
    """The last tasks are given out one by one: behind a long one none waits."""
    seconds = {f"problem {number}": 4.0 if number == 8 else 1.0 for number in range(12)}
    farm = Farm(offers(2, compilers=compilers), seconds, 1.0)
    assert farm.run() < 8.7
    assert sorted(map(len, farm.spans.values())) == [5, 7]


def test_a_worker_that_goes_or_comes_costs_little():
    seconds = searches(48)
    four, whole = offers(4, hosts=2), sum(seconds.values())
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


def test_all_of_a_host_may_go():
    four = offers(4, hosts=2)
    farm = Farm(four, searches(24))
    for at in [at for at in four if "10.0.0.1:" in at]:
        farm.at(7.0, lambda at=at: farm.lose(at))
    farm.run()


def test_what_only_one_device_may_run_goes_there():
    two = offers(2)
    pool = Pool(1.0)
    pool.workers = two
    first, second = two
    tasks = [Task(str(n), KEY, print, (), compiles=str(n), places={two[second].place}) for n in range(3)]
    for task in tasks:
        pool.add(task)
    worked = []
    while pool:
        for step in list(pool.steps()):
            if step.seconds is None:
                worked.append(step.worker)
                pool.ended(step.task)
            else:
                pool.compiled(step.task)
    assert worked == [second] * 3
    assert first not in worked
    assert pool.choosy == set()


def test_devices_that_wait_are_compiled_for_briefly():
    pool = Pool(3.0)
    pool.workers = offers(2)
    for number in range(9):
        pool.add(Task(str(number), KEY, print, (), compiles=str(number)))
    steps = list(pool.steps())
    assert [step.seconds for step in steps] == [1.0, 1.0, 3.0, 3.0]
    assert len({step.worker for step in steps[:2]}) == 2


# --- by Dask ---------------------------------------------------------------------------------------------------------


def sleep(number, seconds):
    """A measurement that takes a while: its number, where and when it was."""
    begun = time.monotonic()
    time.sleep(seconds)
    return number, distributed.get_worker().convdispatch_offer.place, begun, time.monotonic()


class Compiles:
    """What a worker has children for."""

    def __init__(self):
        self.asked = []

    def compile(self, problem, seconds):
        self.asked.append(problem)
        time.sleep(min(seconds, 0.02))
        return 1


@pytest.fixture
def four():
    """A client of four workers in this process, each of which pretends to offer a device; and the workers."""
    resources = {KEY: 1, f"compile {KEY}": 1}
    options = {"threads_per_worker": 2, "processes": False, "dashboard_address": None, "resources": resources}
    options["memory_limit"] = 0  # none: in a process of so many tests workers would pause for good
    with distributed.LocalCluster(n_workers=4, silence_logs=50, **options) as cluster:
        for worker, offer in zip(cluster.workers.values(), offers(4).values()):
            worker.convdispatch_offer, worker.convdispatch_children = offer, Compiles()
        with distributed.Client(cluster, set_as_default=False) as client:
            yield client, list(cluster.workers.values())


def test_dask_keeps_all_devices_busy_and_none_twice(four):
    client, workers = four
    run = Run(client, Workers(client), compile_s=0.06)
    chance = random.Random(1)
    seconds = [chance.uniform(0.05, 0.15) for _ in range(48)]
    run.add(*(Task(str(n), KEY, sleep, (n, s), compiles=str(n)) for n, s in enumerate(seconds)))
    answers = [answer for _, answer in run.answers()]
    assert sorted(number for number, *_ in answers) == list(range(48))
    assert sorted(asked for worker in workers for asked in worker.convdispatch_children.asked) == sorted(
        map(str, range(48))
    )
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
            **{k: f.step.worker for k, f in self._flying.items()},
        }

    monkeypatch.setattr(Run, "_fetched", late)
    monkeypatch.setattr(Run, "_submit", submits)
    assert sorted(answer[0] for _, answer in run.answers()) == list(range(8))
    assert victims
