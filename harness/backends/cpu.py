"""The CPU. Every machine has it, and cases run on it if there is no other device."""

from __future__ import annotations

from harness.backends.backend import Backend

BACKEND = Backend(
    kind="cpu",
    torch_type="cpu",
    inventory="harness.devices.inventory:cpu_inventory",
    noun="the CPU",
    label="CPU",
    no_gpu="the device is the cpu",
    uuid_prefixes=("cpu",),
    hardware=False,
    implied={"devices": "==1", "device_count": "==1", "ranks": "==8"},
    is_initialized=lambda _: False,
    device_count=lambda _: 0,
    synchronize=lambda *_: None,
    seed=lambda *_: None,
    empty_cache=lambda _: None,
    properties=lambda *_: {},
    counters=None,
    ignored_meters=(),
)
