"""Compilers side by side: the same programs, the longest texts first, and whatever happens to a child."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading

import numpy as np
import pyopencl as cl
import pytest
from host_programs import answer

from convdispatch import inference
from convdispatch.api import BuildFailed, build
from convdispatch.device import child, runtime
from convdispatch.device.opencl import platforms
from convdispatch.device.programs import binary_cache, compile_pool, kernels
from convdispatch.selection import dispatch

TEXT = "kernel void k(global int *x) { x[get_global_id(0)] = %d; }\n"


@pytest.fixture(autouse=True)
def two(monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")
    monkeypatch.setattr(compile_pool, "processors", lambda: 2)


def make_all(queue, numbers, padding=lambda number: "", for_cuda=False):
    """The programs of ``numbers``, and where each was compiled: None here, else the child's."""
    found, places = {}, {}
    real = compile_pool._Child.compile

    def compile_(self, text, *options):
        places[text] = self
        return real(self, text, *options)

    def one(number):
        found[number] = build(queue.context, TEXT % number + padding(number))

    kernels.forget()
    with pytest.MonkeyPatch.context() as patch, compile_pool.side_by_side(queue.device, for_cuda=for_cuda):
        patch.setattr(compile_pool._Child, "compile", compile_)
        compile_pool.run([functools.partial(one, number) for number in numbers])
    return found, places


@pytest.mark.parametrize("for_cuda", [False, True])
def test_programs_are_the_same(queue, for_cuda):
    """A device that is none of CUDA's has nothing assembled for it."""
    found, places = make_all(queue, range(100, 160), for_cuda=for_cuda)
    assert {number: answer(queue, program) for number, program in found.items()} == {n: n for n in range(100, 160)}
    assert places, "a child compiled some"
    assert len(places) < 60, "and this process others"


def test_a_binary_is_loaded_by_a_child_first_where_the_driver_keeps_machine_code(queue, monkeypatch):
    made = {number: build(queue.context, TEXT % number) for number in range(500, 516)}
    parts = {number: program.get_info(cl.program_info.BINARIES)[0] for number, program in made.items()}
    assert not compile_pool._keeps_machine_code(queue.device), "the driver is none of those"
    monkeypatch.setattr(compile_pool, "_keeps_machine_code", lambda device: True)
    seen, found, real, work = [], {}, compile_pool._Child.compile, compile_pool._Pool._work
    monkeypatch.setattr(compile_pool._Pool, "_work", lambda self, aside: work(self, True))

    def compile_(self, text, *options):
        seen.append(isinstance(text, bytes))
        return real(self, b"no binary" if seen[-1] and sum(seen) % 2 else text, *options)

    def one(number):
        build(queue.context, "// again\n" + TEXT % number)  # compilers start with texts
        found[number] = build(queue.context, parts[number])

    kernels.forget()
    with compile_pool.side_by_side(queue.device):
        monkeypatch.setattr(compile_pool._Child, "compile", compile_)
        compile_pool.run([functools.partial(one, number) for number in parts])
    assert {number: answer(queue, program) for number, program in found.items()} == {n: n for n in parts}
    assert sum(seen) > 8, "children load, all but what is built before they start"
    assert False in seen


@pytest.mark.parametrize(
    ("processors", "free", "of_gpu", "count"),
    [
        (2, 64, 0, 2),
        (1, 64, 0, 1),
        (16, 64, 140, 16),
        (64, 512, 140, 16),
        (16, 5, 140, 5),
        (16, 64, 8, 2),
        (16, 0, 0, 1),
    ],
)
def test_compilers_follow_processors_and_memory(queue, monkeypatch, processors, free, of_gpu, count):
    info = dataclasses.replace(runtime.device_info(queue.device), type="gpu" if of_gpu else "cpu",
                               global_mem_size=of_gpu << 30)  # fmt: skip
    monkeypatch.setattr(platforms, "device_info", lambda device: info)
    monkeypatch.setattr(compile_pool, "processors", lambda: processors)
    monkeypatch.setattr(compile_pool, "_available", lambda: free << 30)
    assert compile_pool.compilers(queue.device) == count


def test_outside_of_the_block_nothing_is_done(queue):
    compile_pool.run([lambda: pytest.fail("not now")] * 3)


def test_what_only_loads_stays_in_one_thread(queue):
    seen = set()
    with compile_pool.side_by_side(queue.device):
        compile_pool.run([lambda: seen.add(threading.get_ident())] * 20)
    assert seen == {threading.get_ident()}


def test_a_compilers_refusal_reaches_who_asked(queue):
    errors = []

    def wrong(number):
        with contextlib.suppress(cl.Error):
            try:
                build(queue.context, f"kernel void k(global int *x) {{ x[0] = unknown_{number:02}; }}")
            except BuildFailed as error:
                errors.append(error.log)

    with compile_pool.side_by_side(queue.device):
        compile_pool.run([functools.partial(wrong, number) for number in range(12)])
    assert [sum(f"unknown_{number:02}" in log for log in errors) for number in range(12)] == [1] * 12


def test_a_child_that_dies_costs_only_its_help(queue, monkeypatch):
    monkeypatch.setattr(compile_pool._Child, "compile", lambda self, text, options: self._process.kill() or 1 / 0)
    found, _ = make_all(queue, range(200, 230))
    assert {number: answer(queue, program) for number, program in found.items()} == {n: n for n in range(200, 230)}


def test_a_child_that_cannot_start_costs_nothing(queue, monkeypatch):
    monkeypatch.setattr(child.sys, "executable", "/no/such/python")
    found, places = make_all(queue, range(300, 310))
    assert len(found) == 10
    assert not places


def test_the_longest_text_is_taken_first(queue, monkeypatch):
    """One compiler, held until all texts wait."""
    order, waiting, real = [], threading.Event(), binary_cache.built

    class Slow(compile_pool._Pool):
        def put(self, asked):
            super().put(asked)
            if self._queue.qsize() >= 4:
                waiting.set()

    def built(context, options, *source):
        if isinstance(source[0], str):
            if order:
                waiting.wait(120)
            order.append(len(source[0]))
        return real(context, options, *source)

    monkeypatch.setattr(compile_pool, "_Pool", Slow)
    monkeypatch.setattr(compile_pool._Pool, "_child", lambda self: None)
    monkeypatch.setattr(binary_cache, "built", built)
    make_all(queue, range(400, 406), lambda number: "//" + "x" * (100 * (number % 100)))
    assert order[2:] == sorted(order[2:], reverse=True)


def test_a_net_is_planned_side_by_side(queue):
    import small_net

    shape = (1, 3, 13, 13)
    dispatch.forget()
    kernels.forget()
    net = inference.build(small_net.net(queue), shape, layout="nchw", queue=queue)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_pool, "processors", lambda: 1)
        dispatch.forget()
        kernels.forget()
        alone = inference.build(small_net.net(queue), shape, layout="nchw", queue=queue)
    assert [layer.solver for layer in net.layers] == [layer.solver for layer in alone.layers]
    x = small_net.normal(*shape)
    np.testing.assert_array_equal(net(x), alone(x))
