"""Random programs: lists of operators, in-place changes and views among them, that compute in float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

#: The shape of each input and of each value, so that any operator can follow any other.
SHAPE = (3, 4)
INPUTS = 2


def _changed(x: Tensor, y: Tensor) -> Tensor:
    made = x.clone()
    made.mul_(y)
    return made


def _row_changed(x: Tensor, y: Tensor) -> Tensor:
    made = x.clone()
    made.select(0, 1).copy_(y[0])
    return made


def _view_changed(x: Tensor, y: Tensor) -> Tensor:
    made = x * 2
    made.t()[0].add_(y[:, 1])
    return made


#: Operators of two values, by name. Their results are of moderate size for values of moderate size.
OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y.tanh(),
    "div": lambda x, y: x / (y.abs() + 1),
    "sin": lambda x, _: x.sin(),
    "exp": lambda x, y: (-x.abs()).exp() + y,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "maximum": torch.maximum,
    "matmul": lambda x, y: (x @ y.t()).tanh() @ y,
    "transposed": lambda x, _: x.t().contiguous().reshape(SHAPE),
    "flipped": lambda x, y: torch.flip(x, (1,)) - y,
    "cat": lambda x, y: torch.cat([x[:1], y[1:]]),
    "split": lambda x, y: torch.cat([*x.split(1, dim=1)[2:], *y.split(2, dim=1)[:1]], dim=1),
    "index": lambda x, y: x[:, [3, 1, 1, 0]] + y,
    "gather": lambda x, y: x.gather(1, y.argsort(1)),
    "sum": lambda x, y: x - y.sum(1, keepdim=True) / 4,
    "softmax": lambda x, y: x.softmax(1) * y,
    "layer_norm": lambda x, y: F.layer_norm(x, (4,)) + y,
    "cumsum": lambda x, y: x.cumsum(0) / 3 + y,
    "var": lambda x, y: x / (1 + y.var(0, keepdim=True)),
    "gelu": lambda x, y: F.gelu(x) - y,
    "einsum": lambda x, y: torch.einsum("ij,kj,kl->il", x, y, x) / 9,
    "changed": _changed,
    "row_changed": _row_changed,
    "view_changed": _view_changed,
    "detached": lambda x, y: x.detach() + y,
    "no_grad": lambda x, y: _without_gradient(x) * y,
    "expanded": lambda x, y: x[:1].expand(SHAPE) * y.tanh(),
    "masked": lambda x, y: x.masked_fill(y > 0.5, 0.25),
}


def _without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.cos()


@dataclass(frozen=True, slots=True)
class Step:
    """An operator, and the places of its values among the inputs and the results so far."""

    operator: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Program:
    """Steps; the result is the sum of the last results."""

    steps: tuple[Step, ...]

    def __call__(self, *inputs: Tensor) -> Tensor:
        values = list(inputs)
        for step in self.steps:
            values.append(OPERATORS[step.operator](values[step.x], values[step.y]))
        return values[-1] + values[-2] / 2

    def __str__(self) -> str:
        return "; ".join(
            f"v{place + INPUTS} = {step.operator}(v{step.x}, v{step.y})" for place, step in enumerate(self.steps)
        )


def drawn(seed: int, least: int = 5, most: int = 15) -> Program:
    """Return a program of `least` to `most` steps. Recent values are more probable, so that chains become long."""
    draw = random.Random(seed)
    names = list(OPERATORS)
    steps = []
    for place in range(INPUTS, INPUTS + draw.randint(least, most)):
        x, y = (max(draw.randrange(place), draw.randrange(place)) for _ in range(2))
        steps.append(Step(draw.choice(names), x, y))
    return Program(tuple(steps))


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Return a program that fails too, of which no step can be left out."""
    place = 0
    while place < len(program.steps):
        smaller = without(program, place)
        if smaller.steps and fails(smaller):
            program = smaller
        else:
            place += 1
    return program


def without(program: Program, place: int) -> Program:
    """Return a program without a step; who used its result uses its first value."""
    gone, replacement = place + INPUTS, program.steps[place].x

    def moved(value: int) -> int:
        value = replacement if value == gone else value
        return value - (value > gone)

    steps = (*program.steps[:place], *program.steps[place + 1 :])
    return Program(tuple(Step(each.operator, moved(each.x), moved(each.y)) for each in steps))


def inputs(seed: int, device: torch.device) -> Sequence[Tensor]:
    """Return inputs that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(SHAPE, dtype=torch.float64, generator=generator) for _ in range(INPUTS)]
    return [each.to(device).requires_grad_() for each in made]
