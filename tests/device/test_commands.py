"""Where commands go: plans, products and copies give their commands to whatever stands for a queue."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest
from checking import make_operands

from convdispatch.api import ConvProblem, InvalidArgument, PluginError
from convdispatch.api.policy import Policy
from convdispatch.device import runtime
from convdispatch.device.commands.interface import Commands
from convdispatch.device.commands.queues import OpenCLQueue
from convdispatch.device.commands.recording import Recording
from convdispatch.device.replay.program import Program
from convdispatch.selection import dispatch
from convdispatch.selection.choice import ranking
from convdispatch.selection.prepared import Prepared

PROBLEM = ConvProblem.parse("mb2ic16ih9oc32kh3ph1").replace(bias=True, residual=True, activation="relu")


class Log(Commands):
    """Commands of another kind: handed on to a queue, and written down."""

    def __init__(self, queue):
        self.queue, self.log = queue, []

    def launch(self, kernel, arguments, wait_for=None):
        self.log.append(kernel.name)
        return OpenCLQueue(self.queue).launch(kernel, arguments, wait_for)

    def copy(self, target, source, size, offsets=(0, 0), wait_for=None):
        self.log.append("copy")
        return OpenCLQueue(self.queue).copy(target, source, size, offsets, wait_for)

    def fill(self, target, number, offset, size, wait_for=None):
        self.log.append("fill")
        return OpenCLQueue(self.queue).fill(target, number, offset, size, wait_for)

    def allocate(self, size):
        self.log.append("allocate")
        return runtime.allocate(self.queue, size)

    def fresh(self, size):
        return OpenCLQueue(self.queue).fresh(size)

    def bring(self, array):
        return OpenCLQueue(self.queue).bring(array)

    def read(self, region, array, offset=0):
        OpenCLQueue(self.queue).read(region, array, offset)

    def write(self, region, array, offset=0):
        OpenCLQueue(self.queue).write(region, array, offset)

    def call(self, work, operands, what, wait_for=None):
        self.log.append(f"call {what}")
        return work(self.queue, *operands, wait_for=wait_for)


def _buffers(queue, problem):
    operands, expected = make_operands(problem)
    given = {name: np.ascontiguousarray(array) for name, array in operands.present().items()}
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    held = {name: cl.Buffer(queue.context, flags, hostbuf=array) for name, array in given.items()}
    expected = expected.astype(np.float32)
    return held, cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, expected.nbytes), expected


def _enqueue(prepared, queue, held, out):
    prepared.enqueue(queue, held["x"], held["w"], out, held.get("bias"), held.get("residual"))


@pytest.mark.parametrize("solver", ["im2col", "winograd.f2x3", "fft.tiled", "implicitgemm.direct", "onednn.forward"])
def test_every_plan_gives_all_its_commands_to_what_it_is_handed(queue, solver):
    contestants = ranking.contestants(PROBLEM, runtime.device_info(queue.device))
    name = next((name for name in contestants if name == solver or name.startswith(solver)), None)
    if name is None:
        pytest.skip(f"{solver} is not installed")
    try:
        prepared = dispatch.prepare(PROBLEM, queue.context, Policy(solver=name))
    except Exception as error:
        pytest.skip(str(error))
    held, out, expected = _buffers(queue, PROBLEM)
    log, plain = Log(queue), np.empty_like(expected)
    _enqueue(prepared, queue, held, out)
    cl.enqueue_copy(queue, plain, out)
    cl.enqueue_fill_buffer(queue, out, np.float32(np.nan), 0, expected.nbytes)
    _enqueue(prepared, log, held, out)
    got = np.empty_like(expected)
    cl.enqueue_copy(queue, got, out)
    assert np.array_equal(got, plain)
    assert np.allclose(got, expected, atol=1e-2)
    assert log.log == [f"call {name}"] if solver.startswith("onednn") else len(log.log) >= 1
    assert not any(entry.startswith("call") for entry in log.log) or solver.startswith("onednn")


class OwnMeans:
    """Enqueues through pyopencl."""

    workspace_size = 0

    def enqueue(self, queue, x, w, y, workspace, wait_for=None):
        return cl.enqueue_fill_buffer(queue, y, np.float32(7), 0, 4 * 128, wait_for=wait_for)


class SaysSo(OwnMeans):
    recordable = False


def _prepared(queue, plan):
    problem = ConvProblem.parse("mb1ic4ih4oc8kh1")
    solver = ranking.contestants(problem, runtime.device_info(queue.device))["im2col"]
    return Prepared(queue.context, problem, problem, ranking.Candidate(solver, {}, ""), plan)


def test_a_plan_of_its_own_means_that_says_so_is_called_at_every_replay(queue):
    recording = Recording(queue)
    x, w, y = (recording.allocate(512, persistent=True) for _ in range(3))
    _prepared(queue, SaysSo()).enqueue(recording, x, w, y)
    assert [command.what for command in recording.commands] == ["im2col"]
    program = Program(recording)
    got = np.zeros(128, np.float32)
    for _ in range(2):
        cl.enqueue_fill_buffer(queue, program.memory(y), np.float32(0), 0, 512)
        program.run()
        cl.enqueue_copy(queue, got, program.memory(y))
        assert (got == 7).all()


def test_a_plan_of_its_own_means_that_keeps_silent_is_told_what_to_say(queue):
    recording = Recording(queue)
    x, w, y = (recording.allocate(512, persistent=True) for _ in range(3))
    with pytest.raises(PluginError, match="recordable = False"):
        _prepared(queue, OwnMeans()).enqueue(recording, x, w, y)
    assert not recording.commands


def test_a_recorded_command_cannot_be_waited_for(queue):
    recording = Recording(queue)
    command = recording.fill(recording.allocate(4), np.float32(0), 0, 4)
    with pytest.raises(InvalidArgument, match="when it is replayed"):
        command.wait()
