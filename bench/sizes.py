"""Memory of a process that meets ever new sizes: ``conv`` on so many different images in a row, each once.

    python bench/sizes.py [COUNT] [--solver GLOB] [--again]

Prints the process' resident memory as it goes, and at the end the most, what is kept, and how long a size took.
``--again`` asks for the first two hundred sizes once more: dropped programs come back from their files.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from convdispatch import conv, policy
from convdispatch.device import runtime
from convdispatch.device.programs import kernels
from convdispatch.selection import dispatch


def resident() -> float:
    """MiB of memory that the process holds."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def sizes(count: int) -> list[tuple[int, int]]:
    """So many different heights and widths."""
    return [(8 + i % 60, 8 + i // 60) for i in range(count)]


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=3000)
    parser.add_argument("--solver", default=None)
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    w = np.ones((8, 8, 3, 3), np.float32)
    print(f"{runtime.device_info(runtime.default_device())}; {resident():.0f} MiB before the first call")
    most, began = 0.0, time.perf_counter()
    with policy(solver=given.solver):
        for number, (height, width) in enumerate(sizes(given.count), 1):
            conv(np.ones((1, 8, height, width), np.float32), w, padding=1)
            most = max(most, resident())
            if number in (1, 10, 100) or number % 500 == 0:
                spent = (time.perf_counter() - began) / number * 1e3
                print(f"{number:6} sizes: {resident():5.0f} MiB, {spent:6.1f} ms a size", flush=True)
        print(f"most: {most:.0f} MiB; kept: {len(dispatch._plans)} plans, {len(kernels._programs)} programs "
              f"of about {kernels._programs.nbytes >> 20} MiB")  # fmt: skip
        if given.again:
            began, again = time.perf_counter(), sizes(given.count)[:200]
            for height, width in again:
                conv(np.ones((1, 8, height, width), np.float32), w, padding=1)
            spent = (time.perf_counter() - began) / len(again) * 1e3
            print(f"the first {len(again)} once more: {spent:.1f} ms a size, {resident():.0f} MiB")


if __name__ == "__main__":
    main()
