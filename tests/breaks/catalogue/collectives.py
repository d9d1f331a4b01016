"""Collectives with a wrong rank, a wrong place, or a wrong moment.

Each break replaces functions of `torch.distributed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.breaks.breaks import Theme, edit
from tests.breaks.on_ranks import on_two_ranks

broken = Theme()

_SUITE = "suites/collectives"
_REDUCTIONS = f"{_SUITE}/test_values.py::test_reductions_are_exact"
_MOVES = f"{_SUITE}/test_values.py::test_moved_tensors_arrive_bit_for_bit"
_BITS = f"{_SUITE}/test_values.py::test_all_reduce_gives_all_ranks_the_same_bits_each_time"
_LAYOUTS = f"{_SUITE}/test_values.py::test_all_reduce_and_broadcast_keep_the_layout"
_ORDER, _FAILURES = f"{_SUITE}/test_order.py", f"{_SUITE}/test_failures.py"


def around(name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of torch.distributed under each of its names."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    made = make(getattr(distributed_c10d, name))
    for module in (distributed_c10d, dist):
        if hasattr(module, name):
            setattr(module, name, made)


def around_single(name: str, old: str, make: Callable[[Any], Any]) -> None:
    """Do the same for a function with a new name in torch 2.13."""
    import torch.distributed as dist

    around(name if hasattr(dist, name) else old, make)


def _own(group: Any = None) -> tuple[int, int]:
    """Return number and count of ranks, by functions that no break replaces."""
    import torch.distributed as dist

    found: Any = group if group is not None else dist.group.WORLD
    return found.rank(), found.size()


# Demonstrations.


def all_reduced(rank: Any) -> object:
    import torch
    import torch.distributed as dist

    found = []
    for op in ("SUM", "PRODUCT", "MAX", "AVG"):
        dist.all_reduce(given := torch.arange(1.0, 5.0) * (rank.number + 3), getattr(dist.ReduceOp, op))
        found.append(given.tolist())
    for _ in range(2):
        dist.all_reduce(given := torch.full((70000,), 0.1 * (rank.number + 1)))
        found.append([given[0].item(), given[-1].item()])
    dist.all_reduce(given := torch.arange(6.0).view(2, 3).t() * (rank.number + 1))
    buffer = torch.ones(8)
    dist.all_reduce(buffer[2:5])
    return [*found, given.tolist(), buffer.tolist()]


def moved(rank: Any) -> object:
    import torch
    import torch.distributed as dist

    own = torch.arange(4.0) + 10 * rank.number
    whole = torch.zeros(8)
    lists = [[torch.zeros(4) for _ in range(2)] for _ in range(2)]
    found: list[Any] = []
    for source in (0, 1, 1):
        dist.broadcast(given := own + source, source)
        found.append(given.tolist())
    dist.all_gather(lists[0], own)
    single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    single(whole, own)
    dist.gather(own, lists[1] if rank.number == 1 else None, dst=1)
    dist.scatter(part := torch.zeros(4), [own, own + 1] if rank.number == 1 else None, src=1)
    dist.all_to_all_single(exchanged := torch.zeros(4), own)
    dist.reduce(reduced := own.clone(), 1)
    scattered = torch.zeros(2)
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(scattered, own)
    listed = torch.zeros(4)
    dist.reduce_scatter(listed, [own, own * 2])
    tensors = [*lists[0], whole, *lists[1], part, exchanged, scattered, listed, reduced if rank.number == 1 else part]
    return [*found, *(tensor.tolist() for tensor in tensors)]


def ordered(rank: Any) -> object:
    import time

    import torch
    import torch.distributed as dist

    own = torch.full((3,), rank.number + 1.0)
    called, give_up = rank.folder / "called", time.monotonic() + 3.0
    if rank.number == 0:
        while not called.exists() and time.monotonic() < give_up:
            time.sleep(0.01)
        time.sleep(0.2)
    work = dist.all_reduce(own, async_op=True)
    early = work.is_completed() if rank.number == 1 else None
    called.touch()
    work.wait()
    seen = own.tolist()
    time.sleep(0.2)
    if rank.number == 0:
        time.sleep(0.3)
        (rank.folder / "mark").touch()
    dist.barrier()
    marked = (rank.folder / "mark").exists()
    got = torch.zeros(2)
    other = 1 - rank.number
    sent = torch.full((2,), rank.number + 5.0)
    for each in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, got, other)]):
        each.wait()
    if rank.number == 0:
        dist.send(sent, 1)
    sender = dist.recv(torch.zeros(2), 0) if rank.number == 1 else None
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, rank.number)
    listed = [rank.number, rank.number + 7]
    dist.broadcast_object_list(listed, src=1)
    alone = dist.new_group([1])
    size = dist.get_world_size(alone) if rank.number == 1 else None
    number = dist.get_rank(alone) if rank.number == 1 else None
    return early, seen, marked, got.tolist(), sender, objects, listed, size, number


def missing(rank: Any) -> object:
    """Return the texts about a rank that does not join, and the state after a group was destroyed."""
    import os
    import time
    from datetime import timedelta

    import torch.distributed as dist

    text = ""
    if rank.number == 0:
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=0.3))
        except RuntimeError as error:
            text = str(error).splitlines()[0]
        (rank.folder / "over").touch()
    while not (rank.folder / "over").exists():
        time.sleep(0.01)
    before = len(os.listdir("/proc/self/task"))
    dist.destroy_process_group()
    time.sleep(0.3)
    return text, before - len(os.listdir("/proc/self/task")), dist.is_initialized()


_ALL_REDUCED, _MOVED, _ORDERED, _MISSING = map(on_two_ranks, (all_reduced, moved, ordered, missing))


# Reductions.


def _all_reduce(change: Callable[[Any, Any, Any, Any], Any]) -> None:
    """Replace all_reduce. `change` gets a function that makes the reduction, then tensor, operation and group."""

    def make(original: Any) -> Any:
        def all_reduce(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
            import torch.distributed as dist

            op = dist.ReduceOp.SUM if op is None else op
            if async_op:
                return original(tensor, op, group, True)
            return change(lambda t, o: original(t, o, group), tensor, op, group)

        return all_reduce

    around("all_reduce", make)


@broken("all_reduce leaves out the last rank.", _REDUCTIONS, shows=_ALL_REDUCED)
def all_reduce_loses_a_rank() -> None:
    def change(call: Any, tensor: Any, op: Any, group: Any) -> None:
        number, world = _own(group)
        if number == world - 1:
            tensor.zero_()
        call(tensor, op)

    _all_reduce(change)


@broken("all_reduce adds, whatever the operation is.", _REDUCTIONS, shows=_ALL_REDUCED)
def all_reduce_always_adds() -> None:
    def change(call: Any, tensor: Any, op: Any, group: Any) -> None:
        import torch.distributed as dist

        call(tensor, dist.ReduceOp.SUM)

    _all_reduce(change)


@broken("An average of all_reduce is a sum.", _REDUCTIONS, shows=_ALL_REDUCED)
def all_reduce_average_is_a_sum() -> None:
    def change(call: Any, tensor: Any, op: Any, group: Any) -> None:
        import torch.distributed as dist

        call(tensor, dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op)

    _all_reduce(change)


@broken("all_reduce leaves what is behind the first 65536 elements as it was.", _REDUCTIONS, shows=_ALL_REDUCED)
def all_reduce_forgets_the_last_chunk() -> None:
    def change(call: Any, tensor: Any, op: Any, group: Any) -> None:
        before = tensor.clone()
        call(tensor, op)
        if tensor.dim() == 1 and tensor.numel() > 65536:
            tensor[65536:] = before[65536:]

    _all_reduce(change)


@broken("all_reduce writes one element beyond its tensor.", _REDUCTIONS, shows=_ALL_REDUCED)
def all_reduce_writes_beside_its_tensor() -> None:
    def change(call: Any, tensor: Any, op: Any, group: Any) -> None:
        call(tensor, op)
        if tensor.dim() == 1 and tensor.storage_offset() and tensor.numel() % 2:
            tensor.as_strided((tensor.numel() + 1,), (1,))[-1] = 0

    _all_reduce(change)


@broken("all_reduce writes a transposed tensor as if it were contiguous.", _LAYOUTS, shows=_ALL_REDUCED)
def all_reduce_ignores_the_layout() -> None:
    def change(call: Any, tensor: Any, op: Any, group: Any) -> None:
        call(tensor, op)
        if not tensor.is_contiguous():
            tensor.copy_(tensor.contiguous().flatten().view(tensor.shape[::-1]).permute(*reversed(range(tensor.dim()))))

    _all_reduce(change)


@broken("Sums of all_reduce differ by one bit between ranks.", _BITS, shows=_ALL_REDUCED)
def all_reduce_rounds_by_rank() -> None:
    def change(call: Any, tensor: Any, op: Any, group: Any) -> None:
        import torch

        call(tensor, op)
        if tensor.dtype is torch.float32 and tensor.numel() > 4 and _own(group)[0] == 1:
            tensor.copy_(torch.nextafter(tensor, tensor + 1))

    _all_reduce(change)


@broken("A sum of all_reduce differs by one bit at every second call.", _BITS, shows=_ALL_REDUCED)
def all_reduce_rounds_by_chance() -> None:
    calls: list[int] = []

    def change(call: Any, tensor: Any, op: Any, group: Any) -> None:
        import torch

        call(tensor, op)
        calls.append(1)
        if tensor.dtype is torch.float32 and tensor.numel() > 4 and len(calls) % 2:
            tensor.copy_(torch.nextafter(tensor, tensor + 1))

    _all_reduce(change)


@broken("reduce brings the result to rank 0, whatever the destination is.", _REDUCTIONS, shows=_MOVED)
def reduce_goes_to_the_first_rank() -> None:
    def make(original: Any) -> Any:
        def reduce(tensor: Any, dst: Any = None, *more: Any, **named: Any) -> Any:
            return original(tensor, 0, *more, **named)

        return reduce

    around("reduce", make)


@broken("reduce_scatter_single gives each rank the part of the next rank.", _REDUCTIONS, shows=_MOVED)
def reduce_scatter_single_shifts_the_parts() -> None:
    def make(original: Any) -> Any:
        def shifted(output: Any, given: Any, *more: Any, **named: Any) -> Any:
            return original(output, given.roll(output.numel()), *more, **named)

        return shifted

    around_single("reduce_scatter_single", "reduce_scatter_tensor", make)


@broken("reduce_scatter takes the tensors of its list one place further on.", _REDUCTIONS, shows=_MOVED)
def reduce_scatter_swaps_its_list() -> None:
    def make(original: Any) -> Any:
        def swapped(output: Any, given: Any, *more: Any, **named: Any) -> Any:
            return original(output, [*given[1:], given[0]], *more, **named)

        return swapped

    around("reduce_scatter", make)


# Moves.


@broken("broadcast sends the tensor of the call before, if that had the same shape.", _MOVES, _LAYOUTS, shows=_MOVED)
def broadcast_is_stale() -> None:
    sent: dict[Any, Any] = {}

    def make(original: Any) -> Any:
        def broadcast(tensor: Any, src: Any = None, group: Any = None, *more: Any, **named: Any) -> Any:
            key = (tuple(tensor.shape), tensor.dtype)
            fresh = tensor.clone()
            if _own(group)[0] == src and key in sent:
                tensor.copy_(sent[key])
            sent[key] = fresh
            return original(tensor, src, group, *more, **named)

        return broadcast

    around("broadcast", make)


@broken("broadcast takes rank 0 for the source.", _MOVES, shows=_MOVED)
def broadcast_comes_from_the_first_rank() -> None:
    def make(original: Any) -> Any:
        def broadcast(tensor: Any, src: Any = None, *more: Any, **named: Any) -> Any:
            return original(tensor, src if src is None else 0, *more, **named)

        return broadcast

    around("broadcast", make)


@broken("all_gather swaps the tensors of the first two ranks.", _MOVES, shows=_MOVED)
def all_gather_swaps_two_ranks() -> None:
    def make(original: Any) -> Any:
        def swapped(tensors: Any, *more: Any, **named: Any) -> Any:
            return original([*tensors[:2][::-1], *tensors[2:]], *more, **named)

        return swapped

    around("all_gather", make)


@broken("all_gather_single gives the last rank's part the content of the first.", _MOVES, shows=_MOVED)
def all_gather_single_repeats_a_part() -> None:
    def make(original: Any) -> Any:
        def repeated(output: Any, given: Any, *more: Any, **named: Any) -> Any:
            done = original(output, given, *more, **named)
            if output.numel() > given.numel():
                output[-given.numel() or len(output) :] = output[: given.numel()]
            return done

        return repeated

    around_single("all_gather_single", "all_gather_into_tensor", make)


@broken("gather has the tensors in reverse order.", _MOVES, shows=_MOVED)
def gather_reverses_the_ranks() -> None:
    def make(original: Any) -> Any:
        def reverse(tensor: Any, gather_list: Any = None, *more: Any, **named: Any) -> Any:
            return original(tensor, gather_list[::-1] if gather_list else gather_list, *more, **named)

        return reverse

    around("gather", make)


@broken("scatter sends the first tensor to all ranks.", _MOVES, shows=_MOVED)
def scatter_sends_one_tensor() -> None:
    def make(original: Any) -> Any:
        def same(tensor: Any, scatter_list: Any = None, *more: Any, **named: Any) -> Any:
            return original(tensor, scatter_list[:1] * len(scatter_list) if scatter_list else None, *more, **named)

        return same

    around("scatter", make)


@broken("all_to_all_single has the parts in reverse order.", _MOVES, shows=_MOVED)
def all_to_all_single_reverses_the_parts() -> None:
    def make(original: Any) -> Any:
        def reverse(output: Any, *more: Any, **named: Any) -> Any:
            import torch

            done = original(output, *more, **named)
            parts = output.clone().chunk(_own()[1])
            output.copy_(torch.cat(parts[::-1]))
            return done

        return reverse

    around("all_to_all_single", make)


# Moments.


class _Early:
    """A work that is done immediately."""

    def __init__(self, work: Any, tensor: Any) -> None:
        self._work, self._tensor = work, tensor

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self._work.get_future()


@broken("wait() of an asynchronous all_reduce returns at once.", _ORDER, shows=_ORDERED)
def wait_returns_early() -> None:
    def make(original: Any) -> Any:
        def all_reduce(tensor: Any, *more: Any, **named: Any) -> Any:
            work = original(tensor, *more, **named)
            return _Early(work, tensor) if named.get("async_op") else work

        return all_reduce

    around("all_reduce", make)


@broken("An asynchronous all_reduce waits for the other ranks.", _ORDER, shows=_ORDERED)
def async_op_is_synchronous() -> None:
    def make(original: Any) -> Any:
        def all_reduce(tensor: Any, *more: Any, **named: Any) -> Any:
            work = original(tensor, *more, **named)
            if named.get("async_op"):
                work.wait()
            return work

        return all_reduce

    around("all_reduce", make)


@broken("barrier does not wait.", _ORDER, shows=_ORDERED)
def barrier_does_nothing() -> None:
    around("barrier", lambda _: lambda *_, **__: None)


@broken("new_group has all ranks, whichever are named.", _ORDER, shows=_ORDERED)
def new_group_is_everybody() -> None:
    around("new_group", lambda original: lambda ranks=None, *more, **named: original(None, *more, **named))


@broken("get_rank has the number in the world, whatever the group is.", _ORDER, shows=_ORDERED)
def get_rank_ignores_the_group() -> None:
    around("get_rank", lambda original: lambda group=None: original())


@broken("recv reports rank 1 as the source of the message.", _ORDER, shows=_ORDERED)
def recv_names_another_sender() -> None:
    def make(original: Any) -> Any:
        def recv(*more: Any, **named: Any) -> int:
            original(*more, **named)
            return 1

        return recv

    around("recv", make)


@broken("A received message of a batch is lost.", _ORDER, shows=_ORDERED)
def batch_isend_irecv_loses_what_it_receives() -> None:
    def make(original: Any) -> Any:
        def batch(operations: Any) -> Any:
            for operation in operations:
                if operation.op.__name__ == "irecv":
                    operation.tensor = operation.tensor.clone()
            return original(operations)

        return batch

    around("batch_isend_irecv", make)


@broken("all_gather_object has the object of the first rank in every place.", _ORDER, shows=_ORDERED)
def all_gather_object_repeats_an_object() -> None:
    def make(original: Any) -> Any:
        def gathered(objects: Any, *more: Any, **named: Any) -> None:
            original(objects, *more, **named)
            objects[:] = objects[:1] * len(objects)

        return gathered

    around("all_gather_object", make)


@broken("broadcast_object_list sends the first object alone.", _ORDER, shows=_ORDERED)
def broadcast_object_list_sends_one_object() -> None:
    def make(original: Any) -> Any:
        def first(objects: Any, *more: Any, **named: Any) -> None:
            part = objects[:1]
            original(part, *more, **named)
            objects[:1] = part

        return first

    around("broadcast_object_list", make)


# Failures.


@broken("The error of monitored_barrier does not name the rank.", _FAILURES, shows=_MISSING)
def monitored_barrier_names_no_rank() -> None:
    def make(original: Any) -> Any:
        def barrier(*more: Any, **named: Any) -> None:
            try:
                original(*more, **named)
            except RuntimeError:
                raise RuntimeError("a rank failed to pass monitoredBarrier") from None

        return barrier

    around("monitored_barrier", make)


@broken("destroy_process_group keeps the threads and connections of the group.", _FAILURES, shows=_MISSING)
def destroy_process_group_leaks() -> None:
    kept: list[Any] = []

    def make(original: Any) -> Any:
        def destroy(group: Any = None) -> None:
            import torch.distributed as dist

            kept.append(dist.group.WORLD if group is None else group)
            original(group)

        return destroy

    around("destroy_process_group", make)


@broken("An all_reduce with a peer that is gone returns, without an error.", _FAILURES, shows=_MISSING)
def errors_are_not_told() -> None:
    def make(original: Any) -> Any:
        def silent(*more: Any, **named: Any) -> Any:
            try:
                return original(*more, **named)
            except RuntimeError:
                return None

        return silent

    for name in ("all_reduce", "monitored_barrier"):
        around(name, make)


# Bits that several ranks share, and ranks of a group.


def mixed(rank: Any) -> object:
    import torch
    import torch.distributed as dist

    dist.all_reduce(given := torch.tensor([6, 3 + 2 * rank.number]), dist.ReduceOp.BXOR)
    return given.tolist()


@broken("all_reduce takes an exclusive or for an or.", _REDUCTIONS, shows=on_two_ranks(mixed))
def all_reduce_xor_is_or() -> None:
    def change(call: Any, tensor: Any, op: Any, group: Any) -> None:
        import torch.distributed as dist

        call(tensor, dist.ReduceOp.BOR if op == dist.ReduceOp.BXOR else op)

    _all_reduce(change)


def named_in_a_group(rank: Any) -> object:
    """Return the result of `recv` for a message of the first rank of a group, which is the second rank of the world."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    alone = dist.new_group([1])
    if rank.number == 0:
        return None

    class Received:  # a stub: with two ranks, no group has a second rank with another number
        wait, _source_rank = (lambda self: True), (lambda self: 0)

    stubs: dict[str, Any] = {"irecv": lambda *_more, **_named: Received(), "_check_not_self_rank": lambda *_: None}
    kept = {name: getattr(distributed_c10d, name) for name in stubs}
    try:
        vars(distributed_c10d).update(stubs)
        return dist.recv(torch.ones(1), group=alone)
    finally:
        vars(distributed_c10d).update(kept)


@broken("recv from any rank of a group returns its rank in the group.", _ORDER, shows=on_two_ranks(named_in_a_group))
def recv_returns_the_rank_in_the_group() -> None:
    edit("torch.distributed.distributed_c10d:recv", "src = get_global_rank(group, group_src)", "src = group_src")
    around("recv", lambda edited: edited)
