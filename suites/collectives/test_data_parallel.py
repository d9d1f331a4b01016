"""DistributedDataParallel, compared with the same model in one process, in float64.

Each rank has its own rows; the reference has the rows of all ranks.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .checking import Checks, digest, expect_all_right
from .groups import GATE, group, grouped, on_cpu, worlds

pytestmark = [GATE, pytest.mark.timeout(60)]

#: Gradients are averages of a few products. Rounding differs only in the order of additions.
TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}


class Model(nn.Module):
    """Two branches, one or both of which a call takes, and a weight that is used twice."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        made = {"dtype": torch.float64, "device": device}
        self.first = nn.Linear(6, 8, **made)
        self.shared = nn.Linear(8, 8, **made)
        self.left = nn.Linear(8, 3, **made)
        self.right = nn.Linear(8, 3, **made)

    def forward(self, rows: torch.Tensor, branch: str = "both") -> torch.Tensor:
        hidden = self.shared(self.shared(self.first(rows).tanh()).tanh())
        if branch == "left":
            return self.left(hidden)
        return self.left(hidden) + self.right(hidden).square()


def model(rank: Any, seed: int = 5) -> Model:
    torch.manual_seed(seed)
    return Model(torch.device("cpu")).to(rank.device)


def rows_of(number: int, step: int = 0) -> torch.Tensor:
    """Return the rows of a rank at a step."""
    return torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * step + number))


def loss_of(module: nn.Module, rank: Any, number: int, step: int = 0, **options: Any) -> torch.Tensor:
    """Return the loss of one rank's rows."""
    loss: torch.Tensor = module(rows_of(number, step).to(rank.device), **options).square().mean()
    return loss


def averages(rank: Any, steps: int = 1, **options: Any) -> dict[str, torch.Tensor | None]:
    """Return the gradients in one process: the mean over ranks of the losses, added up over steps."""
    single = model(rank)
    for step in range(steps):
        losses = [loss_of(single, rank, number, step, **options) for number in range(rank.world)]
        torch.stack(losses).mean().backward()
    return {name: parameter.grad for name, parameter in single.named_parameters()}


def compare(what: str, module: nn.Module, expected: dict[str, torch.Tensor | None], checks: Checks) -> None:
    """Compare the gradients of a wrapped model."""
    for name, parameter in module.named_parameters():
        found, wanted = parameter.grad, expected[name.removeprefix("module.")]
        if found is None or wanted is None:
            checks.true(f"{what}: gradient of {name} is {found}, expected {wanted}", found is wanted)
        else:
            checks.true(f"{what}: gradient of {name}", torch.allclose(found, wanted, **TOLERANCE))


#: Options with which the model is wrapped, by name.
WRAPS: dict[str, dict[str, Any]] = {
    "one bucket": {},
    "a bucket per parameter": {"bucket_cap_mb": 1e-6},
    "buckets of some parameters": {"bucket_cap_mb": 0.0007},
    "views of buckets": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0007},
    "static graph": {"static_graph": True},
    "unused parameters": {"find_unused_parameters": True},
}


@grouped
def gradients(rank: Any) -> tuple[Checks, list[str]]:
    """Compare the gradients with each way to wrap the model, in two steps."""
    checks, hashes = Checks(rank.number), []
    expected = averages(rank), averages(rank, 2)
    for name, options in WRAPS.items():
        wrapped = DistributedDataParallel(model(rank), **options)
        for step in range(2):
            loss_of(wrapped, rank, rank.number, step).backward()
            compare(f"{name}, step {step}", wrapped, expected[step], checks)
        hashes.append(digest([parameter.grad for parameter in wrapped.parameters()]))
    return checks, hashes


@worlds(1, 2, 4)
def test_distributeddataparallel_averages_gradients(ranks: Any, world: int) -> None:
    """For any division into buckets, the gradients equal those of one process, and have the same bits on all ranks."""
    results = ranks.run(gradients, world=world)
    expect_all_right([checks for checks, _ in results])
    assert all(hashes == results[0][1] for _, hashes in results)


@grouped
def training(rank: Any) -> Checks:
    """Run five steps of an optimizer, in a group and in one process."""
    checks = Checks(rank.number)
    single = model(rank)
    alone = torch.optim.AdamW(single.parameters(), lr=0.05)
    wrapped = DistributedDataParallel(model(rank), bucket_cap_mb=0.0007)
    together = torch.optim.AdamW(wrapped.parameters(), lr=0.05)
    for step in range(5):
        alone.zero_grad()
        together.zero_grad()
        torch.stack([loss_of(single, rank, number, step) for number in range(rank.world)]).mean().backward()
        loss_of(wrapped, rank, rank.number, step).backward()
        alone.step()
        together.step()
    for (name, found), wanted in zip(wrapped.named_parameters(), single.parameters(), strict=True):
        checks.true(f"{name} after five steps", torch.allclose(found, wanted, rtol=1e-9, atol=1e-9))
    return checks


