"""What ``harness ready`` says about each fault of the simulated CUDA, with two devices or more."""

from __future__ import annotations

from dataclasses import dataclass

from harness.ready.model import Problem, Step, Verdict


@dataclass(frozen=True, slots=True)
class Expected:
    """The first problem: its kind is one of `kinds`, and the test that found it one of `tests`."""

    kinds: tuple[str, ...]
    tests: tuple[str, ...]

    def fits(self, problem: Problem | None) -> bool:
        """Return whether the problem is the expected one, with the verdict and the next step of its kind."""
        return (
            problem is not None
            and problem.kind in self.kinds
            and problem.check in self.tests
            and (problem.verdict, problem.step) == (Verdict.NOT_READY, _STEPS[problem.kind])
        )


_STEPS = {
    "wrong_result": Step.RESET_GPU,
    "device_error": Step.RESET_GPU,
    "hang": Step.RESET_GPU,
    "far_too_slow": Step.RESET_GPU,
    "crash": Step.LOOK,
    "driver_contract": Step.REBOOT,
    "wrong_peer": Step.LOOK,
    "wrong_collective": Step.LOOK,
    "group_hang": Step.LOOK,
}


def _wrong(*tests: str) -> Expected:
    return Expected(("wrong_result",), tests)


def _contract(*tests: str) -> Expected:
    return Expected(("driver_contract",), tests)


_COLLECTIVE, _GROUP_HANG = (
    Expected(("wrong_collective",), ("collectives",)),
    Expected(("group_hang",), ("collectives",)),
)
#: A fault of all work strikes one of the first tests of a process; which one is chance.
_EARLY = Expected(
    ("wrong_result", "driver_contract"),
    ("context", "kernels_in_order", "memory", "adjacent_order", "fills", "stream_waits", "copies", "pools", "waits"),
)

#: By fault. None: the fault is not found, and the verdict is ready.
EXPECTED: dict[str, Expected | None] = {
    "wait_ignored": _wrong("stream_waits"),
    "external_event_not_awaited": _wrong("external_events"),
    "event_early": _wrong("waits"),
    "elapsed_time_negative": _contract("events"),
    "stream_query_early": _wrong("waits"),
    "priorities_ignored": _contract("events"),
    "synchronize_early": _EARLY,
    "set_device_ignored": _contract("errors"),
    "host_function_early": _wrong("stream_waits"),
    "wrong_stream_order": _EARLY,
    "launch_lost": _EARLY,
    "launch_hangs": Expected(("hang",), ("context",)),
    "launch_kills_process": Expected(("crash",), ("context",)),
    "slow": Expected(("far_too_slow",), ("launches",)),
    "copy_drops_bytes": _EARLY,
    "copy_corrupts_bytes": _EARLY,
    "non_blocking_blocks": _contract("asynchronous_copies"),
    "peer_copy_unordered": Expected(("wrong_peer",), ("pairs",)),
    "fill_ignored": _EARLY,
    "managed_memory_stale": _contract("fills"),
    "memory_info_stale": _contract("memory_accounts"),
    "free_leaks": _contract("memory_accounts"),
    "oom_early": _contract("memory_accounts"),
    "pool_block_given_twice": _contract("pools"),
    "pool_keeps_memory": _contract("pools"),
    "pool_statistics_drift": _contract("pools"),
    "pool_peak_not_reset": _contract("pools"),
    "error_code_wrong": _contract("errors"),
    "error_not_noted": _contract("errors"),
    "error_not_cleared": _contract("errors"),
    "error_not_sticky": None,  # an error that stays ends the context, and writes to the kernel's log of a GPU
    "capture_drops_node": _wrong("graphs", "external_events"),
    "capture_doubles_node": _wrong("graphs", "external_events"),
    "replay_skips_node": _wrong("graphs", "external_events"),
    "replay_stale": _wrong("graphs", "external_events"),
    "ipc_memory_stale": _COLLECTIVE,
    "device_lost": Expected(("device_error",), ("context",)),
    "reduction_loses_rank": _COLLECTIVE,
    "collective_early": _COLLECTIVE,
    "broadcast_stale": _COLLECTIVE,
    "ranks_out_of_order": _COLLECTIVE,
    "async_error_untold": None,  # a failed communicator hangs a real NCCL
    "abort_hangs": _GROUP_HANG,
    "rank_slow": _COLLECTIVE,
    "rank_hangs": _GROUP_HANG,
    "large_buffer_corrupted": _COLLECTIVE,
}
