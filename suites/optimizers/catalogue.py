"""The elementwise optimizers, with settings, implementations and references, as parameters of cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from . import references
from .references import Reference

#: torch's implementations of a step, as arguments.
FORMS: dict[str, dict[str, bool]] = {
    "one_by_one": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True, "foreach": False},
    "capturable_foreach": {"capturable": True, "foreach": True},
    "differentiable": {"differentiable": True, "foreach": False},
}
EVERYWHERE = ("one_by_one", "foreach", "differentiable")
CAPTURABLE = ("capturable", "capturable_foreach")


@dataclass(frozen=True)
class Kind:
    """An optimizer: torch's name, its reference, its implementations, and named settings to test."""

    name: str
    reference: Callable[..., Reference]
    forms: tuple[str, ...]
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def make(self, weights: Sequence[torch.Tensor], form: str, settings: str, **more: Any) -> torch.optim.Optimizer:
        """Return torch's optimizer of the weights, with one of the implementations and one of the named settings."""
        cls: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, self.name)
        return cls(weights, **(self.settings[settings] | FORMS[form] | more))


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "SGD",
            references.Sgd,
            ("one_by_one", "foreach", "fused", "differentiable"),
            {
                "plain": {"lr": 0.1},
                "decay": {"lr": 0.1, "weight_decay": 0.2},
                "momentum": {"lr": 0.1, "momentum": 0.9},
                "dampening": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
                "nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
                "maximize": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1.0, "maximize": True},
            },
        ),
        Kind(
            "Adam",
            references.Adam,
            (*EVERYWHERE, *CAPTURABLE, "fused"),
            {
                "plain": {"lr": 0.1},
                "decay": {"lr": 0.1, "weight_decay": 0.2, "betas": (0.7, 0.9), "eps": 1e-3},
                "amsgrad": {"lr": 0.1, "amsgrad": True, "betas": (0.5, 0.6)},
                "amsgrad_maximize": {"lr": 0.1, "amsgrad": True, "maximize": True, "betas": (0.5, 0.6)},
                "maximize": {"lr": 0.1, "maximize": True, "weight_decay": 1.0},
                "decoupled": {"lr": 0.1, "weight_decay": 0.2, "decoupled_weight_decay": True},
            },
        ),
        Kind(
            "AdamW",
            references.AdamW,
            (*EVERYWHERE, *CAPTURABLE, "fused"),
            {
                "plain": {"lr": 0.1},
                "decay": {"lr": 0.1, "weight_decay": 0.5, "betas": (0.7, 0.9)},
                "amsgrad": {"lr": 0.1, "amsgrad": True, "betas": (0.5, 0.6)},
                "amsgrad_maximize": {"lr": 0.1, "amsgrad": True, "maximize": True, "betas": (0.5, 0.6)},
                "maximize": {"lr": 0.1, "maximize": True},
            },
        ),
        Kind(
            "Adamax",
            references.Adamax,
            (*EVERYWHERE, *CAPTURABLE),
            {
                "plain": {"lr": 0.1},
                "decay": {"lr": 0.1, "weight_decay": 0.2, "betas": (0.7, 0.8)},
                "maximize": {"lr": 0.1, "maximize": True, "weight_decay": 1.0},
            },
        ),
        Kind(
            "NAdam",
            references.NAdam,
            (*EVERYWHERE, *CAPTURABLE),
            {
                "plain": {"lr": 0.1},
                "decay": {"lr": 0.1, "weight_decay": 0.2, "momentum_decay": 0.5},
                "decoupled": {"lr": 0.1, "weight_decay": 0.2, "decoupled_weight_decay": True},
                "maximize": {"lr": 0.1, "maximize": True, "weight_decay": 1.0},
            },
        ),
        Kind(
            "RAdam",
            references.RAdam,
            (*EVERYWHERE, *CAPTURABLE),
            {
                "plain": {"lr": 0.1},
                # Short running means, so that rectification starts within the tested steps.
                "decay": {"lr": 0.1, "weight_decay": 0.2, "betas": (0.8, 0.9)},
                "decoupled": {"lr": 0.1, "weight_decay": 0.2, "betas": (0.8, 0.9), "decoupled_weight_decay": True},
                "maximize": {"lr": 0.1, "maximize": True, "weight_decay": 1.0},
            },
        ),
        Kind(
            "Adagrad",
            references.Adagrad,
            (*EVERYWHERE, "fused"),
            {
                "plain": {"lr": 0.1},
                "decay": {"lr": 0.1, "weight_decay": 0.2, "lr_decay": 0.5, "initial_accumulator_value": 0.3},
                "maximize": {"lr": 0.1, "maximize": True, "eps": 0.1, "weight_decay": 1.0},
            },
        ),
        Kind(
            "Adadelta",
            references.Adadelta,
            (*EVERYWHERE, *CAPTURABLE),
            {
                "plain": {"lr": 1.0},
                "decay": {"lr": 0.5, "weight_decay": 0.2, "rho": 0.7, "eps": 1e-3},
                "maximize": {"lr": 1.0, "maximize": True, "weight_decay": 1.0},
            },
        ),
        Kind(
            "RMSprop",
            references.RMSprop,
            (*EVERYWHERE, *CAPTURABLE),
            {
                "plain": {"lr": 0.1},
                "decay": {"lr": 0.1, "weight_decay": 0.2, "alpha": 0.7},
                "momentum": {"lr": 0.1, "momentum": 0.9, "eps": 1e-2},
                "centered": {"lr": 0.1, "centered": True, "momentum": 0.5, "eps": 1e-2},
                "maximize": {"lr": 0.1, "maximize": True, "weight_decay": 1.0},
            },
        ),
        Kind(
            "ASGD",
            references.Asgd,
            (*EVERYWHERE, *CAPTURABLE),
            {
                "plain": {"lr": 0.1},
                "decay": {"lr": 0.1, "weight_decay": 0.2, "lambd": 0.1, "alpha": 0.5},
                # Averaging starts within the tested steps.
                "average": {"lr": 0.1, "t0": 2.0},
                "maximize": {"lr": 0.1, "maximize": True, "weight_decay": 1.0},
            },
        ),
        Kind(
            "Rprop",
            references.Rprop,
            (*EVERYWHERE, *CAPTURABLE),
            {
                "plain": {"lr": 0.1},
                "limits": {"lr": 0.1, "etas": (0.3, 2.0), "step_sizes": (0.05, 0.15)},
                "maximize": {"lr": 0.1, "maximize": True},
            },
        ),
    )
}

