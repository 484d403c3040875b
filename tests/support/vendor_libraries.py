"""Vendors' libraries in C, written for a test: sound ones, and those that break the header's contract in one place."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from paths import ROOT

INCLUDE = ROOT / "convdispatch" / "include"
ASKED = "const convdispatch_solver *s, const convdispatch_problem *p, const convdispatch_device *d"
FUNCTIONS = {
    "rejects": f"int32_t {{}}({ASKED}, char *text, size_t size)",
    "config": f"int32_t {{}}({ASKED}, uint32_t index, char *text, size_t size)",
    "cost": f"int32_t {{}}({ASKED}, const char *config, double *seconds)",
    "workspace": f"int32_t {{}}({ASKED}, const char *config, uint64_t *bytes)",
    "plan": f"int32_t {{}}({ASKED}, const char *config, void **plan, char *text, size_t size)",
    "enqueue": "int32_t {}(void *plan, const convdispatch_call *call, char *text, size_t size)",
    "free": "void {}(void *plan)",
    "packed": f"int32_t {{}}({ASKED}, const char *config, uint64_t *bytes)",
    "pack": "int32_t {}(void *plan, const convdispatch_call *call, char *text, size_t size)",
}
SOUND = {
    "rejects": "return CONVDISPATCH_OK;",
    "plan": "*plan = (void *)s; return CONVDISPATCH_OK;",
    "enqueue": "return CONVDISPATCH_INTERNAL;",
    "free": "",
}
HEAD = """
#include <convdispatch_plugin.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
"""
FIELDS = {
    "size": "sizeof(convdispatch_solver)",
    "places": "CONVDISPATCH_HOST | CONVDISPATCH_OPENCL | CONVDISPATCH_CUDA",
    "promises": "CONVDISPATCH_DETERMINISTIC",
    "fuses": "0",
    "dtypes": "1u << CONVDISPATCH_FLOAT32",
}


def source(solvers: Mapping[str, Mapping[str, str]], name: str = "bad", **table: str) -> str:
    """A library's text: each solver's function bodies and fields where they differ from a sound one's; of the table
    the fields, and ``getter``, ``load``: the bodies of the exported function and of what runs at load."""
    text, rows = [HEAD], []
    for number, (variant, parts) in enumerate(solvers.items()):
        bodies, names = {**SOUND, **parts}, []
        for function, declaration in FUNCTIONS.items():
            body = bodies.get(function)
            names.append("NULL" if body is None or body == "NULL" else f"{function}_{number}")
            if names[-1] != "NULL":
                text.append(f"static {declaration.format(names[-1])} {{ {body} }}")
        fields = [bodies.get(field, value) for field, value in FIELDS.items()]
        full = bodies.get("name", f'"{name}.{variant}"')
        text.append(f"static const convdispatch_solver solver_{number} = "
                    f"{{{', '.join(fields)}, 0, {full}, NULL, {', '.join(names)}}};")  # fmt: skip
        rows.append(f"&solver_{number}")
    text.append(f"static const convdispatch_solver *const solvers[] = {{{', '.join([*rows, 'NULL'])}}};")
    values = {"size": "sizeof(convdispatch_plugin)", "version": "2", "name": f'"{name}"', "vendor": '"Acme"',
              "release": '"1.2"', "count": str(len(rows)), "listed": "solvers", "unavailable": "NULL"}  # fmt: skip
    values |= table
    if "load" in table:
        text.append(f"__attribute__((constructor)) static void load(void) {{ {table['load']} }}")
    if "unavailable" in table:
        text.append(f"static int32_t lacks(char *text, size_t size) {{ {table['unavailable']} }}")
        values["unavailable"] = "lacks"
    order = ("size", "version", "name", "vendor", "release", "count")
    text.append(f"static const convdispatch_plugin plugin = {{{', '.join(values[each] for each in order)}, 0, "
                f"{values['listed']}, {values['unavailable']}}};")  # fmt: skip
    exported = table.get("symbol", "convdispatch_get_plugin")
    getter = table.get("getter", "(void)version; return &plugin;")
    text.append(f"CONVDISPATCH_EXPORT const convdispatch_plugin *{exported}(uint32_t version) {{ {getter} }}")
    return "\n".join(text)


def compiled(target: Path, text: str) -> Path:
    """The library of a text at ``target``; skips the test where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc)")
    command = [compiler, "-x", "c", "-", "-w", "-shared", "-fPIC", f"-I{INCLUDE}", "-lm", "-o", str(target)]
    subprocess.run(command, input=text, text=True, check=True)
    return target


def installed(folder: Path, name: str, text: str) -> None:
    """The library of a text in a folder, with the file NAME.icd that names it."""
    compiled(folder / f"lib{name}.so", text)
    (folder / f"{name}.icd").write_text(f"./lib{name}.so\n")
