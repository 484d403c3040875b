"""Twenty more sabotages, each of another kind: conv() is right twice, and one sentence says who and what."""

from __future__ import annotations

import os
import signal

import pytest
from sabotaging import PLUGIN, check_one_warning

import convdispatch as cd

WORKS = """
from convdispatch_im2col import Im2col
class Plan:
    def __init__(self, *arguments):
        self.plan = Im2col().plan(*arguments)
        self.workspace_size = self.plan.workspace_size
    def enqueue(self, *arguments, **more):
        return self.plan.enqueue(*arguments, **more)
Bad.fuses = Im2col.fuses
Bad.configs = lambda self, *a: Im2col().configs(*a)
Bad.cost = lambda self, *a: 1e-9
Bad.plan = lambda self, context, problem, config: Plan(context, problem, config)
"""
"""A plugin that is right, to be broken by the lines that follow."""
KINDS = {
    # what: (lines, the sentence)
    "text_that_raises": (
        "class Text(str):\n    def __bool__(self): throw(Odd('bool'))\nBad.rejects = lambda self, *a: Text('x')",
        "its rejects() raised Odd: bool",
    ),
    "number_that_raises": (
        "class Number(float):\n    def __float__(self): throw(Odd('float'))\nBad.cost = lambda self, *a: Number(1)",
        "its cost() raised Odd: float",
    ),
    "whole_number_that_lies": (
        "class Whole(int):\n    def __index__(self): throw(Odd('index'))\n    def __int__(self): throw(Odd('int'))\n"
        "Bad.workspace = lambda self, *a: Whole(1)",
        "its workspace() raised Odd: int",
    ),
    "list_without_an_end": (
        "class Endless(list):\n    def __iter__(self): return endless()\nBad.configs = lambda self, *a: Endless([{}])",
        "its configs() answered more than 1000 configurations",
    ),
    "mapping_that_raises": (
        "class Map(dict):\n    def values(self): throw(Odd('values'))\n    def items(self): throw(Odd('items'))\n"
        "Bad.configs = lambda self, *a: [Map(a=1)]",
        "its configs() raised Odd: ",
    ),
    "config_in_itself": (
        "own = {}\nown['a'] = own\nBad.configs = lambda self, *a: [own]", "its configs() answered"
    ),
    "config_nested_too_deep": (
        "deep = []\nfor _ in range(100_000):\n    deep = [deep]\nBad.configs = lambda self, *a: [{'a': deep}]",
        "its configs() raised RecursionError",
    ),
    "stops_the_iteration": ("Bad.rejects = lambda self, *a: next(iter(()))", "its rejects() raised StopIteration"),
    "error_whose_text_raises": (
        "class Mute(Exception):\n    def __str__(self): throw(Odd('str'))\nBad.cost = lambda self, *a: throw(Mute())",
        "its cost() raised Mute: its message could not be read",
    ),
    "error_without_an_end": (
        "Bad.cost = lambda self, *a: throw(ValueError('z' * 10**7))", "its cost() raised ValueError: zzz"
    ),
    "group_of_errors": (
        "Bad.cost = lambda self, *a: throw(BaseExceptionGroup('many', [SystemExit(1), ValueError('x')]))",
        "its cost() raised BaseExceptionGroup: many",
    ),
    "coroutine": (
        "async def later(self, *a): return None\ndef closed(self, *a):\n    made = later(self)\n    made.close()\n"
        "    return made\nBad.rejects = closed",
        "its rejects() answered <corou",
    ),
    "class_in_place_of_an_answer": ("Bad.rejects = lambda self, *a: str", "its rejects() answered <class 'str'>"),
    "bytes_in_place_of_words": ("Bad.rejects = lambda self, *a: b'3x3 only'", "its rejects() answered b'3x3 only'"),
    "plan_that_is_a_class": ("Bad.plan = lambda self, *a: Plan", "must return workspace_size"),
    "size_that_grows_as_it_is_read": (
        "class Grows(Plan):\n    reads = 0\n    @property\n    def workspace_size(self):\n        Grows.reads += 1\n"
        "        return 'x' if Grows.reads > 0 else 0\n"
        "    @workspace_size.setter\n    def workspace_size(self, v): pass\n"
        "Bad.plan = lambda self, context, problem, config: Grows(context, problem, config)",
        "must return workspace_size",
    ),
    "event_that_is_a_wait": (
        "class Done:\n    pass\nPlan.enqueue = lambda self, *a, **k: Done()", "enqueue must return an event"
    ),
    "enqueue_of_another_form": ("Plan.enqueue = lambda self, queue: None", "failed as it ran: "),
    "frees_its_own_plan": (
        "def once(self, *a, **k):\n    del self.plan\n    return self.plan.enqueue(*a, **k)\nPlan.enqueue = once",
        "failed as it ran: ",
    ),
    "raises_frozen_s_cousin": (
        "import pyopencl as cl\n"
        "Plan.enqueue = lambda self, *a, **k: throw(cl.LogicError('clFlush failed: INVALID_COMMAND_QUEUE'))",
        "failed as it ran: LogicError",
    ),
    "interrupts_nobody": (
        "import signal\n"
        "Bad.cost = lambda self, *a: (signal.raise_signal(signal.SIGUSR1), throw(OSError(9, 'bad file')))[1]",
        "its cost() raised OSError",
    ),
    "deletes_its_methods": (
        "def gone(self, *a):\n    del Bad.cost\n    return None\nBad.rejects = gone\nBad.cost = lambda self, *a: 1e-9\n"
        "Bad.workspace = property(lambda self: throw(Odd('workspace')))",
        "its workspace() raised Odd: workspace",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_conv_is_right_and_says_so_once(sabotage, kind):
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        lines, words = KINDS[kind]
        sabotage(PLUGIN.format(method="rejects", expression="None") + WORKS + lines + "\n")
        said = check_one_warning(words)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(said) < 1500
    assert said.isprintable() or "\n" in said
    assert os.getpid()
    assert cd.ConvDispatchWarning