#: Before torch 2.12, Adagrad was fused only on the CPU.
ADAGRAD_FUSED = pytest.mark.requires(any=[{"torch": ">=2.12"}, {"not_": {"accelerator": True}}])
ON_ACCELERATOR = pytest.mark.requires(accelerator=True)


def marks(kind: Kind, form: str) -> list[pytest.MarkDecorator]:
    """Return the marks that an implementation of an optimizer needs."""
    if form in CAPTURABLE:
        return [ON_ACCELERATOR]
    return [ADAGRAD_FUSED] if (kind.name, form) == ("Adagrad", "fused") else []


def with_settings() -> pytest.MarkDecorator:
    """Parametrize with every optimizer, each implementation and each settings: `kind`, `form`, `settings`."""
    return pytest.mark.parametrize(
        ("kind", "form", "settings"),
        [
            pytest.param(kind, form, settings, id=f"{kind.name}-{form}-{settings}", marks=marks(kind, form))
            for kind in KINDS.values()
            for form in kind.forms
            for settings in kind.settings
        ],
    )


def with_forms(*settings: str) -> pytest.MarkDecorator:
    """Parametrize with every optimizer, each implementation and the first of `settings` that it has.

    The parameters are `kind`, `form` and `settings`.
    """
    return pytest.mark.parametrize(
        ("kind", "form", "settings"),
        [
            pytest.param(
                kind,
                form,
                next(name for name in (*settings, "plain") if name in kind.settings),
                id=f"{kind.name}-{form}",
                marks=marks(kind, form),
            )
            for kind in KINDS.values()
            for form in kind.forms
        ],
    )


def with_kinds() -> pytest.MarkDecorator:
    """Parametrize with every optimizer: `kind`."""
    return pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


SHAPES = ((), (5,), (2, 3))


def new_weights(device: torch.device, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Return weights of several shapes, drawn from torch's CPU generator."""
    return [
        torch.randn(shape, dtype=torch.float64).to(device, dtype).requires_grad_(requires_grad=True) for shape in SHAPES
    ]


def new_gradients(steps: int) -> list[list[torch.Tensor]]:
    """Return gradients for these weights for each step, on the CPU in float64.

    They have various magnitudes and both signs, and include zeros.
    """
    return [
        [torch.randn(shape, dtype=torch.float64) * 10.0 ** -(step % 3) * (torch.rand(shape) > 0.2) for shape in SHAPES]
        for step in range(steps)
    ]


def give(weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
    """Set the weights' gradients to copies, converted to their dtype and device."""
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.to(weight.device, weight.dtype, copy=True)


def expected(
    kind: Kind, settings: str, weights: Sequence[torch.Tensor], gradients: Sequence[Sequence[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """Return the weights after each step according to the reference, in float64 on the CPU."""
    start = [weight.detach().cpu().double() for weight in weights]
    numbers = [weight.flatten().tolist() for weight in start]
    holders = [[kind.reference(**kind.settings[settings]) for _ in row] for row in numbers]
    found: list[list[torch.Tensor]] = []
    for step in gradients:
        numbers = [
            [holder.step(number, g) for holder, number, g in zip(row, values, gradient.flatten().tolist(), strict=True)]
            for row, values, gradient in zip(holders, numbers, step, strict=True)
        ]
        found.append(
            [torch.tensor(n, dtype=torch.float64).reshape(w.shape) for n, w in zip(numbers, start, strict=True)]
        )
    return found
