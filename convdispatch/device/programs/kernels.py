"""Turns kernel text (.cl, .cl.mako) and geometry macros into programs, and launches into plans.

``binary_cache`` caches compiled kernels on disk; this module caches programs in memory, by context and text. A text
that does not compile raises BuildFailed with the compiler's log.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import numbers
import operator
import re
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ...api import settings
from ...api.device import DeviceInfo
from ...api.errors import PluginError
from ...api.problem import EXTRAS
from ..cache import artifact_store
from ..cache.bounded import KB, MB, Bounded, Budget, Families
from ..cache.store import TEXTS
from ..commands.interface import Commands, Kernel, thread
from ..commands.queues import commands_of
from ..opencl.platforms import device_info
from ..startup_profile import phase
from . import template_cache, work_groups
from .binary_cache import compiled

_HEADER = "convdispatch.api"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?[fFhHuUlL]{0,3}")
_INCLUDE = re.compile(r"^#include <convdispatch/([\w.]+)>$", re.MULTILINE)
NEW_SHARE = 48 * MB
"""Bytes of the cache limit for new entries, such as further sizes of a layer; see ``cache.bounded``."""
PROGRAM_BYTES = 300 * KB
"""Bytes of memory of a program, without the part that grows with its binary. Measured on Intel's runtime for CPUs, like
BYTES_PER_BINARY_BYTE."""
BYTES_PER_BINARY_BYTE = 17
"""Bytes of memory of a program per byte of the binary from which it was loaded; a program compiled from text takes
twice as many."""
CALL_BYTES = 48 * KB
"""Bytes of the Python objects of a plan or a call, measured over 1,000 sizes of a layer."""
FIRST_OF_A_KIND = 32
"""The number of entries whose keys differ only in numbers, beyond which further ones count as new."""

_SUB_GROUP = "intel_reqd_sub_group_size"
_LEAST_16 = "gpu max"
"""Part of the architecture's name of Intel's GPUs whose narrowest sub-group has 16 work items. Their compiler makes it
32 wide though registers do not suffice: a work item of im2col's product spilled 4,096 bytes, of 16 it spills 64."""
FIRST_FORMS = 8
"""The number of input sizes of a net whose forms count as its own; further ones count as new."""


def cache_limit() -> int:
    """Bytes of host memory that all programs, plans and calls may take. A net of 160 different convolutions uses 480
    plans in a training step, some 400 MB on a CPU: with a lower limit, each step would plan hundreds anew."""
    return settings.CACHE_LIMIT.value()


BUDGET = Budget(cache_limit, lambda: min(NEW_SHARE, cache_limit()))
"""The budget of all programs of this process, and of the plans and calls that hold programs."""


def _trim(_: list[Any]) -> None:
    """Return the memory of evicted programs from malloc's heaps to the system. Programs that are evicted now are freed
    after this call, and returned by the next one."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


_programs = Bounded(BUDGET, _trim)


@functools.lru_cache(maxsize=256)
def _read(package: str, file: str) -> str:
    import importlib.resources

    return importlib.resources.files(package).joinpath(file).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=256)
def _template(package: str, file: str) -> Any:
    from mako.lookup import TemplateCollection
    from mako.template import Template

    class Beside(TemplateCollection):  # type: ignore[misc]
        """Looks up the files that a template includes in the template's own package."""

        def get_template(self, uri: str, relativeto: str | None = None) -> Any:
            return _template(package, uri)

        def adjust_uri(self, uri: str, filename: str) -> str:
            return uri

    return Template(_read(package, file), uri=f"{package}/{file}", strict_undefined=True, lookup=Beside())


def _rendered(package: str, file: str, values: Mapping[str, Any]) -> str:
    template = _read(package, file)
    subject = template_cache.Subject(package, template, values)
    pack_key = subject.artifact_key() if artifact_store.wants_texts() else None
    return TEXTS.cached(
        subject.text_key(), pack_key, lambda: _template(package, file).render(**values), f"{package}/{file}"
    )


def kernel_text(package: str, file: str, **values: Any) -> str:
    """The text of a kernel file beside ``package``'s modules; ``.cl.mako`` is rendered with ``values``.

    ``#include <convdispatch/NAME>`` becomes the header's file of that name (``output.cl``, ``lanes.cl``) with its own
    includes; raises FileNotFoundError if there is none. ``#line`` makes the compiler's messages name the file.
    """
    if file.endswith(".mako"):
        with phase("template"):
            text = _rendered(package, file, values)
    else:
        text = _read(package, file)
    return _included(text, f"{package}/{file}")


