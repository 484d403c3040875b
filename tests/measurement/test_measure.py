"""The reducer and benchmarking, with clocks that lie: property-based, no device, no waiting."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convdispatch.measurement.measure import CUT_FACTOR, Candidate, interleaved, timed
from convdispatch.selection.records.timing import TOLERANCE, BadTiming, Timing, order_interval, summarise, verdict

TIMES = st.floats(1e-4, 1e4, allow_nan=False)
# Samples that agree to within a factor of three, as a kernel's do, so that none is wild.
SAMPLES = st.tuples(TIMES, st.lists(st.floats(1.0, 3.0), min_size=1, max_size=60)).map(
    lambda pair: [pair[0] * factor for factor in pair[1]]
)


class Clock:
    """Nanoseconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 10**15

    def __call__(self) -> int:
        return self.now

    def candidate(self, name: str, milliseconds, **more) -> Candidate:
        """A candidate whose runs take the next of ``milliseconds`` (a number, or a function of the run)."""
        runs = iter(range(10**9))

        def work() -> None:
            took = milliseconds(next(runs)) if callable(milliseconds) else milliseconds
            self.now += round(took * 1e6)

        return Candidate(name, timed(work, self), **more)


# --- the reducer ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**12), st.integers(1, 100))
def test_constant_time_gives_exactly_that_time(nanoseconds, count):
    clock = Clock()

    def work():
        clock.now += nanoseconds

    sample = timed(work, clock)
    timing = summarise([sample() for _ in range(count)])
    expected = nanoseconds / 1e6
    assert (timing.median, timing.ci, timing.p20, timing.p80) == (expected, (expected, expected), expected, expected)
    assert (timing.count, timing.wild) == (count, 0)


@given(SAMPLES)
def test_the_figures_are_ordered_and_lie_among_the_samples(samples):
    timing = summarise(samples)
    assert min(samples) <= timing.ci[0] <= timing.median <= timing.ci[1] <= max(samples)
    assert timing.p20 <= timing.median <= timing.p80
    assert {timing.p20, timing.p80, *timing.ci} <= set(samples)
    assert timing.count == len(samples)


@given(SAMPLES, st.randoms(use_true_random=False))
def test_order_does_not_matter(samples, rng):
    shuffled = samples[:]
    rng.shuffle(shuffled)
    assert summarise(shuffled) == summarise(samples)


@given(SAMPLES, st.floats(1.0001, 1e3))
def test_slower_samples_never_score_better(samples, factor):
    """A running sum that is taken off again fails this: it gives 0.4 T after 8 runs, and less than 0 after 5."""
    assert summarise([sample * factor for sample in samples]).median > summarise(samples).median


@given(TIMES, st.integers(1, 40))
def test_the_number_of_runs_does_not_change_the_score(time, count):
    assert summarise([time] * count).median == time


@pytest.mark.parametrize("bad", [0, 0.0, -0.0, -1e-9, -5, math.nan, math.inf, -math.inf, None, "3"])
@given(samples=SAMPLES, place=st.integers(0, 60))
def test_impossible_times_are_refused(bad, samples, place):
    samples.insert(place % (len(samples) + 1), bad)
    with pytest.raises(BadTiming):
        summarise(samples)


def test_no_sample_is_refused():
    with pytest.raises(BadTiming, match="no sample"):
        summarise([])


@given(st.integers(4, 40), st.sampled_from([1e-3, 1e3]))
def test_wild_samples_are_set_aside_and_counted(count, factor):
    samples = [5.0] * (3 * count) + [5.0 * factor] * count
    timing = summarise(samples)
    assert (timing.median, timing.count, timing.wild) == (5.0, 3 * count, count)
    assert timing.ci == (5.0, 5.0)


def test_samples_too_wild_to_have_a_median_are_refused():
    with pytest.raises(BadTiming, match="4 of 10 samples are 10 times off"):
        summarise([1.0] * 6 + [1000.0] * 4)


# --- the interval -----------------------------------------------------------------------------------------------------


def test_the_interval_needs_six_samples():
    assert order_interval(5) is None
    assert order_interval(6) == (0, 5)
    assert order_interval(20) == (5, 14)  # the textbook's 6th and 15th of 20


@given(st.integers(6, 200))
def test_the_interval_has_the_confidence_it_claims_and_is_the_narrowest(count):
    low, high = order_interval(count)

    def coverage(position):
        return 1 - 2 * sum(math.comb(count, below) for below in range(position + 1)) / 2**count

    assert high == count - 1 - low
    assert coverage(low) >= 0.95
    assert low + 1 >= count // 2 or coverage(low + 1) < 0.95


