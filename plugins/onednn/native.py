"""Runs calls of a C library as one command of an OpenCL CPU device's queue, without Python and without waiting.

``clEnqueueNativeKernel`` takes a function of one argument; the runtime puts the buffers' addresses into that argument
and calls it when the command's turn comes. The function here is forty instructions' worth of machine code that walks a
list of calls, so that the device's thread needs no lock of Python's: a callback written in Python could deadlock with
a thread that waits for the queue, and would stand still while another thread computes in Python. A library that
generates code as oneDNN does needs executable memory anyway.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from convdispatch.api import ConvDispatchError

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["Call", "Script"]

_WORDS = 6
# The argument: the address of a status word, then records of six words (function, four arguments, and what is added to
# the second argument, because the runtime gives a buffer's address and a tensor may begin further on), then a zero.
_CODE = bytes.fromhex(
    "53"  # push rbx
    "4154"  # push r12
    "4883ec08"  # sub rsp, 8: calls want the stack aligned to 16
    "4c8b27"  # mov r12, [rdi]
    "488d5f08"  # lea rbx, [rdi+8]
    "488b03"  # next: mov rax, [rbx]
    "4885c0"  # test rax, rax
    "7420"  # je done
    "488b7b08"  # mov rdi, [rbx+8]
    "488b7310"  # mov rsi, [rbx+16]
    "48037328"  # add rsi, [rbx+40]
    "488b5318"  # mov rdx, [rbx+24]
    "488b4b20"  # mov rcx, [rbx+32]
    "ffd0"  # call rax
    "41090424"  # or [r12], eax
    "4883c330"  # add rbx, 48
    "ebd8"  # jmp next
    "4883c408"  # done: add rsp, 8
    "415c"  # pop r12
    "5b"  # pop rbx
    "c3"  # ret
)


class Call(NamedTuple):
    """One call: ``function(first, second, third, fourth)``, addresses all.

    A text as ``second`` names an operand: the address of its buffer, plus ``offset`` bytes, takes its place.
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
    import pyopencl as cl

    # pyopencl does not wrap this function; the loader that it is linked with has it.
    function = ctypes.CDLL(cl._cl.__file__).clEnqueueNativeKernel
    function.restype = c_int
    function.argtypes = (
        *(c_void_p, c_void_p, c_void_p, c_size_t),
        *(c_uint, c_void_p, c_void_p),
        *(c_uint, c_void_p, c_void_p),
    )
    return function


class Script:
    """A list of calls as one command; ``status`` collects the bits of what they return (0: all is well)."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.status = c_int(0)
        self._words = (c_uint64 * (1 + _WORDS * len(calls) + 1))()
        self._words[0] = ctypes.addressof(self.status)
        places = []
        for number, call in enumerate(calls):
            at = 1 + _WORDS * number
            words = [*call[:5], call.offset]
            if isinstance(call.second, str):
                places.append((call.second, at + 2))
                words[2] = 0
            self._words[at : at + _WORDS] = words
        self.operands = tuple(name for name, _ in places)
        start = ctypes.addressof(self._words)
        self._places = (c_void_p * len(places))(*(start + 8 * at for _, at in places))
        self._buffers = c_void_p * len(places)

    def enqueue(self, queue: cl.CommandQueue, buffers: dict[str, Any], wait_for: Sequence[cl.Event]) -> cl.Event:
        """Enqueue the calls; the runtime copies the list, so it may be enqueued again at once."""
        import pyopencl as cl

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
