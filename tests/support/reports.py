"""What reports of invented runs share: a card, where it ran, its ceilings."""

from __future__ import annotations

DEVICE = {
    "title": "Simulated: <b>card</b>", "name": "<b>card</b>", "type": "gpu", "arch": "sim", "compute_units": 4,
    "global_mem_size": 1 << 30, "driver": "1", "key": "sim",
}  # fmt: skip
ENVIRONMENT = {"created": "2026-01-02T03:04:05Z", "device": DEVICE, "python": "3", "system": "x"}
ENVIRONMENT |= {"packages": {}, "plugins": {}}
ROOFS = {"float32": {"flops": {"rate": 1e9, "how": "a"}, "bandwidth": {"rate": 1e9, "how": "b"}, "matrix": None}}
