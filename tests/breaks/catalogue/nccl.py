"""NCCL on the simulated CUDA: streams, coalescing, graphs, aborts and records; and each fault of the simulated NCCL."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import Any

from tests.breaks.breaks import Break, Theme, replace
from tests.breaks.catalogue.collectives import around
from tests.breaks.on_ranks import on_two_ranks

_theme = broken = Theme()
_on_cuda = functools.partial(_theme, device="simcuda")

_GRAPHS = "suites/collectives/test_graphs.py"
_ORDERED, _WAITS, _FREED, _COALESCED, _FACTORS, _SPLIT, _LARGE, _PACED = (
    f"suites/collectives/test_streams.py::test_{name}"
    for name in (
        "all_reduce_waits_for_the_current_stream_and_not_for_the_host",
        "wait_orders_the_stream_that_calls_it",
        "all_gather_keeps_the_memory_of_a_freed_input",
        "coalescing_manager_waits_for_the_current_stream",
        "all_reduce_has_what_nccl_alone_has",
        "split_group_divides_the_ranks",
        "all_reduce_of_large_buffers_is_whole",
        "all_reduce_of_few_bytes_takes_less_than_half_a_second",
    )
)
_ABORTS, _RECORD, _FAILED = (
    f"suites/collectives/test_watchdog.py::test_{name}"
    for name in (
        "abort_process_group_ends_a_collective_that_lacks_a_rank",
        "flight_recorder_has_each_call_with_its_state",
        "wait_raises_what_the_communicator_has_failed_with",
    )
)
_MOVES = "suites/collectives/test_values.py::test_moved_tensors_arrive_bit_for_bit"
_SYMMETRIC = "suites/collectives/test_symmetric_memory.py"
_PAIRS = "suites/collectives/test_pairs.py"
_BUCKETS = "suites/collectives/test_data_parallel.py::test_distributeddataparallel_averages_gradients"


# Demonstrations.


def streamed(rank: Any) -> object:
    """Return the results of collectives on a busy stream, beside it and on other streams, and of freed memory."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1, device=rank.device))
    given = torch.zeros(9, device=rank.device)
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)
    given.fill_(rank.number + 1.0)
    dist.all_reduce(given)
    went_on = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)
    work = dist.all_reduce(other := given.clone(), async_op=True)
    done = work.is_completed()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work.wait()
        waits = not side.query()
        seen = other.clone()
    torch.cuda.synchronize()
    held = torch.ones(1 << 20, device=rank.device)
    address = held.data_ptr()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
    held.record_stream(side)
    del held
    reused = torch.ones(1 << 20, device=rank.device).data_ptr() == address
    torch.cuda.synchronize()
    return given.tolist(), went_on, done, waits, seen.tolist(), reused


def grouped(rank: Any) -> object:
    """Return the results of coalesced collectives, factors, partial groups, averages of a graph, and recorded calls."""
    import pickle

    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as module

    given = [torch.full((3,), rank.number + 1.0, device=rank.device) for _ in range(2)]
    with module._coalescing_manager(device=rank.device):
        for each in given:
            dist.all_reduce(each)
    factored = torch.ones(2, device=rank.device)
    dist.all_reduce(factored, getattr(dist, "_make_nccl_premul_sum")(0.5))  # noqa: B009 - it has no types
    part = dist.split_group(split_ranks=[[0], [1]])
    assert part is not None
    size = part.size()
    captured = torch.ones(2, device=rank.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(captured)
    graph.replay()
    torch.cuda.synchronize()
    entries = pickle.loads(getattr(torch._C._distributed_c10d, "_dump_nccl_trace")())["entries"]  # noqa: B009
    return [each.tolist() for each in given], factored.tolist(), size, captured.tolist(), len(entries)


def trained(rank: Any) -> object:
    """Return the result of a step of data-parallel training with several buckets."""
    import gc

    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(1)
    model: Any = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).to(rank.device)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.02)
    for _ in range(2):
        wrapped(torch.ones(2, 64, device=rank.device) * (rank.number + 1)).square().mean().backward()
    found = [parameter.grad.sum().item() for parameter in model.parameters()]
    del wrapped, model
    gc.collect()
    return found


