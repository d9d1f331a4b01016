"""Schedulers of the learning rate: the rate of each step compared with the documented formula, as number and tensor.

The formulas are those of the documentation (`torch.optim.lr_scheduler`), in closed form. Two groups have different
rates, so that a scheduler that confuses them fails.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.optim import lr_scheduler as rates

BASES = (0.5, 0.125)
STEPS = 14

Rate = Callable[[float, int], float]


class Plan(NamedTuple):
    """A scheduler, and its rate after a number of steps, given the base rate."""

    make: Callable[[torch.optim.Optimizer], Any]
    rate: Rate


class Falling:
    """A callable object, whose attributes are part of the state of a scheduler."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, epoch: int) -> float:
        return self.factor**epoch


def cosine(step: float, whole: float) -> float:
    return (1 + math.cos(math.pi * step / whole)) / 2


def warm_restarts(base: float, step: float, again: int = 2) -> float:
    """Return the rate of warm restarts: the first cycle has 3 steps, and each later one `again` times as many."""
    length = 3
    while step >= length:
        step, length = step - length, length * again
    return 0.01 + (base - 0.01) * cosine(step, length)


def triangular(base: float, step: int, *, scale: Callable[[int, int], float], down: int = 2) -> float:
    """Return the rate from `base` / 10 up to `base` in 3 steps, and in `down` steps back."""
    cycle, place = divmod(step, 3 + down)
    share = place / 3 if place <= 3 else (3 + down - place) / down
    return base / 10 + (base - base / 10) * share * scale(cycle + 1, step)


def cyclic(**settings: Any) -> Callable[[torch.optim.Optimizer], Any]:
    return lambda optimizer: rates.CyclicLR(
        optimizer,
        base_lr=[base / 10 for base in BASES],
        max_lr=[*BASES],
        step_size_up=3,
        cycle_momentum=False,
        **settings,
    )


def one_cycle(base: float, step: int, anneal: Callable[[float, float, float], float], *, three: bool) -> float:
    """Return the rate of one cycle of 15 steps.

    20% of them go up, to step 2. With three phases, as many go down again. The others go to the end.
    """
    start, top = base / 5, base
    end, up, last = start / 100, 0.2 * 15 - 1, 14
    if step <= up:
        return anneal(start, top, step / up)
    if not three:
        return anneal(top, end, (step - up) / (last - up))
    down = 2 * 0.2 * 15 - 2
    if step <= down:
        return anneal(top, start, (step - up) / (down - up))
    return anneal(start, end, (step - down) / (last - down))


def by_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * cosine(share, 1)


