"""The faults of the software device. Each fault is its own demonstration: the device counts how often it occurs."""

from __future__ import annotations

from harness.sim.native import faults
from harness.sim.softdevice import registration as soft
from tests.breaks.breaks import Break, Theme

broken = Theme()

_COPIES = ("suites/transfers/test_round_trips.py", "suites/streams/test_copies.py")
_STREAMS = ("suites/streams/test_streams.py", "suites/streams/test_events.py", "suites/streams/test_many.py")
_MEMORY = ("suites/allocator/test_statistics.py", "suites/streams/test_record_stream.py")
_GRAPHS = ("suites/graphs/test_accelerator_graphs.py", "suites/graphs/test_capture.py")

#: The suites that should notice a fault. The other faults have the suites of streams.
_SUITES = {
    "record_stream_ignored": ("suites/streams/test_record_stream.py",),
    "copy_drops_bytes": _COPIES,
    "copy_corrupts_bytes": _COPIES,
    "non_blocking_blocks": ("suites/streams/test_copies.py", "suites/transfers/test_pinned.py"),
    "block_given_twice": (*_MEMORY, "suites/allocator/test_model.py"),
    "statistics_drift": _MEMORY,
    "memory_not_returned": _MEMORY,
    "peak_not_reset": _MEMORY,
    "generator_not_advanced": ("suites/rng",),
    "replay_skips_node": _GRAPHS,
    "replay_uses_stale_input": _GRAPHS,
    "autocast_ignores_dtype": ("suites/amp/test_regions.py", "suites/amp/test_casting.py"),
    "reduction_loses_term": ("suites/numerics/test_reductions.py",),
    "reads_disturb_neighbours": ("suites/endurance/test_memory.py",),
    "slow": ("suites/streams/test_pace.py",),
    "off_by_one_ulp": ("suites/numerics/test_products.py", "suites/numerics/test_exact.py"),
}

#: Further options of the run. The time limit finds a hang in each case that waits for the device, and one is enough.
_OPTIONS = {"launch_hangs": ("--maxfail=1",)}

for _name, _breaks in faults.fault_catalogue(soft.BACKEND.kind).items():
    broken.add(
        Break(
            f"soft_{_name}",
            _breaks,
            _SUITES.get(_name, _STREAMS),
            device="soft",
            fault=_name,
            options=_OPTIONS.get(_name, ()),
        )
    )
