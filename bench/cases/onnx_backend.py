"""ONNX's backend cases for convolutional nets, every one: passed, refused in words, or failed.

``python -m bench onnx_backend [--core] [--only TEXT] [--kind KIND] [--json FILE]``

All: single nodes whose operators are here, and what was converted from PyTorch. ``--core``: of single nodes those of
convolutional layers, what was converted from PyTorch, and the nine whole nets, with what onnxruntime makes of them.
"""

from __future__ import annotations

import argparse
import collections
import json
import time
import traceback
import warnings
from pathlib import Path

import onnx_suite

from convdispatch.api import ConvDispatchError
from convdispatch.onnx import Backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose names hold this text")
    parser.add_argument("--core", action="store_true", help="layers of convolutional nets and the nine nets")
    parser.add_argument("--kind", action="append", choices=[*onnx_suite.KINDS, onnx_suite.NETS])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    answers: dict[str, tuple[str, str]] = {}
    start = time.perf_counter()
    kinds = given.kind or [*onnx_suite.KINDS, *[onnx_suite.NETS] * given.core]
    operators = onnx_suite.CORE if given.core else onnx_suite.CNN
    kind_of = collections.Counter()
    for name, case in onnx_suite.cases(kinds, operators).items():
        if given.only not in name:
            continue
        kind_of[case.kind] += 1
        try:
            onnx_suite.run(case, lambda model: Backend.prepare(model, "CPU"))
            answers[name] = ("passed", "")
        except ConvDispatchError as error:
            answers[name] = ("refused", str(error).splitlines()[0])
        except Exception as error:
            answers[name] = ("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            if given.trace:
                traceback.print_exc()
        if answers[name][0] != "passed":
            print(f"{answers[name][0]:8} {name}: {answers[name][1]}", flush=True)
    counts = collections.Counter(state for state, _ in answers.values())
    print(f"{len(answers)} cases ({', '.join(f'{n} {kind}' for kind, n in kind_of.items())}): {dict(counts)}, "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