def by_line(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


def one_cycle_of(**settings: Any) -> Callable[[torch.optim.Optimizer], Any]:
    return lambda optimizer: rates.OneCycleLR(
        optimizer, [*BASES], total_steps=15, pct_start=0.2, div_factor=5, final_div_factor=100, **settings
    )


PLANS = {
    "LambdaLR": Plan(lambda o: rates.LambdaLR(o, Falling(0.8)), lambda base, step: base * 0.8**step),
    "LambdaLR_of_groups": Plan(
        lambda o: rates.LambdaLR(o, [lambda step: 1 / (1 + step), lambda step: 1 + step]),
        lambda base, step: base / (1 + step) if base == BASES[0] else base * (1 + step),
    ),
    "MultiplicativeLR": Plan(
        lambda o: rates.MultiplicativeLR(o, lambda step: 1.0 + 1.0 / step),
        lambda base, step: base * (1 + step),
    ),
    "StepLR": Plan(lambda o: rates.StepLR(o, 3, gamma=0.5), lambda base, step: base * 0.5 ** (step // 3)),
    "StepLR_defaults": Plan(lambda o: rates.StepLR(o, 4), lambda base, step: base * 0.1 ** (step // 4)),
    "MultiStepLR": Plan(
        lambda o: rates.MultiStepLR(o, [2, 5, 5, 9], gamma=0.5),
        lambda base, step: base * 0.5 ** sum(step >= each for each in (2, 5, 5, 9)),
    ),
    "MultiStepLR_defaults": Plan(
        lambda o: rates.MultiStepLR(o, [2, 5]), lambda base, step: base * 0.1 ** sum(step >= each for each in (2, 5))
    ),
    "ConstantLR": Plan(
        lambda o: rates.ConstantLR(o, factor=0.25, total_iters=4),
        lambda base, step: base * (0.25 if step < 4 else 1.0),
    ),
    "ConstantLR_defaults": Plan(lambda o: rates.ConstantLR(o), lambda base, step: base * (1 / 3 if step < 5 else 1.0)),
    "LinearLR": Plan(
        lambda o: rates.LinearLR(o, start_factor=0.2, end_factor=0.8, total_iters=6),
        lambda base, step: base * (0.2 + 0.6 * min(step, 6) / 6),
    ),
    "LinearLR_defaults": Plan(
        lambda o: rates.LinearLR(o), lambda base, step: base * (1 / 3 + 2 / 3 * min(step, 5) / 5)
    ),
    "ExponentialLR": Plan(lambda o: rates.ExponentialLR(o, 0.7), lambda base, step: base * 0.7**step),
    "PolynomialLR": Plan(
        lambda o: rates.PolynomialLR(o, total_iters=6, power=2.0),
        lambda base, step: base * (1 - min(step, 6) / 6) ** 2,
    ),
    "PolynomialLR_defaults": Plan(lambda o: rates.PolynomialLR(o), lambda base, step: base * (1 - min(step, 5) / 5)),
    "CosineAnnealingLR": Plan(
        lambda o: rates.CosineAnnealingLR(o, 6, eta_min=0.01),
        lambda base, step: 0.01 + (base - 0.01) * cosine(step, 6),
    ),
    "CosineAnnealingWarmRestarts": Plan(
        lambda o: rates.CosineAnnealingWarmRestarts(o, 3, T_mult=2, eta_min=0.01), warm_restarts
    ),
    "CosineAnnealingLR_defaults": Plan(
        lambda o: rates.CosineAnnealingLR(o, 6), lambda base, step: base * cosine(step, 6)
    ),
    "CosineAnnealingWarmRestarts_defaults": Plan(
        lambda o: rates.CosineAnnealingWarmRestarts(o, 4), lambda base, step: base * cosine(step % 4, 4)
    ),
    "CyclicLR_of_an_object": Plan(
        cyclic(scale_fn=Falling(0.9), scale_mode="iterations"),
        lambda base, step: triangular(base, step, scale=lambda _, step: 0.9**step, down=3),
    ),
    "CyclicLR_triangular": Plan(
        cyclic(step_size_down=2), lambda base, step: triangular(base, step, scale=lambda *_: 1.0)
    ),
    "CyclicLR_triangular2": Plan(
        cyclic(mode="triangular2"),
        lambda base, step: triangular(base, step, scale=lambda cycle, _: 0.5 ** (cycle - 1), down=3),
    ),
    "CyclicLR_exp_range": Plan(
        cyclic(mode="exp_range", gamma=0.9),
        lambda base, step: triangular(base, step, scale=lambda _, step: 0.9**step, down=3),
    ),
    "CyclicLR_scale_fn": Plan(
        cyclic(scale_fn=lambda cycle: 1 / cycle, scale_mode="cycle"),
        lambda base, step: triangular(base, step, scale=lambda cycle, _: 1 / cycle, down=3),
    ),
    "OneCycleLR": Plan(
        one_cycle_of(cycle_momentum=False), lambda base, step: one_cycle(base, step, by_cosine, three=False)
    ),
    "OneCycleLR_linear_in_three_phases": Plan(
        one_cycle_of(cycle_momentum=False, anneal_strategy="linear", three_phase=True),
        lambda base, step: one_cycle(base, step, by_line, three=True),
    ),
    "SequentialLR": Plan(
        lambda o: rates.SequentialLR(
            o, [rates.ConstantLR(o, factor=0.5, total_iters=20), rates.ExponentialLR(o, 0.5)], milestones=[4]
        ),
        lambda base, step: base * (0.5 if step < 4 else 0.5 ** (step - 4)),
    ),
    "SequentialLR_of_three": Plan(
        lambda o: rates.SequentialLR(
            o,
            [
                rates.ConstantLR(o, factor=0.5, total_iters=20),
                rates.LinearLR(o, start_factor=0.25, total_iters=2),
                rates.StepLR(o, 2, gamma=0.5),
            ],
            milestones=[4, 8],
        ),
        lambda base, step: base * (0.5, 0.5, 0.5, 0.5, 0.25, 0.625, 1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25)[step],
    ),
    "ChainedScheduler": Plan(
        lambda o: rates.ChainedScheduler([rates.ConstantLR(o, factor=0.5, total_iters=4), rates.ExponentialLR(o, 0.9)]),
        lambda base, step: base * (0.5 if step < 4 else 1.0) * 0.9**step,
    ),
}
NAMES = pytest.mark.parametrize("name", PLANS)


def optimizer_of(*bases: float | torch.Tensor, **settings: Any) -> torch.optim.SGD:
    """Return an optimizer with one weight per group."""
    groups = [{"params": [torch.ones((), requires_grad=True)], "lr": base} for base in bases]
    return torch.optim.SGD(groups, **settings)


def advance(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    optimizer.step()
    scheduler.step()


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


@NAMES
def test_lr_of_each_step_follows_the_formula(name: str) -> None:
    """The rate of each group after each step is the documented one, and `get_last_lr` returns it.

    The first rate is set in the constructor.
    """
    optimizer = optimizer_of(*BASES)
    scheduler = PLANS[name].make(optimizer)

    for step in range(STEPS):
        wanted = [PLANS[name].rate(base, step) for base in BASES]
        assert rates_of(optimizer) == pytest.approx(wanted, rel=1e-9, abs=1e-12), f"step {step}"
        assert scheduler.get_last_lr() == pytest.approx(wanted, rel=1e-9, abs=1e-12), f"step {step}"
        advance(optimizer, scheduler)


@NAMES
@pytest.mark.types("float64")
def test_lr_that_is_a_tensor_is_filled_in_place(device: torch.device, name: str) -> None:
    """A rate that is a tensor remains the same tensor, with the value of the formula: captured steps read it.

    `get_last_lr` returns copies, so that changing them does not change the rate. The tensor has no dimension, or one.
    """
    tensors = [
        torch.full(shape, base, dtype=torch.float64, device=device)
        for shape, base in zip(((), (1,)), BASES, strict=True)
    ]
    optimizer = optimizer_of(*tensors, foreach=False)
    scheduler = PLANS[name].make(optimizer)

    for step in range(STEPS):
        wanted = [PLANS[name].rate(base, step) for base in BASES]
        assert rates_of(optimizer) == pytest.approx(wanted, rel=1e-6, abs=1e-9), f"step {step}"
        for group, tensor in zip(optimizer.param_groups, tensors, strict=True):
            assert group["lr"] is tensor
        for copied in scheduler.get_last_lr():
            copied.fill_(7.0)
        assert rates_of(optimizer) == pytest.approx(wanted, rel=1e-6, abs=1e-9), f"step {step}"
        advance(optimizer, scheduler)


@NAMES
def test_load_state_dict_continues_where_another_scheduler_stopped(name: str) -> None:
    """A scheduler with the state of another, whose optimizer has the other's state, continues with the same rates.

    The state has the last rates, and not the optimizer. Loading does not change the loaded state.
    """
    optimizer = optimizer_of(*BASES)
    scheduler = PLANS[name].make(optimizer)
    for _ in range(5):
        advance(optimizer, scheduler)
    other = optimizer_of(*BASES)
    restored = PLANS[name].make(other)
    state = (
        copy.deepcopy(scheduler.state_dict())
        if "scale_fn" not in name and "object" not in name
        else scheduler.state_dict()
    )
    keys = set() if "CyclicLR" in name else set(state)  # it removes its function from the state

    restored.load_state_dict(state)
    other.load_state_dict(optimizer.state_dict())

    assert set(state) >= keys
    assert "optimizer" not in state
    assert restored.get_last_lr() == scheduler.get_last_lr()
    for _ in range(STEPS - 6):
        advance(optimizer, scheduler)
        advance(other, restored)
        assert rates_of(other) == rates_of(optimizer)
        assert restored.get_last_lr() == scheduler.get_last_lr()
        assert restored.last_epoch == scheduler.last_epoch if hasattr(scheduler, "last_epoch") else True


def test_lambdalr_state_has_the_attributes_of_callable_objects() -> None:
    """The state of `LambdaLR` and `MultiplicativeLR` has the attributes of callable objects, and None for functions.

    The attributes are a copy, and loading does not change the state.
    """
    for kind in (rates.LambdaLR, rates.MultiplicativeLR):
        falling = Falling(0.5)
        scheduler: Any = kind(optimizer_of(*BASES), (falling, lambda _: 1.0))  # type: ignore[arg-type]
        state = scheduler.state_dict()
        falling.factor = 0.75
        assert state["lr_lambdas"] == [{"factor": 0.5}, None]
        assert state["base_lrs"] == [*BASES]
        assert "optimizer" not in state

        other = optimizer_of(*BASES)
        restored: Any = kind(other, [Falling(0.9), lambda _: 1.0])
        restored.load_state_dict(state)
        assert state["lr_lambdas"] == [{"factor": 0.5}, None]
        advance(other, restored)

        assert rates_of(other) == [BASES[0] * 0.5, BASES[1]]


def test_last_epoch_needs_initial_lr() -> None:
    """A scheduler created with `last_epoch` takes the base rates from `initial_lr` of the groups, and requires it."""
    with pytest.raises(KeyError, match="initial_lr"):
        rates.StepLR(optimizer_of(*BASES), 3, last_epoch=4)
    optimizer = optimizer_of(*BASES)
    for group, base in zip(optimizer.param_groups, BASES, strict=True):
        group["initial_lr"], group["lr"] = base, base * 0.5

    scheduler = rates.StepLR(optimizer, 3, gamma=0.5, last_epoch=4)

    assert scheduler.base_lrs == [*BASES]
    for step in range(5, STEPS):
        assert rates_of(optimizer) == pytest.approx([base * 0.5 ** (step // 3) for base in BASES]), f"step {step}"
        advance(optimizer, scheduler)


@pytest.mark.parametrize("kind", ["CyclicLR", "OneCycleLR"])
@pytest.mark.parametrize("adam", [False, True], ids=["momentum", "betas"])
def test_cycle_momentum_goes_against_the_rate(kind: str, adam: bool) -> None:
    """With `cycle_momentum`, momentum falls from its maximum to its minimum while the rate rises, and rises again.

    For Adam, the momentum is the first of the two betas.
    """
    weight = torch.ones((), requires_grad=True)
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam([weight], lr=0.5) if adam else torch.optim.SGD([weight], lr=0.5, momentum=0.9)
    )
    if kind == "CyclicLR":
        scheduler: Any = rates.CyclicLR(optimizer, 0.1, 0.5, step_size_up=4, base_momentum=0.7, max_momentum=0.9)
        shares = [0.0, 0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0, 0.25]
    else:
        scheduler = rates.OneCycleLR(
            optimizer, 0.5, total_steps=10, pct_start=0.5, base_momentum=0.7, max_momentum=0.9, anneal_strategy="linear"
        )
        shares = [0.0, 0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]

    for step, share in enumerate(shares):
        group = optimizer.param_groups[0]
        found = group["betas"][0] if adam else group["momentum"]
        assert found == pytest.approx(0.9 - 0.2 * share), f"step {step}"
        if adam:
            assert group["betas"][1] == 0.999
        if step < len(shares) - 1:
            advance(optimizer, scheduler)


def test_onecyclelr_refuses_a_step_beyond_the_last() -> None:
    """`step` raises ValueError after `total_steps`, which may be given as `epochs` and `steps_per_epoch`."""
    optimizer = optimizer_of(0.5)
    scheduler = rates.OneCycleLR(optimizer, 0.5, epochs=2, steps_per_epoch=3, cycle_momentum=False)
    assert scheduler.total_steps == 6
    for _ in range(6):
        advance(optimizer, scheduler)
    optimizer.step()
    with pytest.raises(ValueError, match="total"):
        scheduler.step()


@pytest.mark.parametrize("epoch", [0, 2.5, 3, 7.25, 9])
def test_cosineannealingwarmrestarts_step_takes_a_fraction_of_an_epoch(epoch: float) -> None:
    """`CosineAnnealingWarmRestarts.step(epoch)` sets the rate of a fraction of an epoch, in the current cycle.

    Steps without an epoch continue from there, also in cycles of equal length, and also after a step back.
    """
    for again in (1, 2):
        optimizer = optimizer_of(*BASES)
        scheduler = rates.CosineAnnealingWarmRestarts(optimizer, 3, T_mult=again, eta_min=0.01)
        optimizer.step()

        def wanted(epoch: float, again: int = again) -> Any:
            values = [warm_restarts(base, epoch, again) for base in BASES]
            return pytest.approx(values)

        for start in (epoch, 22.5, epoch):
            scheduler.step(start)
            assert rates_of(optimizer) == wanted(start)
            assert scheduler.get_last_lr() == rates_of(optimizer)
            assert scheduler.last_epoch == math.floor(start)
            for more in range(1, 8):
                scheduler.step()
                assert rates_of(optimizer) == wanted(start + more), f"{start} and {more}"
                assert scheduler.last_epoch == math.floor(start) + more


# ---- ReduceLROnPlateau ----


def plateau(metrics: list[float], lr: float = 1.0, **settings: Any) -> list[float]:
    """Return the rate after each metric."""
    optimizer = optimizer_of(lr)
    scheduler = rates.ReduceLROnPlateau(optimizer, **settings)
    assert scheduler.get_last_lr() == [lr]
    assert not scheduler.in_cooldown
    assert scheduler.num_bad_epochs == 0
    found = []
    for metric in metrics:
        optimizer.step()
        scheduler.step(torch.tensor(metric))
        assert scheduler.get_last_lr() == rates_of(optimizer)
        found += rates_of(optimizer)
        assert scheduler.last_epoch == len(found)
    return found


@pytest.mark.parametrize(
    ("settings", "metrics", "wanted"),
    [
        # A metric is bad if it is no better than the best one. After more than `patience` bad metrics, the rate falls.
        ({"patience": 1}, [5, 5, 5, 5, 5], [1, 1, 0.5, 0.5, 0.25]),
        ({"patience": 0}, [5, 4, 3, 3, 2], [1, 1, 1, 0.5, 0.5]),
        ({"patience": 2}, [5, 6, 6, 4, 6, 6, 6], [1, 1, 1, 1, 1, 1, 0.5]),  # a good one restarts the count
        ({"patience": 0, "mode": "max"}, [1, 2, 3, 2, 4], [1, 1, 1, 0.5, 0.5]),
        # Relative: better than the best by more than a quarter of it. Absolute: by more than 0.25.
        ({"patience": 0, "threshold": 0.25}, [8, 6, 5.5], [1, 0.5, 0.5]),
        ({"patience": 0, "threshold": 0.25, "threshold_mode": "abs"}, [8, 7.75, 7.5], [1, 0.5, 0.5]),
        ({"patience": 0, "threshold": 0.25, "mode": "max"}, [8, 10, 10.5], [1, 0.5, 0.5]),
        ({"patience": 0, "threshold": 0.25, "mode": "max", "threshold_mode": "abs"}, [8, 8.25, 8.5], [1, 0.5, 0.5]),
        # After the rate has fallen, bad metrics of the cooldown do not count.
        ({"patience": 0, "cooldown": 2}, [5, 5, 5, 5, 5], [1, 0.5, 0.5, 0.5, 0.25]),
        ({"patience": 0, "min_lr": 0.4}, [5, 5, 5, 5], [1, 0.5, 0.4, 0.4]),
        ({"patience": 0, "min_lr": [0.6]}, [5, 5], [1, 0.6]),
        ({"patience": 0, "eps": 0.3}, [5, 5, 5], [1, 0.5, 0.5]),  # a change of 0.25 is too small
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_reducelronplateau_lowers_the_rate(settings: dict[str, Any], metrics: list[float], wanted: list[float]) -> None:
    """`ReduceLROnPlateau` multiplies the rate by `factor` after more than `patience` metrics without improvement."""
    assert plateau([float(each) for each in metrics], factor=0.5, **settings) == pytest.approx(wanted)


def test_reducelronplateau_defaults() -> None:
    """By default, `ReduceLROnPlateau` waits for ten metrics, divides the rate by ten, and has a threshold of 1e-4.

    The threshold is relative to the best metric.
    """
    assert plateau([1.0] * 12) == pytest.approx([1.0] * 11 + [0.1])
    assert plateau([1.0, *[1.0 - 5e-5] * 11]) == pytest.approx([1.0] * 11 + [0.1])
    assert plateau([1.0, *[1.0 - 2e-4] * 11])[-1] == 1.0


def test_reducelronplateau_state_continues() -> None:
    """The state has the best metric, the number of bad ones so far, and the rest of the cooldown."""
    first, second = optimizer_of(1.0), optimizer_of(1.0)
    scheduler = rates.ReduceLROnPlateau(first, factor=0.5, patience=2, cooldown=1)
    for metric in (1.0, 2.0, 2.0):
        scheduler.step(metric)
    restored = rates.ReduceLROnPlateau(second, factor=0.5, patience=2, cooldown=1)

    restored.load_state_dict(copy.deepcopy(scheduler.state_dict()))

    assert restored.best == 1.0
    for _ in range(6):
        scheduler.step(2.0)
        restored.step(2.0)
        assert rates_of(second) == rates_of(first)
        assert restored.in_cooldown == scheduler.in_cooldown
    assert rates_of(second) == [0.25]


# ---- refusals and warnings ----

REFUSED: dict[str, tuple[type[Exception], Callable[[torch.optim.Optimizer], object]]] = {
    "LambdaLR_with_too_few_functions": (ValueError, lambda o: rates.LambdaLR(o, [lambda _: 1.0])),
    "MultiplicativeLR_with_too_few_functions": (ValueError, lambda o: rates.MultiplicativeLR(o, [lambda _: 1.0])),
    "MultiplicativeLR_of_a_number": (TypeError, lambda o: rates.MultiplicativeLR(o, [1.0, 1.0])),
    "ConstantLR_above_1": (ValueError, lambda o: rates.ConstantLR(o, factor=1.5)),
    "ConstantLR_below_0": (ValueError, lambda o: rates.ConstantLR(o, factor=-0.5)),
    "LinearLR_from_0": (ValueError, lambda o: rates.LinearLR(o, start_factor=0.0)),
    "LinearLR_from_above_1": (ValueError, lambda o: rates.LinearLR(o, start_factor=1.5)),
    "LinearLR_to_above_1": (ValueError, lambda o: rates.LinearLR(o, end_factor=1.5)),
    "LinearLR_to_below_0": (ValueError, lambda o: rates.LinearLR(o, end_factor=-0.5)),
    "CosineAnnealingWarmRestarts_of_0": (ValueError, lambda o: rates.CosineAnnealingWarmRestarts(o, 0)),
    "CosineAnnealingWarmRestarts_times_0": (ValueError, lambda o: rates.CosineAnnealingWarmRestarts(o, 2, T_mult=0)),
    "CyclicLR_of_an_unknown_mode": (ValueError, lambda o: rates.CyclicLR(o, 0.1, 1.0, mode="no")),
    "CyclicLR_without_momentum_to_cycle": (
        ValueError,
        lambda o: rates.CyclicLR(torch.optim.Adagrad(o.param_groups[0]["params"]), 0.1, 1.0),
    ),
    "CyclicLR_with_too_few_rates": (ValueError, lambda o: rates.CyclicLR(o, [0.1], 1.0, cycle_momentum=False)),
    "OneCycleLR_without_a_length": (ValueError, lambda o: rates.OneCycleLR(o, 1.0)),
    "OneCycleLR_of_0_steps": (ValueError, lambda o: rates.OneCycleLR(o, 1.0, total_steps=0)),
    "OneCycleLR_with_an_unknown_strategy": (
        ValueError,
        lambda o: rates.OneCycleLR(o, 1.0, total_steps=9, anneal_strategy="no", cycle_momentum=False),  # type: ignore[arg-type]
    ),
    "OneCycleLR_rising_for_more_than_all": (
        ValueError,
        lambda o: rates.OneCycleLR(o, 1.0, total_steps=9, pct_start=1.5, cycle_momentum=False),
    ),
    "ReduceLROnPlateau_with_a_factor_of_1": (ValueError, lambda o: rates.ReduceLROnPlateau(o, factor=1.0)),
    "ReduceLROnPlateau_of_an_unknown_mode": (ValueError, lambda o: rates.ReduceLROnPlateau(o, mode="no")),  # type: ignore[arg-type]
    "ReduceLROnPlateau_of_an_unknown_threshold_mode": (
        ValueError,
        lambda o: rates.ReduceLROnPlateau(o, threshold_mode="no"),  # type: ignore[arg-type]
    ),
    "ReduceLROnPlateau_with_too_few_limits": (ValueError, lambda o: rates.ReduceLROnPlateau(o, min_lr=[0.1])),
    "SequentialLR_of_nothing": (ValueError, lambda o: rates.SequentialLR(o, [], [])),
    "SequentialLR_with_too_few_milestones": (
        ValueError,
        lambda o: rates.SequentialLR(o, [rates.ConstantLR(o), rates.ConstantLR(o)], []),
    ),
    "SequentialLR_of_another_optimizer": (
        ValueError,
        lambda o: rates.SequentialLR(o, [rates.ConstantLR(o), rates.ConstantLR(optimizer_of(1.0))], [1]),
    ),
    "SequentialLR_with_ReduceLROnPlateau": (
        ValueError,
        lambda o: rates.SequentialLR(o, [rates.ConstantLR(o), rates.ReduceLROnPlateau(o)], [1]),  # type: ignore[list-item]
    ),
    "ChainedScheduler_of_nothing": (ValueError, lambda _: rates.ChainedScheduler([])),
    "ChainedScheduler_of_two_optimizers": (
        ValueError,
        lambda o: rates.ChainedScheduler([rates.ConstantLR(o), rates.ConstantLR(optimizer_of(1.0))]),
    ),
    "ChainedScheduler_with_ReduceLROnPlateau": (
        ValueError,
        lambda o: rates.ChainedScheduler([rates.ConstantLR(o), rates.ReduceLROnPlateau(o)]),  # type: ignore[list-item]
    ),
    "no_optimizer": (TypeError, lambda o: rates.StepLR(o.param_groups, 1)),  # type: ignore[arg-type]
    "ReduceLROnPlateau_of_no_optimizer": (TypeError, lambda o: rates.ReduceLROnPlateau(o.param_groups)),  # type: ignore[arg-type]
}

#: The text of each message.
SAYS = {
    "LambdaLR_with_too_few_functions": "Expected 2 lr_lambdas, but got 1",
    "MultiplicativeLR_with_too_few_functions": "Expected 2 lr_lambdas, but got 1",
    "MultiplicativeLR_of_a_number": "should be a function",
    "ConstantLR_above_1": "factor expected to be between 0 and 1",
    "ConstantLR_below_0": "factor expected to be between 0 and 1",
    "LinearLR_from_0": "Starting multiplicative factor",
    "LinearLR_from_above_1": "Starting multiplicative factor",
    "LinearLR_to_above_1": "Ending multiplicative factor",
    "LinearLR_to_below_0": "Ending multiplicative factor",
    "CosineAnnealingWarmRestarts_of_0": "positive integer T_0",
    "CosineAnnealingWarmRestarts_times_0": "T_mult >= 1",
    "CyclicLR_of_an_unknown_mode": "mode is invalid",
    "CyclicLR_without_momentum_to_cycle": "must support momentum or beta1",
    "CyclicLR_with_too_few_rates": "base_lr must have the same length",
    "OneCycleLR_without_a_length": "either total_steps OR",
    "OneCycleLR_of_0_steps": "positive integer total_steps",
    "OneCycleLR_with_an_unknown_strategy": "anneal_strategy must be one of",
    "OneCycleLR_rising_for_more_than_all": "between 0 and 1 pct_start",
    "ReduceLROnPlateau_with_a_factor_of_1": "Factor should be < 1.0",
    "ReduceLROnPlateau_of_an_unknown_mode": "mode no is unknown",
    "ReduceLROnPlateau_of_an_unknown_threshold_mode": "threshold mode no is unknown",
    "ReduceLROnPlateau_with_too_few_limits": "expected 2 min_lrs, got 1",
    "SequentialLR_of_nothing": "at least one scheduler",
    "SequentialLR_with_too_few_milestones": "one more than the number of milestone",
    "SequentialLR_of_another_optimizer": "belong to the same optimizer",
    "SequentialLR_with_ReduceLROnPlateau": "does not support `ReduceLROnPlateau`",
    "ChainedScheduler_of_nothing": "at least one scheduler",
    "ChainedScheduler_of_two_optimizers": "belong to the same optimizer",
    "ChainedScheduler_with_ReduceLROnPlateau": "does not support `ReduceLROnPlateau`",
    "no_optimizer": "list is not an Optimizer",
    "ReduceLROnPlateau_of_no_optimizer": "list is not an Optimizer",
}


@pytest.mark.parametrize("name", REFUSED)
def test_schedulers_refuse(name: str) -> None:
    """Impossible settings are refused in the constructor, with a message that names them."""
    kind, make = REFUSED[name]
    with pytest.raises(kind, match=re.escape(SAYS[name])):
        make(optimizer_of(*BASES))


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_factors_of_0_and_1_are_allowed(edge: float) -> None:
    """The bounds of the allowed range of a factor are allowed."""
    optimizer = optimizer_of(1.0)
    rates.ConstantLR(optimizer, factor=edge)
    assert rates_of(optimizer) == [edge]
    rates.LinearLR(optimizer_of(1.0), start_factor=1.0, end_factor=edge)


def test_step_before_the_optimizer_warns() -> None:
    """The first `scheduler.step()` before `optimizer.step()` warns, and one after it does not."""
    optimizer = optimizer_of(1.0)
    scheduler = rates.StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match=r"lr_scheduler.step\(\)` before `optimizer.step"):
        scheduler.step()
    other = optimizer_of(1.0)
    later = rates.StepLR(other, 1)
    advance(other, later)
    later.step()  # warnings are errors


def test_optimizer_with_a_scheduler_still_returns_the_loss() -> None:
    """A scheduler wraps `optimizer.step`, which still takes a closure and returns its result."""
    optimizer = optimizer_of(1.0)
    rates.StepLR(optimizer, 1)
    assert optimizer.step(lambda: 3.5) == 3.5


def test_get_lr_outside_of_step_warns() -> None:
    """`get_lr` of each scheduler warns that `get_last_lr` should be called, after each step."""
    for name, plan in PLANS.items():
        optimizer = optimizer_of(*BASES)
        scheduler = plan.make(optimizer)
        if isinstance(scheduler, (rates.SequentialLR, rates.ChainedScheduler)):
            continue
        for _ in range(2):
            advance(optimizer, scheduler)
            with pytest.warns(UserWarning, match="get_last_lr") as caught:
                scheduler.get_lr()
            assert len(caught) == 1, name


def test_step_warns_of_an_optimizer_whose_step_was_replaced() -> None:
    """The first step warns if `optimizer.step` was replaced after the scheduler was created."""
    optimizer = optimizer_of(1.0)
    scheduler = rates.StepLR(optimizer, 1)
    optimizer.step = lambda: None  # type: ignore[method-assign,assignment]
    with pytest.warns(UserWarning, match="overridden after learning rate scheduler"):
        scheduler.step()
