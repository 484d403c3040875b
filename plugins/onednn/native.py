"""Runs calls of a C library as one command of an OpenCL CPU device's queue, without Python and without waiting.

``clEnqueueNativeKernel`` takes a function of one argument; the runtime puts the buffers' addresses into that argument
and calls it when the command's turn comes. The function here is some twenty instructions of machine code that walk a
list of calls, so that the device's thread does not need Python's lock: a callback written in Python could deadlock with
a thread that waits for the queue, and would pause while another thread computes in Python. oneDNN generates code, so it
needs executable memory anyway.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, NamedTuple

import pyopencl as cl

from convdispatch.api import ConvDispatchError

_RECORD_WORDS = 6
_HEADER_WORDS = 3
# Machine code of the native kernel. Its argument is an array of 64-bit words: the address of a status word; the byte
# offset of the records; a zero; an address per buffer, which the runtime fills in; then records of six words
# (function, four arguments, byte offset of the word that is added to the second argument: a buffer's or the zero);
# then a zero.
_CODE = bytes.fromhex(
    "53"  # push rbx: together with r12 and r13 this aligns the stack to 16 bytes for the calls
    "4154"  # push r12
    "4155"  # push r13
    "4989fd"  # mov r13, rdi
    "4c8b27"  # mov r12, [rdi]
    "488b5f08"  # mov rbx, [rdi+8]
    "4801fb"  # add rbx, rdi
    "48833b00"  # next: cmp qword [rbx], 0
    "7425"  # je done
    "488b7b08"  # mov rdi, [rbx+8]
    "488b4328"  # mov rax, [rbx+40]
    "498b740500"  # mov rsi, [r13+rax]
    "48037310"  # add rsi, [rbx+16]
    "488b5318"  # mov rdx, [rbx+24]
    "488b4b20"  # mov rcx, [rbx+32]
    "ff13"  # call [rbx]
    "41090424"  # or [r12], eax
    "4883c330"  # add rbx, 48
    "ebd5"  # jmp next
    "415d"  # done: pop r13
    "415c"  # pop r12
    "5b"  # pop rbx
    "c3"  # ret
)


class Invocation(NamedTuple):
    """One C call ``function(first, second, third, fourth)``; all fields are addresses or integers.

    A str as ``second`` names an operand: the address of its buffer plus ``offset`` bytes is passed instead.
    """

    function: int
    first: int
    second: int | str = 0
    third: int = 0
    fourth: int = 0
    offset: int = 0


@functools.lru_cache(maxsize=1)
def _walker() -> tuple[int, Any]:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    page[: len(_CODE)] = _CODE
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (c_void_p, c_size_t, c_int)
    if protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        raise ConvDispatchError(f"no executable memory: mprotect failed with error {ctypes.get_errno()}")
    return address, page


@functools.lru_cache(maxsize=1)
def _enqueue_native() -> Any:
    # pyopencl does not wrap clEnqueueNativeKernel; the OpenCL loader that it is linked with exports it.
    function = ctypes.CDLL(cl._cl.__file__).clEnqueueNativeKernel
    function.restype = c_int
    function.argtypes = (
        *(c_void_p, c_void_p, c_void_p, c_size_t),
        *(c_uint, c_void_p, c_void_p),
        *(c_uint, c_void_p, c_void_p),
    )
    return function


class Script:
    """A list of C calls as one command of a queue; ``status`` is the bitwise or of their results (0: all succeeded)."""

    def __init__(self, calls: Sequence[Invocation]) -> None:
        self.status = c_int(0)
        self.operands = tuple(dict.fromkeys(call.second for call in calls if isinstance(call.second, str)))
        word_of = {name: _HEADER_WORDS + slot for slot, name in enumerate(self.operands)}
        records_start = _HEADER_WORDS + len(self.operands)
        self._words = (c_uint64 * (records_start + _RECORD_WORDS * len(calls) + 1))()
        self._words[:2] = [ctypes.addressof(self.status), 8 * records_start]
        for index, call in enumerate(calls):
            second, word = (call.offset, word_of[call.second]) if isinstance(call.second, str) else (call.second, 2)
            start = records_start + _RECORD_WORDS * index
            record = [call.function, call.first, second, call.third, call.fourth, 8 * word]
            self._words[start : start + _RECORD_WORDS] = record
        base = ctypes.addressof(self._words)
        self._places = (c_void_p * len(word_of))(*(base + 8 * word for word in word_of.values()))
        self._buffers = c_void_p * len(word_of)

    def enqueue(self, queue: cl.CommandQueue, buffers: dict[str, Any], wait_for: Sequence[cl.Event]) -> cl.Event:
        """Enqueue the calls; the OpenCL runtime copies the list, so it may be enqueued again without waiting. Two
        threads must not call this at the same time."""
        memory = self._buffers(*(buffers[name].int_ptr for name in self.operands))
        events = (c_void_p * len(wait_for))(*(event.int_ptr for event in wait_for)) if wait_for else None
        event = c_void_p()
        error = _enqueue_native()(
            *(queue.int_ptr, _walker()[0], self._words, ctypes.sizeof(self._words)),
            *(len(self.operands), memory, self._places),
            *(len(wait_for), events, byref(event)),
        )
        if error:
            raise ConvDispatchError(f"clEnqueueNativeKernel failed with error {error}")
        return cl.Event.from_int_ptr(event.value, retain=False)