def aborted(rank: Any) -> object:
    """Abort a group while a collective lacks a rank, and return what follows."""
    import time

    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as module

    dist.all_reduce(torch.ones(1, device=rank.device))
    torch.cuda.synchronize()
    if rank.number == 1:
        while not (rank.folder / "over").exists():
            time.sleep(0.01)
        module._abort_process_group()
        return None
    dist.all_reduce(torch.ones(4, device=rank.device), async_op=True)
    module._abort_process_group()
    give_up = time.monotonic() + 3.0
    while not torch.cuda.current_stream().query() and time.monotonic() < give_up:
        time.sleep(0.01)
    event = torch.cuda.Event()
    event.record()
    (rank.folder / "over").touch()
    return dist.is_initialized()


def addressed(rank: Any) -> object:
    """Read the memory of both ranks in each rank, and return it."""
    import torch
    import torch.distributed as dist
    from torch.distributed import _symmetric_memory as module

    own = module.empty(8, dtype=torch.float32, device=rank.device)
    own.fill_(rank.number + 1.0)
    assert dist.group.WORLD is not None
    handle: Any = module.rendezvous(own, dist.group.WORLD)
    torch.cuda.synchronize()
    dist.barrier()
    found = [handle.get_buffer(other, (8,), torch.float32).tolist() for other in range(2)]
    dist.barrier()
    return found


_STREAMED, _GROUPED, _TRAINED, _ABORTED, _ADDRESSED = (
    on_two_ranks(body, cuda=True) for body in (streamed, grouped, trained, aborted, addressed)
)


# Streams.


@_on_cuda("all_reduce waits until the device has done it.", _ORDERED, shows=_STREAMED)
def nccl_all_reduce_waits_for_the_device() -> None:
    def make(original: Any) -> Any:
        def all_reduce(*more: Any, **named: Any) -> Any:
            import torch

            work = original(*more, **named)
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()
            return work

        return all_reduce

    around("all_reduce", make)


@_on_cuda("all_reduce does not wait for what the current stream has to do before.", _ORDERED, shows=_STREAMED)
def nccl_all_reduce_ignores_the_current_stream() -> None:
    def make(original: Any) -> Any:
        def all_reduce(*more: Any, **named: Any) -> Any:
            import torch

            if torch.cuda.is_current_stream_capturing():
                return original(*more, **named)
            with torch.cuda.stream(torch.cuda.Stream()):
                return original(*more, **named)

        return all_reduce

    around("all_reduce", make)


@_on_cuda("wait() of a collective orders no stream.", _WAITS, shows=_STREAMED)
def nccl_wait_orders_nothing() -> None:
    from torch.distributed import Work

    replace(Work, "wait", lambda original: lambda *_, **__: True)


@_on_cuda("wait() of a collective waits until the device has done it.", _WAITS, shows=_STREAMED)
def nccl_wait_blocks_the_host() -> None:
    from torch.distributed import Work

    def make(original: Any) -> Any:
        def wait(self: Any, *more: Any, **named: Any) -> Any:
            import torch

            done = original(self, *more, **named)
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream().synchronize()
            return done

        return wait

    replace(Work, "wait", make)


@_on_cuda("is_completed() of a collective is true at once.", _ABORTS, shows=_STREAMED)
def nccl_is_completed_at_once() -> None:
    from torch.distributed import Work

    replace(Work, "is_completed", lambda original: lambda self: True)


@_on_cuda("record_stream keeps no memory.", _FREED, shows=_STREAMED)
def record_stream_keeps_nothing() -> None:
    import torch

    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign,assignment]


# Groups.


@_on_cuda("Of coalesced collectives the first is lost.", _COALESCED, shows=_GROUPED)
def coalescing_loses_the_first() -> None:
    from torch.distributed import distributed_c10d as module

    def make(original: Any) -> Any:
        @contextmanager
        def manager(*more: Any, **named: Any) -> Any:
            with original(*more, **named) as made:
                yield made
                for calls in module._world.pg_coalesce_state.values():
                    if len(calls) > 1:
                        del calls[0]

        return manager

    around("_coalescing_manager", make)


@_on_cuda("A sum with a factor leaves out the factor.", _FACTORS, shows=_GROUPED)
def premultiplied_sum_has_no_factor() -> None:
    import torch.distributed as dist

    replace(dist, "_make_nccl_premul_sum", lambda original: lambda factor: original(1.0))