def _included(text: str, name: str) -> str:
    """The text with its header files included, and the files that these include."""

    def header(include: re.Match[str]) -> str:
        next_line = text.count("\n", 0, include.start()) + 2
        return f'{_included(_read(_HEADER, include[1]), f"convdispatch/{include[1]}")}#line {next_line} "{name}"'

    # Most texts have no such #include, and searching the start of each line is slow.
    if "#include <convdispatch/" in text:
        text = _INCLUDE.sub(header, text)
    return f'#line 1 "{name}"\n{text}'


def config_macros(config: Mapping[str, Any]) -> str:
    """A solver's configuration as macros: ``{"tile_m": 8}`` becomes ``#define TILE_M 8``; booleans become 0 and 1.

    Names are identifiers; values are identifiers, finite numbers and booleans. Raises PluginError that names the macro:
    other text would be code, and a configuration may come from a file.
    """
    return "".join(f"#define {_macro_name(name)} {_macro_value(name, value)}\n" for name, value in config.items())


def define(**values: object) -> str:
    """OpenCL text with one ``#define`` per keyword. Values are not checked: a configuration needs ``config_macros``."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def _macro_name(name: Any) -> str:
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise PluginError(f"a macro's name is an identifier, got {name!r}")
    return name.upper()


def _macro_value(name: str, value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    word = isinstance(value, str) and (_IDENTIFIER.fullmatch(value) or _NUMBER.fullmatch(value))
    if word or isinstance(value, numbers.Integral):
        return str(value)
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return repr(float(value))
    raise PluginError(f"macro {name.upper()} is an identifier, a finite number or a boolean, got {value!r}")


def build(context: cl.Context, text: str | bytes, options: Sequence[str] = ()) -> cl.Program:
    """Compile ``text`` for the context's devices, or load a binary given as bytes, unless the program is cached.

    Raises BuildFailed with the compiler's log, and Frozen inside ``frozen()``.
    """
    if thread.texts is not None:
        return _Rendered(text)  # type: ignore[return-value]
    key = (context, text, tuple(options))
    program = _programs.part(key)
    return _programs.make(key, lambda: _compile(context, text, options), new=True) if program is None else program


class _Rendered:
    """Takes the place of a program whose text is only rendered: it has the kernels' names, and no binaries."""

    def __init__(self, text: str | bytes) -> None:
        self._text = text
        if thread.texts is not None and text not in thread.texts:
            thread.texts.append(text)

    def get_info(self, what: int) -> Any:
        if what == cl.program_info.KERNEL_NAMES and isinstance(self._text, str):
            return ";".join(re.findall(r"\bvoid\s+(\w+)\s*\(", self._text))
        return []


@contextlib.contextmanager
def rendering() -> Iterator[list[str | bytes]]:
    """Collects the texts that this thread would compile, in order; inside the block nothing is compiled or checked."""
    outer_texts, thread.texts = thread.texts, []
    try:
        yield thread.texts
    finally:
        thread.texts = outer_texts


_holders: weakref.WeakSet[Programs] = weakref.WeakSet()


def forget() -> None:
    """Drop every cached program, and the plans and calls that hold programs."""
    for holder in list(_holders):
        holder.drop()
    _programs.drop()


def for_device(text: str, info: DeviceInfo) -> str:
    """The text as the compiler of a device gets it."""
    if info.type == "cpu":
        return work_groups.counted(text)
    if _LEAST_16 in info.arch and _SUB_GROUP not in text:
        return f"#define kernel __attribute__(({_SUB_GROUP}(16))) __kernel\n{text}"
    return text


def driver_options(info: DeviceInfo) -> tuple[str, ...]:
    """The options that the compiler of a device needs for every text."""
    # Oclgrind's compiler defines cl_khr_fp16, although its device lacks the extension and computes float16 wrongly.
    simulated = ("-Ucl_khr_fp16",) if info.vendor == "oclgrind" else ()
    # A kernel that would spill gets 256 registers a hardware thread instead of 128 (Intel's GPU optimization guide).
    return (*simulated, "-cl-intel-enable-auto-large-GRF-mode") if _LEAST_16 in info.arch else simulated


def _compile(context: cl.Context, text: str | bytes, options: Sequence[str]) -> tuple[cl.Program, int]:
    infos = [device_info(device) for device in context.devices]
    options = (*options, *dict.fromkeys(option for info in infos for option in driver_options(info)))
    sources = {for_device(text, info) for info in infos} if isinstance(text, str) else {text}
    program = compiled(context, sources.pop() if len(sources) == 1 else text, options)
    if isinstance(text, str):
        work_groups.note(program, text)
    return program, PROGRAM_BYTES + BYTES_PER_BINARY_BYTE * sum(program.get_info(cl.program_info.BINARY_SIZES))


