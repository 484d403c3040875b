"""The rates of a device: those that its calibration saved, else an estimate by its size.

Each device's rates are in a JSON file of the folder that ``CONVDISPATCH_RATES`` names, by default one in the user's
data folder. With ``off`` nothing is measured or saved, and estimates are used.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from pathlib import Path

from ..api import settings
from ..api.device import DeviceInfo
from ..api.errors import ConvDispatchWarning
from ..api.rates import DeviceRates
from . import jsontext, plainfile
from .cache_home import user_folder

_FIELDS = {"flops": (1e5, 1e19), "bandwidth": (1e4, 1e17), "launch": (1e-9, 10.0)}
"""The range of each rate, in operations and bytes a second and in seconds; a value outside it is refused."""
LAUNCH = 3e6
"""Operations at peak rate in the time of one kernel launch, on the cores that the costs were fitted on."""
QUEUE_LAUNCH = 5.06e-6
"""Seconds that a kernel launch takes on a GPU's OpenCL queue."""
STREAM_LAUNCH = 0.8e-6
"""Seconds that a kernel launch takes after another on a CUDA stream. Fitted on the times of 493 problems in CUDA
graphs; equal on an H100 and an H200."""
_H200 = (65e12 / 132, 4.25e12 / 132)
"""Float32 operations and bytes a second of one compute unit, measured on an NVIDIA H200, which has 132 of them."""
KINDS: dict[tuple[str, str], tuple[float, float]] = {
    ("nvidia", "sm_90"): _H200,
    ("nvidia", "sm_80"): (0.97 * 19.5e12 / 108, 0.88 * 2.04e12 / 108),  # NVIDIA A100 with 80 GB
    ("nvidia", "sm_8"): (0.97 * 82.6e12 / 128, 0.88 * 1.01e12 / 128),  # NVIDIA RTX 4090
    ("nvidia", "sm_7"): (0.97 * 15.7e12 / 80, 0.88 * 0.9e12 / 80),  # NVIDIA V100
    ("amd", "gfx94"): (0.97 * 81.7e12 / 304, 0.88 * 5.3e12 / 304),  # AMD MI300X, without packed float32
    ("amd", "gfx90a"): (0.97 * 23.9e12 / 104, 0.88 * 1.64e12 / 104),  # one die of an AMD MI250X
    ("amd", "gfx1"): (0.97 * 30.7e12 / 96, 0.88 * 0.96e12 / 96),  # AMD RX 7900 XTX, without dual issue
    # Intel Arc A770, whose compute units are vector engines
    ("intel", ""): (0.97 * 17.2e12 / 512, 0.88 * 0.56e12 / 512),
}
"""Float32 operations and bytes a second of one compute unit, by vendor and the beginning of the architecture; the first
entry that fits is used. Only the H200 is measured; the others are the makers' figures times the share of its maker's
that the H200 reaches. Unknown devices count as the H200. ``convdispatch calibrate`` measures the device itself."""
# The rates of a CPU were measured on two cores with AVX-512 under Intel's runtime.
_CPU_LANE = 340e9 / 32  # operations a second of one float32 lane
_CPU_BANDWIDTH = 28e9  # bytes a second of memory
_CPU_LAUNCH = 8.5e-6  # seconds of a kernel launch


@functools.lru_cache(maxsize=64)
def rates(device: DeviceInfo) -> DeviceRates:
    """The measured rates of a device, or else the estimate, with a warning if a file cannot be read."""
    if switched_off():
        return estimate(device)
    path = place(device)
    try:
        values = jsontext.loads(plainfile.read_text(path))
        measured_rates = DeviceRates(*(float(values[name]) for name in _FIELDS), measured=True)
        for name, (lowest, highest) in _FIELDS.items():
            if not lowest <= getattr(measured_rates, name) <= highest:  # the comparison is false for NaN too
                raise ValueError(f"{name} is between {lowest:g} and {highest:g}, got {getattr(measured_rates, name):g}")
    except FileNotFoundError:
        return estimate(device)
    except (OSError, ValueError, TypeError, KeyError) as error:
        message = f"{path} is no calibration ({error}): estimates hold; convdispatch calibrate measures anew"
        warnings.warn(message, ConvDispatchWarning, stacklevel=2)
        return estimate(device)
    return measured_rates


def switched_off() -> bool:
    """Whether the user has switched measured rates off, so that estimates hold."""
    return settings.RATES.value() == settings.OFF


def estimate(device: DeviceInfo) -> DeviceRates:
    """Rates in proportion to compute units of the device's kind, and on CPUs to the width of their vectors."""
    units = max(1, device.compute_units)
    if device.type == "cpu":
        return DeviceRates(_CPU_LANE * units * max(1, device.simd_width), _CPU_BANDWIDTH, _CPU_LAUNCH)
    kinds = (each for (vendor, arch), each in KINDS.items() if device.vendor == vendor and device.arch.startswith(arch))
    flops, bandwidth = next(kinds, _H200)
    launch = STREAM_LAUNCH if device.vendor == "nvidia" else QUEUE_LAUNCH
    return DeviceRates(flops * units, bandwidth * units, launch)


def keep(device: DeviceInfo, found: DeviceRates) -> Path:
    """Write measured rates, which are used from now on. Raises OSError where the folder cannot be written."""
    if switched_off():
        raise OSError("CONVDISPATCH_RATES=off keeps no rates")
    path = place(device)
    plainfile.publish(path, json.dumps({name: getattr(found, name) for name in _FIELDS}) + "\n")
    rates.cache_clear()
    return path


def place(device: DeviceInfo) -> Path:
    """The file of the rates that were measured on such a device."""
    chosen = settings.RATES.value()
    folder = Path(chosen) if chosen else user_folder("data") / "rates"
    parts = (device.platform, device.vendor, device.arch, device.name, str(device.compute_units), device.processor)
    return folder / (re.sub(r"[^a-z0-9]+", "-", "_".join(parts).lower()).strip("-") + ".json")