@worlds(2)
def test_distributeddataparallel_trains_as_one_process_does(ranks: Any, world: int) -> None:
    """After five steps of an optimizer, the weights equal those of a training on all rows."""
    expect_all_right(ranks.run(training, world=world))


@grouped
def unsynchronized(rank: Any) -> Checks:
    """Run steps under `no_sync`, also after an inner block, which keep gradients local, and a step that adds them."""
    checks = Checks(rank.number)
    expected = averages(rank, 3)
    for view in (False, True):
        wrapped = DistributedDataParallel(model(rank), gradient_as_bucket_view=view)
        local = model(rank)
        with wrapped.no_sync():
            loss_of(wrapped, rank, rank.number, 0).backward()
            with contextlib.suppress(InterruptedError), wrapped.no_sync():
                raise InterruptedError
            loss_of(wrapped, rank, rank.number, 1).backward()
        for step in range(2):
            loss_of(local, rank, rank.number, step).backward()
        own = {name: parameter.grad for name, parameter in local.named_parameters()}
        compare(f"under no_sync, views {view}", wrapped, own, checks)
        loss_of(wrapped, rank, rank.number, 2).backward()
        compare(f"after no_sync, views {view}", wrapped, expected, checks)
    return checks


@worlds(2, 3)
def test_no_sync_accumulates_local_gradients_until_the_next_step(ranks: Any, world: int) -> None:
    """Under `no_sync`, each rank keeps its own gradients; the first step without it averages the sums.

    The end of an inner block, also by an exception, does not end the outer one.
    """
    expect_all_right(ranks.run(unsynchronized, world=world))


@grouped
def unused(rank: Any) -> Checks:
    """Leave a branch unused on all ranks, and on all ranks but one."""
    checks = Checks(rank.number)
    wrapped = DistributedDataParallel(model(rank), find_unused_parameters=True)
    loss_of(wrapped, rank, rank.number, branch="left").backward()
    compare("a branch that no rank uses", wrapped, averages(rank, branch="left"), checks)

    wrapped.zero_grad()
    single = model(rank)
    branches = ["both", *["left"] * (rank.world - 1)]
    losses = [loss_of(single, rank, number, branch=branches[number]) for number in range(rank.world)]
    torch.stack(losses).mean().backward()
    loss_of(wrapped, rank, rank.number, branch=branches[rank.number]).backward()
    expected = {name: parameter.grad for name, parameter in single.named_parameters()}
    compare("a branch that rank 0 uses", wrapped, expected, checks)

    static = DistributedDataParallel(model(rank), static_graph=True)
    for step in range(3):
        static.zero_grad()
        loss_of(static, rank, rank.number, step, branch="left").backward()
    single = model(rank)
    losses = [loss_of(single, rank, number, 2, branch="left") for number in range(rank.world)]
    torch.stack(losses).mean().backward()
    expected = {name: parameter.grad for name, parameter in single.named_parameters()}
    compare("static graph with an unused branch", static, expected, checks)

    careless = DistributedDataParallel(model(rank))
    loss_of(careless, rank, rank.number, branch="left").backward()
    checks.refused(
        "the next forward without find_unused_parameters",
        lambda: loss_of(careless, rank, rank.number, branch="left"),
        "finished reduction in the prior iteration",
    )
    return checks


@worlds(2, 3)
def test_find_unused_parameters_averages_what_some_ranks_use(ranks: Any, world: int) -> None:
    """A branch that no rank uses has no gradient, and one that some ranks use has the average.

    Without `find_unused_parameters`, torch raises.
    """
    expect_all_right(ranks.run(unused, world=world))


