"""Devices, contexts, queues and memory, as users call them; ``convdispatch.device`` implements them."""

from .device.memory.allocator import memory_statistics, release_memory, set_memory_limit
from .device.runtime import context, default_device, device_info, devices, find_device, platforms, probe, queue

__all__ = [
    "context",
    "default_device",
    "device_info",
    "devices",
    "find_device",
    "memory_statistics",
    "platforms",
    "probe",
    "queue",
    "release_memory",
    "set_memory_limit",
]