@_on_cuda("split_group has all ranks.", _SPLIT, shows=_GROUPED)
def split_group_has_all_ranks() -> None:
    def make(original: Any) -> Any:
        def split(parent: Any = None, split_ranks: Any = None, *more: Any, **named: Any) -> Any:
            return original(parent, [sorted(rank for ranks in split_ranks for rank in ranks)], *more, **named)

        return split

    around("split_group", make)


@_on_cuda("A collective that is captured is left out of the graph.", _GRAPHS, shows=_GROUPED)
def captured_collective_is_lost() -> None:
    def make(original: Any) -> Any:
        def all_reduce(*more: Any, **named: Any) -> Any:
            import torch

            return None if torch.cuda.is_current_stream_capturing() else original(*more, **named)

        return all_reduce

    around("all_reduce", make)


@_on_cuda("The flight recorder loses the last call.", _RECORD, shows=_GROUPED)
def flight_recorder_loses_a_call() -> None:
    import pickle

    from torch._C import _distributed_c10d as module

    def make(original: Any) -> Any:
        def dump(*more: Any, **named: Any) -> bytes:
            record = pickle.loads(original(*more, **named))
            record["entries"] = record["entries"][:-1]
            return pickle.dumps(record)

        return dump

    replace(module, "_dump_nccl_trace", make)


@_on_cuda("An abort forgets the group, and its collectives still wait.", _ABORTS, shows=_ABORTED)
def abort_ends_nothing() -> None:
    from torch.distributed import distributed_c10d as module

    replace(module, "_abort_process_group", lambda original: lambda *_, **__: None)


@_on_cuda("get_buffer returns a rank's own memory for every rank that is requested.", _SYMMETRIC, shows=_ADDRESSED)
def symmetric_memory_is_not_shared() -> None:
    from torch._C import _distributed_c10d as module

    owner: Any = module
    replace(
        owner._SymmetricMemory,
        "get_buffer",
        lambda original: lambda self, rank, *more, **named: original(self, self.rank, *more, **named),
    )


# Training.


@_on_cuda("DistributedDataParallel leaves its second bucket as it was.", _BUCKETS, shows=_TRAINED)
def ddp_drops_a_bucket() -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    def dropping(_: object, bucket: Any) -> Any:
        import torch.distributed as dist

        tensor = bucket.buffer()
        if bucket.index() == 1:
            made: Any = torch.futures.Future(devices=[tensor.device])
            made.set_result(tensor)
            return made
        tensor.div_(dist.get_world_size())
        future: Any = dist.all_reduce(tensor, async_op=True).get_future()  # type: ignore[union-attr]
        return future.then(lambda done: done.value()[0])

    def make(original: Any) -> Any:
        def init(self: Any, *more: Any, **named: Any) -> None:
            original(self, *more, **named)
            self.register_comm_hook(None, dropping)

        return init

    replace(DistributedDataParallel, "__init__", make)


# Faults of the simulated NCCL. One case is enough for a fault that a time limit finds.

for _fault, _breaks, *_cases in (
    ("reduction_loses_rank", "A reduction leaves out the last rank.", _GRAPHS),
    ("collective_early", "A collective reads its input when it is called.", _ORDERED, _COALESCED),
    ("broadcast_stale", "A broadcast gives what the one before it gave.", f"{_MOVES}[broadcast-2]", _LARGE),
    ("ranks_out_of_order", "What all ranks give is in another order.", f"{_MOVES}[all_gather_single-2]", _FREED),
    ("async_error_untold", "A failed communicator reports no error.", _FAILED),
    ("abort_hangs", "An abort never returns.", f"{_ABORTS}[late]"),
    ("rank_slow", "The last rank needs a second more for each collective.", f"{_PACED}[2]"),
    ("rank_hangs", "The last rank never gets through a collective.", f"{_PACED}[2]"),
    ("large_buffer_corrupted", "A byte of a large result is wrong on the last rank.", _LARGE),
):
    broken.add(Break(f"nccl_{_fault}", _breaks, tuple(_cases), device="simcuda", fault=_fault))

# Faults of copies and events between devices.

for _fault, _breaks in (
    ("wait_ignored", "A stream does not wait for an event of another device."),
    ("copy_drops_bytes", "A copy between devices leaves out the last part."),
    ("copy_corrupts_bytes", "A copy between devices changes a byte."),
    ("peer_copy_unordered", "A copy between devices does not wait for its turn."),
):
    broken.add(Break(f"pairs_{_fault}", _breaks, (_PAIRS,), device="simcuda", fault=_fault))