def test_the_interval_covers_the_median_of_a_skewed_distribution():
    rng = random.Random(5)
    median = math.log(2)  # of the exponential distribution
    hits = 0
    for _ in range(500):
        low, high = order_interval(25)
        ordered = sorted(rng.expovariate(1) for _ in range(25))
        hits += ordered[low] <= median <= ordered[high]
    assert hits >= 0.93 * 500


# --- benchmarking -----------------------------------------------------------------------------------------------------


def judge(outcomes, **more):
    return verdict({name: o.timing for name, o in outcomes.items() if o.timing and o.status == "measured"}, **more)


@given(
    fast=st.floats(0.01, 100),
    slower=st.floats(1.25, 20),
    noise=st.floats(0, 0.1),
    seed=st.integers(0, 2**32),
    first=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_noise_below_the_gap_never_lets_the_slower_win(fast, slower, noise, seed, first):
    """Any noise of at most 10 % either way, a kernel 25 % slower or worse: the faster one wins, always."""
    rng = random.Random(seed)
    clock = Clock()
    candidates = [
        clock.candidate("fast", lambda _: fast * rng.uniform(1 - noise, 1 + noise)),
        clock.candidate("slow", lambda _: fast * slower * rng.uniform(1 - noise, 1 + noise)),
    ]
    outcomes = interleaved(candidates if first else candidates[::-1], clock=clock)
    assert judge(outcomes, deterministic={"fast": False, "slow": True}, workspace={"fast": 10**9}).winner == "fast"
    assert outcomes["fast"].status == "measured"


@given(drift=st.floats(1.0, 1.2), order=st.permutations(["a", "b", "c"]))
def test_a_drift_falls_on_all_alike(drift, order):
    """The machine slows down a little every run (heat): the fastest still wins, whichever runs first."""
    clock, runs = Clock(), iter(range(10**9))
    cost = {"a": 1.0, "b": 1.4, "c": 1.4}
    slow = drift ** (1 / 20)
    candidates = [clock.candidate(n, lambda _, n=n: cost[n] * slow ** min(next(runs), 60)) for n in order]
    assert judge(interleaved(candidates, clock=clock)).winner == "a"


def test_rounds_are_interleaved_and_begin_one_further_each_time():
    seen = []
    candidates = [Candidate(name, lambda name=name: seen.append(name) or 1.0 + 0.1 * len(seen)) for name in "abc"]
    interleaved(candidates, rounds=3, min_rounds=3)
    assert "".join(seen) == "abcbcacab"


def test_a_candidate_slow_by_a_thousand_runs_twice():
    clock = Clock()
    outcomes = interleaved([clock.candidate("naive", 4850.0), clock.candidate("good", 4.85)], clock=clock)
    assert (outcomes["naive"].status, outcomes["naive"].timing.count) == ("cut", 2)
    assert "1000.0 times" in outcomes["naive"].reason
    assert judge(outcomes).winner == "good"


@given(factor=st.floats(1.06, CUT_FACTOR - 0.01))
def test_a_certain_loser_is_cut_once_the_intervals_part(factor):
    clock = Clock()
    candidates = [clock.candidate("a", lambda run: 1 + 0.02 * (run % 2)), clock.candidate("b", lambda _: 1.02 * factor)]
    outcomes = interleaved(candidates, rounds=50, min_rounds=50, clock=clock)
    assert (outcomes["b"].status, outcomes["b"].timing.count) == ("cut", 6)
    assert (outcomes["a"].status, outcomes["a"].timing.count) == ("measured", 50)


@given(st.floats(0, 0.45), st.integers(0, 2**32))
@settings(deadline=None)
def test_the_fastest_is_never_cut(noise, seed):
    rng = random.Random(seed)
    clock = Clock()
    candidates = [
        clock.candidate(str(i), lambda _, cost=cost: cost * rng.uniform(1 - noise, 1 + noise))
        for i, cost in enumerate([1.0, 1.0, 1.5, 4.0, 100.0])
    ]
    outcomes = interleaved(candidates, clock=clock)
    assert "measured" in (outcomes["0"].status, outcomes["1"].status)
    assert outcomes["4"].status == "cut"


def test_a_clock_that_runs_backwards_is_refused():
    clock = Clock()
    back = clock.candidate("back", lambda run: 3 if run < 4 else -2)
    outcomes = interleaved([back, clock.candidate("fine", 5)], clock=clock)
    assert outcomes["back"].status == "failed"
    assert outcomes["back"].timing is None
    assert "the clock ran backwards" in outcomes["back"].reason
    assert judge(outcomes).winner == "fine"


def test_a_clock_that_stands_still_gives_no_winner():
    outcomes = interleaved(
        [Candidate("a", timed(lambda: None, lambda: 7)), Candidate("b", timed(lambda: None, lambda: 7))]
    )
    assert {outcome.status for outcome in outcomes.values()} == {"failed"}
    assert judge(outcomes).winner is None


def test_a_busy_machine_makes_a_candidate_unsteady_not_faulty():
    clock = Clock()
    wild = clock.candidate("wild", lambda run: 1.0 if run % 3 else 50.0)
    outcomes = interleaved([wild], rounds=24, clock=clock)
    assert (outcomes["wild"].status, outcomes["wild"].timing) == ("unsteady", None)
    assert "times off the median" in outcomes["wild"].reason


def test_a_candidate_that_raises_fails_alone():
    clock = Clock()

    def explode():
        raise RuntimeError("device lost")

    outcomes = interleaved([Candidate("bad", explode), clock.candidate("good", 2.0)], clock=clock)
    assert (outcomes["bad"].status, outcomes["bad"].reason) == ("failed", "RuntimeError: device lost")
    assert outcomes["good"].timing.median == 2.0


def test_benchmarking_ends_early_when_the_intervals_are_narrow():
    clock = Clock()
    outcomes = interleaved(
        [clock.candidate("a", 1.0), clock.candidate("b", 1.01)], rounds=100, min_rounds=7, clock=clock
    )
    assert {outcome.timing.count for outcome in outcomes.values()} == {7}


@given(
    costs=st.lists(st.floats(0.1, 50), min_size=1, max_size=6),
    budget=st.floats(1, 2000),
)
def test_the_budget_holds(costs, budget):
    clock = Clock()
    start = clock()
    candidates = [clock.candidate(str(i), cost, expected_ms=cost) for i, cost in enumerate(costs)]
    outcomes = interleaved(candidates, rounds=100, min_rounds=100, budget_ms=budget, clock=clock)
    assert (clock() - start) / 1e6 <= budget * 1.0001
    assert all(o.status != "not tried" or o.timing is None for o in outcomes.values())


def test_what_the_budget_left_out_is_said():
    clock = Clock()
    costs = {"quick": 1.0, "long": 90.0}
    outcomes = interleaved([clock.candidate(n, c, expected_ms=c) for n, c in costs.items()], budget_ms=20, clock=clock)
    assert (outcomes["long"].status, outcomes["long"].timing) == ("not tried", None)
    assert outcomes["quick"].status == "measured"


def test_names_must_differ():
    with pytest.raises(ValueError, match="names of their own"):
        interleaved([Candidate("a", lambda: 1.0), Candidate("a", lambda: 1.0)])


# --- the verdict ------------------------------------------------------------------------------------------------------


def timing(median: float, low: float | None = None, high: float | None = None) -> Timing:
    low, high = low or median, high or median
    return Timing(median, (low, high), low, high, 25)


def test_a_clear_winner():
    assert verdict({"a": timing(2, 1.9, 2.1), "b": timing(1, 0.9, 1.1)}).winner == "b"
    assert verdict({"a": timing(2, 1.9, 2.1), "b": timing(1, 0.9, 1.1)}).tie == ()


def test_a_tie_is_broken_by_determinism_then_workspace_then_name():
    close = {"a": timing(1.01, 0.9, 1.2), "b": timing(1.0, 0.9, 1.1), "c": timing(1.005, 0.9, 1.1)}
    answer = verdict(close, deterministic={"a": False, "b": False, "c": True}, workspace={"c": 10**9})
    assert (answer.winner, answer.tie) == ("c", ("a", "b", "c"))
    assert "deterministic" in answer.reason
    answer = verdict(close, workspace={"a": 5, "b": 4, "c": 5})
    assert (answer.winner, answer.reason) == ("b", "tie of 3 within 2%; it needs less workspace")
    assert verdict(close).winner == "a"
    assert "name" in verdict(close).reason


def test_a_wide_interval_is_no_tie_for_a_slower_candidate():
    wide = {"slow": timing(1.3, 0.5, 9.0), "fast": timing(1.0, 0.6, 3.0)}
    answer = verdict(wide, deterministic={"slow": True, "fast": False})
    assert (answer.winner, answer.tie) == ("fast", ())


def test_a_small_but_certain_difference_counts():
    answer = verdict({"a": timing(1.002), "b": timing(1.001)}, deterministic={"b": False})
    assert (answer.winner, answer.tie) == ("b", ())


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), SAMPLES, min_size=1, max_size=6))
def test_the_winner_is_never_slower_than_the_tolerance(samples):
    timings = {name: summarise(values) for name, values in samples.items()}
    answer = verdict(timings)
    assert timings[answer.winner].median <= (1 + TOLERANCE) * min(t.median for t in timings.values())


def test_nobody_with_a_time():
    assert verdict({}).winner is None
