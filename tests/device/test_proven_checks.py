"""A check that a device passed is kept for what it follows from, and nothing else; a failure is tried anew."""

from __future__ import annotations

import pytest
from threads import together

from convdispatch.device.cache import artifact_store, keys, store
from convdispatch.device.programs import proven, ptx_program

PACKAGE = "convdispatch_nvidia"


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    proven._failures.clear()


class Check:
    def __init__(self, answer: str | None = None) -> None:
        self.answer, self.asked = answer, 0

    def __call__(self) -> str | None:
        self.asked += 1
        return self.answer


def test_a_pass_is_kept_for_other_processes(queue):
    check = Check()
    for _ in range(3):
        assert proven.proven(PACKAGE, "wgmma", queue.device, check) is None
        forget()  # as a new process begins
    assert check.asked == 1


def test_a_failure_is_kept_for_this_process_alone(queue):
    check = Check("wrong results")
    assert [proven.proven(PACKAGE, "wgmma", queue.device, check) for _ in range(2)] == ["wrong results"] * 2
    assert check.asked == 1
    forget()
    check.answer = None
    assert proven.proven(PACKAGE, "wgmma", queue.device, check) is None
    assert check.asked == 2


def test_what_raises_is_asked_again(queue):
    def breaks():
        raise MemoryError("now")

    with pytest.raises(MemoryError):
        proven.proven(PACKAGE, "wgmma", queue.device, breaks)
    check = Check()
    assert proven.proven(PACKAGE, "wgmma", queue.device, check) is None
    assert check.asked == 1


@pytest.mark.parametrize("change", ["driver", "sources", "header", "variables", "what", "off"])
def test_another_driver_source_or_variable_proves_anew(queue, monkeypatch, change):
    check = Check()
    proven.proven(PACKAGE, "wgmma", queue.device, check)
    forget()
    if change == "driver":
        real = proven.identity
        monkeypatch.setattr(proven, "identity", lambda device: {**real(device), "driver": "1.2.3"})
    elif change in ("sources", "header"):
        real_stamp, edited = keys.stamp, PACKAGE if change == "sources" else "convdispatch.api"
        other = lambda home: real_stamp(home) + (" edited" if home == edited else "")  # noqa: E731
        monkeypatch.setattr(keys, "stamp", other)
    elif change == "variables":
        monkeypatch.setenv("POCL_MAX_WORK_GROUP_SIZE", "64")
    elif change == "off":
        monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")
    proven.proven(PACKAGE, "mma" if change == "what" else "wgmma", queue.device, check)
    assert check.asked == 2


def test_one_thread_asks(queue):
    check = Check()
    assert together(lambda _: proven.proven(PACKAGE, "wgmma", queue.device, check), 8) == [None] * 8
    assert check.asked == 1


@pytest.mark.parametrize("when", ["proved before", "proved on disk", "proved now"])
def test_a_pass_travels_in_a_pack(queue, monkeypatch, when):
    """Whoever gathers gets it, and where it is in force nothing is computed, on a machine with no files of its own."""
    check = Check()
    if when != "proved now":
        proven.proven(PACKAGE, "wgmma", queue.device, check)
    if when == "proved on disk":
        forget()
    with artifact_store.gathering(queue.device) as gathered:
        proven.proven(PACKAGE, "wgmma", queue.device, check)
    forget()
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")
    artifact_store.put_in_force(gathered)
    try:
        assert proven.proven(PACKAGE, "wgmma", queue.device, check) is None
    finally:
        artifact_store.take_out_of_force(gathered)
    assert check.asked == 1
    forget()
    proven.proven(PACKAGE, "wgmma", queue.device, check)
    assert check.asked == 2


@pytest.mark.skipif(store.fcntl is None, reason="this system has no file locks, so each process computes its checks")
@pytest.mark.parametrize("answer", [None, "wrong results"])
def test_a_check_that_another_process_computes_is_waited_for_at_the_end(queue, kept, answer):
    """A second process, which another open file stands for, holds the check's claim, then ends or stores a pass."""
    check, begun = Check(answer), Check()

    def first_process() -> str | None:
        (claim,) = kept.glob("*.claim")
        with proven.assuming() as assumed:
            forget()
            assert proven.proven(PACKAGE, "wgmma", queue.device, check) is None
            assert (check.asked, [each.claim[:40] for each in assumed]) == (0, [claim.stem])
        waiting.extend(assumed)
        return begun()

    waiting: list = []
    with proven.assuming() as own:
        assert proven.proven(PACKAGE, "wgmma", queue.device, first_process) is None
    assert (own, begun.asked, len(waiting)) == ([], 1, 1)
    if answer is not None:  # the first process has ended without an answer
        proven.TEXTS.clear()
        forget()
    assert proven.has_failed(waiting) == (answer is not None)
    assert check.asked == int(answer is not None)
    assert not list(kept.glob("*.claim"))


def test_sources_are_kernels_too():
    import convdispatch_nvidia

    assert "int8/pack.cl" in {name for name, _ in keys._sources(convdispatch_nvidia.__name__)}
    assert "./output.cl" in {name for name, _ in keys._sources("convdispatch.api")}


def test_a_check_s_programs_are_for_opencl_queues(queue):
    """A check launches on a queue of its own also while a plan for CUDA's streams is being built."""
    inside = []
    with ptx_program.for_streams():
        proven.proven(PACKAGE, "fma", queue.device, lambda: inside.append(ptx_program._thread.for_streams))
        assert ptx_program._thread.for_streams
    assert inside == [False]