class Programs(Bounded):
    """A cache of objects that hold programs, such as plans, within the budget of programs; ``evicted`` and ``used`` are
    those of ``Bounded``.

    ``family(key)``: keys of a family differ only in sizes, and all but the first ``first`` keys of a family are new.
    Without ``family``, a value is new if one of its parts is, such as a call's plan.
    """

    def __init__(
        self,
        evicted: Callable[[list[Any]], None] = lambda values: None,
        used: Callable[[Any], int] = lambda value: 0,
        family: Callable[[Any], Hashable] | None = None,
        first: int = FIRST_OF_A_KIND,
    ) -> None:
        super().__init__(BUDGET, evicted, used)
        self._family, self._families = family, Families(first)
        _holders.add(self)

    @classmethod
    def of(cls, owner: Any) -> Programs:
        """A cache of a net's forms, dropped with the net. Forms of all but its first few input sizes count as new."""
        forms = cls(family=lambda key: None, first=FIRST_FORMS)
        weakref.finalize(owner, forms.drop).atexit = False
        return forms

    def make(
        self,
        key: Hashable,
        make: Callable[[], Any],
        new: bool | None = None,
        nbytes: Callable[[Any], int] = lambda value: 0,
    ) -> Any:
        """The cached value of a key, or else the result of ``make()``. ``nbytes(value)`` is further memory of a value,
        such as an arena; it counts only if the value is new."""
        if new is None and self._family is not None:
            new = self._families.further(self._family(key), key)

        def made() -> tuple[Any, int]:
            value = make()
            return value, CALL_BYTES + (nbytes(value) if new else 0)

        return super().make(key, made, new)


def without_numbers(key: Any) -> Any:
    """The family of a key: the key with its numbers left out."""
    if isinstance(key, tuple):
        return tuple(map(without_numbers, key))
    return None if isinstance(key, int | float) else key


def keeps_programs(make: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator like ``functools.lru_cache``, with ``cache_clear``, for functions that build programs."""
    cache = Programs(family=without_numbers)

    @functools.wraps(make)
    def ask(*arguments: Any) -> Any:
        value = cache.part(arguments)
        return cache.make(arguments, lambda: make(*arguments)) if value is None else value

    ask.cache_clear = cache.drop  # type: ignore[attr-defined]
    return ask


OPERANDS = ("x", "w", "y", "workspace", *EXTRAS)
"""The operands that an enqueue passes to every launch, in this order."""


class Launch:
    """One kernel with its sizes and its arguments; safe to enqueue from several threads.

    ``arguments`` mixes names with NumPy scalars; a call passes the operands that ``names`` lists, in that order.
    ``dtypes`` are the arguments' types, needed if named arguments are scalars: None for memory, else NumPy's dtype.
    """

    def __init__(
        self,
        program: cl.Program,
        kernel: str,
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
        arguments: str | Sequence[Any],
        *,
        names: Sequence[str],
        dtypes: Sequence[Any] | None = None,
    ) -> None:
        values = arguments.split() if isinstance(arguments, str) else list(arguments)
        self._scalars = [None if isinstance(argument, str) else argument for argument in values]
        self._places = [names.index(argument) if isinstance(argument, str) else None for argument in values]
        self._named = operator.itemgetter(*self._places) if len(values) > 1 and None not in self._places else None
        types = dtypes or [None if isinstance(a, str) else np.asarray(a).dtype for a in values]
        self.kernel = Kernel(program, kernel, global_size, local_size, types)

    def __call__(
        self, queue: cl.CommandQueue, operands: Sequence[Any], wait_for: Sequence[cl.Event] | None = None
    ) -> cl.Event:
        """Enqueue on ``queue``, ``operands`` in the order of ``names``."""
        if self._named is not None:
            arguments: Sequence[Any] = self._named(operands)
        else:
            arguments = [
                scalar if place is None else operands[place]
                for place, scalar in zip(self._places, self._scalars, strict=True)
            ]
        # On an OpenCL queue, launch as OpenCLQueue.launch does.
        if not isinstance(queue, Commands):
            kernel = self.kernel
            bound = kernel._bound or kernel.bound
            with kernel.lock:
                event = bound(queue, kernel.global_size, kernel.local_size, *arguments, wait_for=wait_for)
        else:
            event = commands_of(queue).launch(self.kernel, arguments, wait_for)
        thread.enqueued += 1
        return event
