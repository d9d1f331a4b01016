"""Schedulers: steps with an epoch, schedulers created in the middle of training, groups that are added later."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as rates
from torch.optim import swa_utils

from .test_schedulers import BASES, PLANS, STEPS, Falling, advance, optimizer_of, rates_of
from .test_state import through_a_file

#: Schedulers whose `step` takes an epoch: those with a closed form, and those that compute each rate from the first.
BY_EPOCH = (
    "LambdaLR",
    "StepLR",
    "MultiStepLR",
    "ConstantLR",
    "LinearLR",
    "ExponentialLR",
    "PolynomialLR",
    "CosineAnnealingLR",
)


@pytest.mark.parametrize("name", BY_EPOCH)
def test_step_with_an_epoch_warns_and_sets_its_rate(name: str) -> None:
    """`step(epoch)` warns that it is deprecated, and sets the rate of that epoch, in any order."""
    optimizer = optimizer_of(*BASES)
    scheduler = PLANS[name].make(optimizer)
    optimizer.step()
    for epoch in (3, 9, 5, 6, 0, 2):
        with pytest.warns(UserWarning, match="epoch parameter"):
            scheduler.step(epoch)
        wanted = [PLANS[name].rate(base, epoch) for base in BASES]
        assert rates_of(optimizer) == pytest.approx(wanted, rel=1e-9, abs=1e-12), f"epoch {epoch}"
        assert scheduler.get_last_lr() == rates_of(optimizer)
        assert scheduler.last_epoch == epoch


#: Schedulers that are created with `last_epoch` 4 in training whose rate is that of step 5.
RESUMED: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: rates.LambdaLR(o, Falling(0.8), last_epoch=4),
    "MultiplicativeLR": lambda o: rates.MultiplicativeLR(o, lambda step: 1.0 + 1.0 / step, last_epoch=4),
    "StepLR": lambda o: rates.StepLR(o, 3, gamma=0.5, last_epoch=4),
    "MultiStepLR_defaults": lambda o: rates.MultiStepLR(o, [2, 9], last_epoch=4),
    "ConstantLR": lambda o: rates.ConstantLR(o, factor=0.25, total_iters=4, last_epoch=4),
    "LinearLR": lambda o: rates.LinearLR(o, start_factor=0.2, end_factor=0.8, total_iters=6, last_epoch=4),
    "ExponentialLR": lambda o: rates.ExponentialLR(o, 0.7, last_epoch=4),
    "PolynomialLR": lambda o: rates.PolynomialLR(o, total_iters=6, power=2.0, last_epoch=4),
    "CosineAnnealingLR": lambda o: rates.CosineAnnealingLR(o, 6, eta_min=0.01, last_epoch=4),
    "CosineAnnealingWarmRestarts": lambda o: rates.CosineAnnealingWarmRestarts(
        o, 3, T_mult=2, eta_min=0.01, last_epoch=4
    ),
    "CyclicLR_triangular2": lambda o: rates.CyclicLR(
        o,
        [base / 10 for base in BASES],
        [*BASES],
        step_size_up=3,
        mode="triangular2",
        cycle_momentum=False,
        last_epoch=4,
    ),
}


@pytest.mark.parametrize("name", RESUMED)
def test_last_epoch_resumes_a_schedule(name: str) -> None:
    """A scheduler that is created with the epoch before the current one keeps its rate, and continues from there."""

    def rate(base: float, step: int) -> float:
        return base * (0.1 if step < 9 else 0.01) if name == "MultiStepLR_defaults" else PLANS[name].rate(base, step)

    optimizer = optimizer_of(*BASES)
    for group, base in zip(optimizer.param_groups, BASES, strict=True):
        group["initial_lr"], group["lr"] = base / 10 if "Cyclic" in name else base, rate(base, 5)
    scheduler = RESUMED[name](optimizer)
    for step in range(5, STEPS):
        wanted = [rate(base, step) for base in BASES]
        assert rates_of(optimizer) == pytest.approx(wanted, rel=1e-9, abs=1e-12), f"step {step}"
        assert scheduler.last_epoch == step
        advance(optimizer, scheduler)


@pytest.mark.parametrize("adam", [False, True], ids=["momentum", "betas"])
def test_onecyclelr_resumes_from_groups_that_have_its_settings(adam: bool) -> None:
    """`OneCycleLR` with `last_epoch` takes rates and momenta from the groups, and continues like the original.

    `CyclicLR` with `last_epoch` also keeps the bounds of the momentum in the groups.
    """

    def made() -> Any:
        weight = torch.ones((), requires_grad=True)
        return torch.optim.Adam([weight], lr=0.5) if adam else torch.optim.SGD([weight], lr=0.5, momentum=0.5)

    first, second = made(), made()
    scheduler = rates.OneCycleLR(first, 0.5, total_steps=10, base_momentum=0.7, max_momentum=0.9)
    for _ in range(4):
        advance(first, scheduler)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    resumed = rates.OneCycleLR(second, 7.0, total_steps=10, base_momentum=0.1, max_momentum=0.2, last_epoch=3)
    for _ in range(5):
        one, two = first.param_groups[0], second.param_groups[0]
        assert (one["lr"], one.get("momentum"), one.get("betas")) == (two["lr"], two.get("momentum"), two.get("betas"))
        advance(first, scheduler)
        advance(second, resumed)
    rates.CyclicLR(second, 0.1, 0.5, base_momentum=0.1, max_momentum=0.2, last_epoch=3)
    assert (second.param_groups[0]["base_momentum"], second.param_groups[0]["max_momentum"]) == (0.7, 0.9)


@pytest.mark.parametrize("mode", ["triangular2", "exp_range", "exp_range_of_1", "own_cycle", "own_iterations"])
def test_cycliclr_scales_the_momentum_as_the_rate(mode: str) -> None:
    """`CyclicLR` scales the height of a cycle's momentum like that of its rate, and each group has its own momenta.

    The groups hold the bounds.
    """
    optimizer = optimizer_of(*BASES, momentum=0.5)
    # torch's modes have their own `scale_mode`, whatever the argument is.
    settings: dict[str, Any] = {"mode": mode, "gamma": 0.9, "scale_mode": "cycle"}
    if mode == "triangular2":
        settings["scale_mode"] = "iterations"
    if mode == "exp_range_of_1":  # the default
        settings = {"mode": "exp_range"}
    if mode.startswith("own"):
        settings = {"scale_fn": lambda number: 1 / (1 + number), "scale_mode": mode.removeprefix("own_")}
    scheduler = rates.CyclicLR(
        optimizer,
        0.1,
        0.5,
        step_size_up=2,
        step_size_down=4,
        base_momentum=[0.7, 0.5],  # type: ignore[arg-type]
        max_momentum=[0.9, 0.6],  # type: ignore[arg-type]
        **settings,
    )
    for step in range(STEPS):
        cycle, place = divmod(step, 6)
        share = place / 2 if place <= 2 else (6 - place) / 4
        scale = {
            "triangular2": 0.5**cycle,
            "exp_range": 0.9**step,
            "exp_range_of_1": 1.0,
            "own_cycle": 1 / (2 + cycle),
            "own_iterations": 1 / (1 + step),
        }[mode]
        assert rates_of(optimizer) == pytest.approx([0.1 + 0.4 * share * scale] * 2), f"step {step}"
        found = [group["momentum"] for group in optimizer.param_groups]
        assert found == pytest.approx([0.9 - 0.2 * share * scale, 0.6 - 0.1 * share * scale]), f"step {step}"
        advance(optimizer, scheduler)
    ends = [(group["base_momentum"], group["max_momentum"]) for group in optimizer.param_groups]
    assert ends == [(0.7, 0.9), (0.5, 0.6)]


def test_cycliclr_state_has_the_attributes_of_a_callable_object() -> None:
    """The state of `CyclicLR` can be saved, and has the attributes of a `scale_fn` that is an object.

    A scheduler with the state of another mode continues in that mode.
    """

    def made(**settings: Any) -> tuple[torch.optim.Optimizer, Any]:
        optimizer = optimizer_of(1.0)
        return optimizer, rates.CyclicLR(optimizer, 0.1, 0.5, step_size_up=2, cycle_momentum=False, **settings)

    def own(factor: float) -> dict[str, Any]:
        return {"scale_fn": Falling(factor), "scale_mode": "iterations"}

    def function(number: float) -> float:
        return 1 / number

    cases: tuple[tuple[dict[str, Any], dict[str, Any], dict[str, float] | None], ...] = (
        (own(0.5), own(0.9), {"factor": 0.5}),
        ({"mode": "triangular2"}, {"mode": "exp_range", "gamma": 0.5}, None),
        ({"mode": "exp_range", "gamma": 0.5}, {"mode": "triangular"}, None),
        ({"scale_fn": function}, {"scale_fn": function}, None),
    )
    for first, second, attributes in cases:
        (optimizer, scheduler), (other, restored) = made(**first), made(**second)
        for _ in range(3):
            advance(optimizer, scheduler)
        state = through_a_file(scheduler.state_dict())
        assert state["_scale_fn_custom"] == attributes
        restored.load_state_dict(state)
        other.load_state_dict(optimizer.state_dict())
        for _ in range(4):
            advance(optimizer, scheduler)
            advance(other, restored)
            assert rates_of(other) == rates_of(optimizer)


def test_schedulers_copy_rates_that_are_tensors() -> None:
    """Rates that a scheduler gets as tensors are copied: a later change of the tensor changes nothing."""
    makes: tuple[Callable[[torch.optim.Optimizer, torch.Tensor], Any], ...] = (
        lambda o, rate: rates.CyclicLR(o, rate / 4, rate, step_size_up=2, cycle_momentum=False),
        lambda o, rate: rates.OneCycleLR(o, rate, total_steps=20, cycle_momentum=False),
        lambda o, rate: swa_utils.SWALR(o, rate),  # type: ignore[arg-type]
    )
    for make in makes:
        changed, kept = (torch.tensor(0.5, dtype=torch.float64) for _ in range(2))
        (first, one), (second, two) = ((o := optimizer_of(1.0), make(o, rate)) for rate in (changed, kept))
        changed.fill_(7.0)
        for _ in range(6):
            advance(first, one)
            advance(second, two)
            assert rates_of(first) == rates_of(second)


@pytest.mark.xfail(
    raises=AssertionError,
    reason="SequentialLR gives a scheduler of schedulers one step more when it is made "
    "(https://github.com/pytorch/pytorch/issues/196243)",
)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_sequentiallr_begins_with_a_scheduler_of_schedulers() -> None:
    """The first scheduler of `SequentialLR` may consist of schedulers, and begins with its first rate."""
    for kind in ("chained", "sequential"):
        optimizer = optimizer_of(1.0)
        parts = [rates.ConstantLR(optimizer, factor=0.5, total_iters=2), rates.ExponentialLR(optimizer, 0.5)]
        inner = rates.ChainedScheduler(parts) if kind == "chained" else rates.SequentialLR(optimizer, parts, [2])
        scheduler = rates.SequentialLR(optimizer, [inner, rates.ConstantLR(optimizer, factor=1.0)], [4])
        found = []
        for _ in range(4):
            found += rates_of(optimizer)
            advance(optimizer, scheduler)
        assert found == ([0.5, 0.25, 0.25, 0.125] if kind == "chained" else [0.5, 0.5, 1.0, 0.5])


@pytest.mark.requires(torch=">=2.13")  # https://github.com/pytorch/pytorch/issues/185872
def test_sequentiallr_with_a_milestone_at_0_begins_with_the_second_scheduler() -> None:
    """A milestone at 0 skips the first scheduler of `SequentialLR`: the second has the first rate."""
    optimizer = optimizer_of(1.0)
    parts = [rates.ConstantLR(optimizer, factor=0.25, total_iters=9), rates.ExponentialLR(optimizer, 0.5)]
    scheduler = rates.SequentialLR(optimizer, parts, [0])
    for step in range(4):
        assert rates_of(optimizer) == scheduler.get_last_lr() == [0.5**step]
        assert scheduler.last_epoch == step
        advance(optimizer, scheduler)


# ---- ReduceLROnPlateau ----


def test_reducelronplateau_serves_a_group_that_is_added_later() -> None:
    """A later group has the same `min_lr`, unless `min_lr` was given per group: then the next reduction raises."""
    for limits, error in ((0.4, False), ([0.4], True)):
        optimizer = optimizer_of(1.0)
        scheduler = rates.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, min_lr=limits)
        scheduler.step(1.0)
        optimizer.add_param_group({"params": [torch.ones(())], "lr": 0.6})
        if error:
            with pytest.raises(RuntimeError, match="differs"):
                scheduler.step(1.0)
        else:
            scheduler.step(1.0)
            assert rates_of(optimizer) == [0.5, 0.4]


def test_reducelronplateau_step_with_an_epoch_warns_and_counts_from_it() -> None:
    """`step(metrics, epoch)` warns that the epoch is deprecated, and later steps count from it."""
    scheduler = rates.ReduceLROnPlateau(optimizer_of(1.0))
    with pytest.warns(UserWarning, match="epoch parameter"):
        scheduler.step(1.0, 7)
    assert scheduler.last_epoch == 7
    scheduler.step(1.0)
    assert scheduler.last_epoch == 8


def test_reducelronplateau_refuses_a_state_with_an_unknown_mode() -> None:
    """A state whose mode or threshold mode is unknown raises ValueError."""
    scheduler = rates.ReduceLROnPlateau(optimizer_of(1.0))
    for name in ("mode", "threshold_mode"):
        with pytest.raises(ValueError, match="is unknown"):
            rates.ReduceLROnPlateau(optimizer_of(1.0)).load_state_dict(scheduler.state_dict() | {name: "no"})


# ---- what is refused ----

REFUSED: dict[str, tuple[type[Exception], str, Callable[[torch.optim.Optimizer], object]]] = {
    "SequentialLR_of_a_number": (TypeError, "`optimizer`", lambda o: rates.SequentialLR(o, [1], [])),  # type: ignore[list-item]
    "ChainedScheduler_of_a_number": (TypeError, "`optimizer`", lambda o: rates.ChainedScheduler([1], o)),  # type: ignore[list-item]
    "ChainedScheduler_of_another_optimizer": (
        ValueError,
        "same optimizer",
        lambda o: rates.ChainedScheduler([rates.ConstantLR(o)], optimizer_of(1.0)),
    ),
    "CosineAnnealingWarmRestarts_times_a_fraction": (
        ValueError,
        "T_mult",
        lambda o: rates.CosineAnnealingWarmRestarts(o, 2, T_mult=1.5),  # type: ignore[arg-type]
    ),
    "CosineAnnealingWarmRestarts_of_a_fraction": (
        ValueError,
        "positive integer T_0",
        lambda o: rates.CosineAnnealingWarmRestarts(o, 2.5),  # type: ignore[arg-type]
    ),
    "CosineAnnealingWarmRestarts_before_the_first_epoch": (
        ValueError,
        "non-negative epoch",
        lambda o: rates.CosineAnnealingWarmRestarts(o, 2).step(-1),
    ),
    "CyclicLR_of_no_optimizer": (TypeError, "not an Optimizer", lambda o: rates.CyclicLR(o.param_groups, 0.1, 0.5)),  # type: ignore[arg-type]
    "CyclicLR_with_too_few_tops": (
        ValueError,
        "max_lr must have the same length",
        lambda o: rates.CyclicLR(o, 0.1, [1.0], cycle_momentum=False),
    ),
    "OneCycleLR_of_no_optimizer": (
        TypeError,
        "not an Optimizer",
        lambda o: rates.OneCycleLR(o.param_groups, 0.1, total_steps=3),  # type: ignore[arg-type]
    ),
    "OneCycleLR_with_epochs_only": (ValueError, "either total_steps OR", lambda o: rates.OneCycleLR(o, 1.0, epochs=3)),
    "OneCycleLR_with_steps_per_epoch_only": (
        ValueError,
        "either total_steps OR",
        lambda o: rates.OneCycleLR(o, 1.0, steps_per_epoch=3),
    ),
    "OneCycleLR_of_broken_steps": (
        ValueError,
        "positive integer total_steps",
        lambda o: rates.OneCycleLR(o, 1.0, total_steps=2.5),  # type: ignore[arg-type]
    ),
    "OneCycleLR_of_broken_epochs": (
        ValueError,
        "positive integer epochs",
        lambda o: rates.OneCycleLR(o, 1.0, epochs=2.5, steps_per_epoch=2),  # type: ignore[arg-type]
    ),
    "OneCycleLR_of_0_epochs": (
        ValueError,
        "positive integer epochs",
        lambda o: rates.OneCycleLR(o, 1.0, epochs=0, steps_per_epoch=2),
    ),
    "OneCycleLR_of_broken_steps_per_epoch": (
        ValueError,
        "positive integer steps_per_epoch",
        lambda o: rates.OneCycleLR(o, 1.0, epochs=2, steps_per_epoch=2.5),  # type: ignore[arg-type]
    ),
    "OneCycleLR_of_0_steps_per_epoch": (
        ValueError,
        "positive integer steps_per_epoch",
        lambda o: rates.OneCycleLR(o, 1.0, epochs=2, steps_per_epoch=0),
    ),
    "OneCycleLR_rising_for_less_than_nothing": (
        ValueError,
        "pct_start",
        lambda o: rates.OneCycleLR(o, 1.0, total_steps=9, pct_start=-0.1, cycle_momentum=False),
    ),
    "OneCycleLR_rising_for_a_whole_number": (
        ValueError,
        "pct_start",
        lambda o: rates.OneCycleLR(o, 1.0, total_steps=9, pct_start=1, cycle_momentum=False),
    ),
    "OneCycleLR_without_momentum_to_cycle": (
        ValueError,
        "must support momentum or beta1",
        lambda o: rates.OneCycleLR(torch.optim.Adagrad(o.param_groups[0]["params"]), 0.1, total_steps=3),
    ),
    "OneCycleLR_with_too_few_momenta": (
        ValueError,
        "base_momentum must have the same length",
        lambda o: rates.OneCycleLR(o, 0.1, total_steps=3, base_momentum=[0.8]),
    ),
}


def test_schedulers_refuse_settings_with_messages_that_name_them() -> None:
    """Settings outside of their ranges or of another type are refused with a message that names them."""
    for name, (kind, text, make) in REFUSED.items():
        optimizer, found = optimizer_of(*BASES), ""
        try:
            make(optimizer)
        except kind as error:
            found = str(error)
        assert text in found, name


def test_onecyclelr_may_rise_for_nothing_or_for_all() -> None:
    """`pct_start` may be 0.0 and 1.0: the highest rate is then near the first step, or at the last."""
    for share, wanted in ((0.0, 0), (1.0, 9)):
        optimizer = optimizer_of(1.0)
        scheduler = rates.OneCycleLR(optimizer, 1.0, total_steps=10, pct_start=share, cycle_momentum=False)
        seen = [rates_of(optimizer)[0]]
        for _ in range(9):
            advance(optimizer, scheduler)
            seen += rates_of(optimizer)
        assert seen.index(max(seen)) == wanted
        assert (max(seen) == pytest.approx(1.0)) == bool(share)


# ---- warnings of the order of steps ----


def test_onecyclelr_may_be_as_short_as_one_epoch_or_step() -> None:
    """The minimum length of `OneCycleLR` is one step, one epoch, or one step per epoch."""
    lengths: tuple[tuple[dict[str, int], int], ...] = (
        ({"total_steps": 1}, 1),
        ({"epochs": 1, "steps_per_epoch": 3}, 3),
        ({"epochs": 3, "steps_per_epoch": 1}, 3),
    )
    for settings, wanted in lengths:
        scheduler = rates.OneCycleLR(optimizer_of(1.0), 1.0, cycle_momentum=False, **settings)
        assert scheduler.total_steps == wanted


def test_chainedscheduler_of_one_and_of_three_schedulers() -> None:
    """`ChainedScheduler` multiplies the factors of its schedulers, for any number of them, and knows the first rate."""
    for count in (1, 3):
        optimizer = optimizer_of(1.0)
        scheduler = rates.ChainedScheduler([rates.ExponentialLR(optimizer, 0.5) for _ in range(count)])
        for step in range(4):
            assert scheduler.get_last_lr() == rates_of(optimizer) == [0.5 ** (step * count)]
            advance(optimizer, scheduler)


def test_two_schedulers_of_one_optimizer_both_see_its_steps() -> None:
    """The second scheduler of an optimizer does not wrap `step` again, and no scheduler warns after the step."""
    optimizer = optimizer_of(1.0)
    first = rates.StepLR(optimizer, 1, gamma=0.5)
    wrapped = optimizer.step
    second = rates.StepLR(optimizer, 1, gamma=0.5)
    assert optimizer.step is wrapped
    assert optimizer.step.__name__ == "step"
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first.step()
        second.step()
        first.step()
    assert rates_of(optimizer) == [0.125]


class Halving(rates.LRScheduler):
    """A scheduler that only defines its rate."""

    def get_lr(self) -> list[Any]:
        return [base / 2**self.last_epoch for base in self.base_lrs]


def test_scheduler_of_ones_own_computes_its_rates_in_get_lr() -> None:
    """A subclass that defines `get_lr` gets its rates set at the start and at each step; the base class has none.

    `last_epoch` counts the steps, and `base_lrs` are the first rates.
    """

    optimizer = optimizer_of(*BASES)
    scheduler = Halving(optimizer)
    for step in range(4):
        assert rates_of(optimizer) == [base / 2**step for base in BASES]
        assert [group["initial_lr"] for group in optimizer.param_groups] == [*BASES]
        advance(optimizer, scheduler)
    with pytest.raises(NotImplementedError):
        rates.LRScheduler(optimizer_of(1.0))


def test_cosineannealinglr_goes_up_again_after_its_end() -> None:
    """`CosineAnnealingLR` continues beyond `T_max`: up to the first rate, and down again, over several periods."""
    optimizer = optimizer_of(*BASES)
    scheduler = rates.CosineAnnealingLR(optimizer, 3, eta_min=0.01)
    for step in range(16):
        wanted = [0.01 + (base - 0.01) * (1 + math.cos(math.pi * step / 3)) / 2 for base in BASES]
        assert rates_of(optimizer) == pytest.approx(wanted, rel=1e-9), f"step {step}"
        advance(optimizer, scheduler)
