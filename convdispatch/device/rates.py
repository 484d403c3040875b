"""The rates of a device: those kept from its calibration, else an estimate by its size.

Kept in one JSON file a device, in the folder that ``CONVDISPATCH_RATES`` names, else in the user's data folder;
``off`` measures and keeps nothing: estimates hold.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import warnings
from pathlib import Path

import platformdirs

from ..api.device import DeviceInfo
from ..api.errors import ConvDispatchWarning
from ..api.rates import DeviceRates
from . import jsontext, plainfile

__all__ = ["estimate", "keep", "rates", "switched_off"]

_FIELDS = {"flops": (1e5, 1e19), "bandwidth": (1e4, 1e17), "launch": (1e-9, 10.0)}
"""What a device can have, in operations and bytes a second and in seconds: beyond it a prediction says nothing."""
# An H200 with 132 compute units, and two cores with AVX-512 under Intel's runtime, both measured.
_GPU_UNIT = DeviceRates(flops=65e12 / 132, bandwidth=4.25e12 / 132, launch=5.06e-6)
_CPU_LANE, _CPU_BANDWIDTH, _CPU_LAUNCH = 340e9 / 32, 28e9, 8.5e-6


@functools.lru_cache(maxsize=64)
def rates(device: DeviceInfo) -> DeviceRates:
    """What was measured of a device, or the estimate. A file that cannot be read counts as none, with a warning."""
    if switched_off():
        return estimate(device)
    path = place(device)
    if device.processor and not path.exists():  # perhaps from before files named processors
        path = place(dataclasses.replace(device, processor=""))
    try:
        values = jsontext.loads(plainfile.read_text(path))
        found = DeviceRates(*(float(values[name]) for name in _FIELDS), measured=True)
        for name, (least, most) in _FIELDS.items():
            if not least <= getattr(found, name) <= most:  # not a number, too
                raise ValueError(f"{name} is between {least:g} and {most:g}, got {getattr(found, name):g}")
    except FileNotFoundError:
        return estimate(device)
    except (OSError, ValueError, TypeError, KeyError) as error:
        message = f"{path} is no calibration ({error}): estimates hold; convdispatch calibrate measures anew"
        warnings.warn(message, ConvDispatchWarning, stacklevel=2)
        return estimate(device)
    return found


def switched_off() -> bool:
    """Whether the user wants estimates."""
    return os.environ.get("CONVDISPATCH_RATES") == "off"


def estimate(device: DeviceInfo) -> DeviceRates:
    """Rates in proportion to compute units, and on CPUs to the width of their vectors."""
    units = max(1, device.compute_units)
    if device.type == "cpu":
        return DeviceRates(_CPU_LANE * units * max(1, device.simd_width), _CPU_BANDWIDTH, _CPU_LAUNCH)
    return DeviceRates(_GPU_UNIT.flops * units, _GPU_UNIT.bandwidth * units, _GPU_UNIT.launch)


def keep(device: DeviceInfo, found: DeviceRates) -> Path:
    """Write what was measured, in force from now on. Raises OSError where the folder cannot be written."""
    if switched_off():
        raise OSError("CONVDISPATCH_RATES=off keeps no rates")
    path = place(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({name: getattr(found, name) for name in _FIELDS}) + "\n", encoding="utf-8")
    draft.replace(path)
    rates.cache_clear()
    return path


def place(device: DeviceInfo) -> Path:
    """The file that holds what was measured on such a device."""
    chosen = os.environ.get("CONVDISPATCH_RATES")
    folder = Path(chosen).expanduser() if chosen else Path(platformdirs.user_data_dir("convdispatch")) / "rates"
    words = (device.platform, device.vendor, device.arch, device.name, str(device.compute_units), device.processor)
    return folder / (re.sub(r"[^a-z0-9]+", "-", "_".join(words).lower()).strip("-") + ".json")