@grouped
def parameters(rank: Any) -> Checks:
    """Start ranks with different weights and buffers."""
    checks = Checks(rank.number)
    wrapped = DistributedDataParallel(model(rank, seed=rank.number))
    for (name, found), wanted in zip(wrapped.named_parameters(), model(rank, seed=0).parameters(), strict=True):
        checks.same(f"{name} after wrapping", found, wanted)

    norm = nn.BatchNorm1d(6, dtype=torch.float64, device=rank.device)
    wrapped = DistributedDataParallel(norm)
    for step in range(2):
        wrapped(rows_of(rank.number, step).to(rank.device)).sum().backward()
    wrapped(rows_of(rank.number, 2).to(rank.device))
    alone = nn.BatchNorm1d(6, dtype=torch.float64, device=rank.device)
    for step in range(2):
        alone(rows_of(0, step).to(rank.device))
    alone(rows_of(rank.number, 2).to(rank.device))
    checks.true("running_mean begins with that of rank 0", torch.allclose(norm.running_mean, alone.running_mean))
    checks.equal("num_batches_tracked", int(norm.num_batches_tracked), 3)

    checks.refused("a module without parameters", lambda: DistributedDataParallel(nn.Tanh()), "gradient")
    return checks


@worlds(2, 3)
def test_distributeddataparallel_begins_with_the_state_of_rank_0(ranks: Any, world: int) -> None:
    """Weights are those of rank 0 after wrapping, and buffers before each forward."""
    expect_all_right(ranks.run(parameters, world=world))


@grouped
def uneven(rank: Any) -> Checks:
    """Train with r + 1 batches on rank r."""
    checks = Checks(rank.number)
    wrapped = DistributedDataParallel(model(rank))
    done = 0
    with Join([wrapped]):
        for step in range(rank.number + 1):
            wrapped.zero_grad()
            loss_of(wrapped, rank, rank.number, step).backward()
            done += 1
    checks.equal("batches", done, rank.number + 1)
    if rank.number == rank.world - 1:
        single = model(rank)
        (loss_of(single, rank, rank.number, rank.number) / rank.world).backward()
        expected = {name: parameter.grad for name, parameter in single.named_parameters()}
        compare("the last batch, which one rank has", wrapped, expected, checks)
    return checks


@worlds(2, 3)
def test_join_lets_ranks_have_different_numbers_of_batches(ranks: Any, world: int) -> None:
    """A rank without batches participates with zeros, so that the others do not wait forever."""
    expect_all_right(ranks.run(uneven, world=world))


def doubled(state, bucket):  # torch compares annotations with types, and they would be strings here
    """Reduce a bucket and double it, as a communication hook."""
    state.append(bucket.buffer().numel())
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0] * 2)


@grouped
def hooks(rank: Any) -> Checks:
    """Run a custom hook and hooks of torch."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    checks = Checks(rank.number)
    expected = averages(rank)
    wrapped = DistributedDataParallel(model(rank), bucket_cap_mb=0.0007)
    sizes: list[int] = []
    wrapped.register_comm_hook(sizes, doubled)
    twice = {name: None if grad is None else grad * 2 * rank.world for name, grad in expected.items()}
    for _ in range(2):  # torch divides into buckets again after the first step
        sizes.clear()
        wrapped.zero_grad()
        loss_of(wrapped, rank, rank.number).backward()
        compare("a hook that adds and doubles", wrapped, twice, checks)
        checks.equal("elements in buckets", sum(sizes), sum(each.numel() for each in wrapped.parameters()))
    checks.true(f"buckets {sizes}", len(sizes) > 1)
    checks.refused("a second hook", lambda: wrapped.register_comm_hook(sizes, doubled), "")

    wrapped = DistributedDataParallel(model(rank))
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    loss_of(wrapped, rank, rank.number).backward()
    for name, parameter in wrapped.named_parameters():
        wanted = expected[name.removeprefix("module.")]
        close = torch.allclose(parameter.grad, wanted, rtol=1e-2, atol=1e-3)
        what = f"fp16_compress_hook: gradient of {name}, off by {(parameter.grad - wanted).abs().max():.1e}"
        checks.true(what, close and not torch.equal(parameter.grad, wanted))
    return checks


@worlds(2)
def test_register_comm_hook_replaces_the_reduction(ranks: Any, world: int) -> None:
    """A hook gets each bucket once, and its result is the gradient."""
    expect_all_right(ranks.run(hooks, world=world))


def inconsistent(rank: Any) -> Checks:
    """Give the last rank a different model."""
    checks = Checks(rank.number)
    width = 4 if rank.number == rank.world - 1 else 3
    with contextlib.suppress(RuntimeError), group(on_cpu(rank)):
        pattern = "appears not to match sizes of the same param in process 0" if width == 4 else ""
        checks.refused("a model of another shape", lambda: DistributedDataParallel(nn.Linear(2, width)), pattern)
        raise RuntimeError("the group is not used again")
    return checks


@worlds(2)
def test_distributeddataparallel_refuses_models_that_differ(ranks: Any, world: int) -> None:
    """Shapes that differ between ranks are detected when the model is wrapped."""
    expect_all_right(ranks.run(inconsistent, world=world))
