"""L-BFGS, compared with the published algorithm: directions, first step, line search, counts and termination.

Nocedal and Wright, *Numerical Optimization* (2006): algorithm 7.4 is the direction, and 3.5 the search for a step
length by the strong Wolfe conditions (3.7).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from .minfunc import Lbfgs

#: Constants of the strong Wolfe conditions that torch uses.
SUFFICIENT_DECREASE, CURVATURE = 1e-4, 0.9
#: One iteration with a line search. Without `max_eval`, it may evaluate the function only once.
ONE_SEARCH = {"max_iter": 1, "max_eval": 40, "line_search_fn": "strong_wolfe"}

Function = Callable[[torch.Tensor], torch.Tensor]


def quadratic(x: torch.Tensor) -> torch.Tensor:
    factors = torch.tensor([1.0, 3.0, 0.5, 8.0], dtype=x.dtype, device=x.device)
    return (factors * (x - 1) ** 2).sum() + 0.3 * x[0] * x[3]


def valley(x: torch.Tensor) -> torch.Tensor:
    """Return Rosenbrock's function."""
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def waves(x: torch.Tensor) -> torch.Tensor:
    """Return Rastrigin's function, which has many minima along each direction."""
    return (x**2 - 3 * torch.cos(4 * x)).sum()


def wall(x: torch.Tensor) -> torch.Tensor:
    """Return a function that is flat on one side and steep on the other."""
    return (x**6 / 6 + torch.nn.functional.softplus(-3 * x)).sum()


SEARCHED = {"valley": valley, "waves": waves, "wall": wall}


def value_and_gradient(function: Function, x: torch.Tensor) -> tuple[float, torch.Tensor]:
    point = x.detach().cpu().clone().requires_grad_(requires_grad=True)
    value = function(point)
    (gradient,) = torch.autograd.grad(value, point)
    return value.item(), gradient


class Minimized:
    """A weight that L-BFGS moves to minimize a function, and the number of evaluations of the function."""

    def __init__(self, device: torch.device, function: Function, start: list[float], **settings: object) -> None:
        self.x = torch.tensor(start, dtype=torch.float64, device=device, requires_grad=True)
        self.optimizer = torch.optim.LBFGS([self.x], **settings)  # type: ignore[arg-type]
        self.evaluations = 0
        self._function = function

    def step(self) -> float:
        return self.optimizer.step(self._closure).item()

    def count(self, name: str) -> int:
        """Return a counter of the state: `n_iter` or `func_evals`."""
        return int(self.optimizer.state[self.x][name])

    def _closure(self) -> torch.Tensor:
        self.evaluations += 1
        self.optimizer.zero_grad()
        value = self._function(self.x)
        value.backward()  # type: ignore[no-untyped-call]
        return value


def directions(lr: float, steps: int, history: int, start: list[float]) -> list[torch.Tensor]:
    """Return the points of L-BFGS with a fixed step length on the quadratic function, by algorithm 7.4 in float64."""
    x = torch.tensor(start, dtype=torch.float64)
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    _, gradient = value_and_gradient(quadratic, x)
    found = []
    for step in range(steps):
        q = gradient.clone()
        shares = []
        for moved, changed in reversed(pairs):
            shares.append(float(moved @ q / (changed @ moved)))
            q = q - shares[-1] * changed
        if pairs:
            moved, changed = pairs[-1]
            q = q * float(moved @ changed / (changed @ changed))
        for (moved, changed), share in zip(pairs, reversed(shares), strict=True):
            q = q + moved * (share - float(changed @ q / (changed @ moved)))
        length = lr if step else lr * min(1.0, 1.0 / float(gradient.abs().sum()))
        after = x - length * q
        _, gradient_after = value_and_gradient(quadratic, after)
        pairs = [*pairs, (after - x, gradient_after - gradient)][-history:]
        x, gradient = after, gradient_after
        found.append(x)
    return found


@pytest.mark.parametrize("history", [1, 2, 10])
@pytest.mark.parametrize("start", [[3.0, -2.0, 5.0, 0.5], [0.9, 0.8, 1.1, 1.0]], ids=["far", "near"])
@pytest.mark.types("float64")
def test_lbfgs_points_are_those_of_the_algorithm(device: torch.device, history: int, start: list[float]) -> None:
    """Without a line search, each point is the published one, for any length of the memory.

    The first step has the length `lr` along the gradient divided by its sum of absolute values, if that is above 1.
    """
    run = Minimized(device, quadratic, start, lr=0.4, max_iter=1, history_size=history)
    for number, wanted in enumerate(directions(0.4, 8, history, start)):
        run.step()
        torch.testing.assert_close(
            run.x.detach().cpu(), wanted, rtol=1e-8, atol=1e-8, msg=lambda text, number=number: f"{number}: {text}"
        )
    assert run.count("n_iter") == 8


@pytest.mark.types("float64")
def test_lbfgs_point_after_several_iterations_of_a_step(device: torch.device) -> None:
    """`max_iter` iterations of one step reach the point of as many steps of one iteration."""
    run = Minimized(device, quadratic, [3.0, -2.0, 5.0, 0.5], lr=0.4, max_iter=6, history_size=3)
    first = run.step()
    assert first == float(quadratic(torch.tensor([3.0, -2.0, 5.0, 0.5], dtype=torch.float64)))
    wanted = directions(0.4, 6, 3, [3.0, -2.0, 5.0, 0.5])[-1]
    torch.testing.assert_close(run.x.detach().cpu(), wanted, rtol=1e-8, atol=1e-8)
    assert run.evaluations == run.count("func_evals") == 6
    assert run.count("n_iter") == 6


@pytest.mark.parametrize(
    ("name", "lr", "most"),
    [
        ("valley", 0.01, 3.9),
        ("valley", 1.0, 2.5),
        ("valley", 8.0, 3.4),
        ("waves", 0.01, 3.5),
        ("waves", 1.0, 2.5),
        ("waves", 8.0, 3.6),
        ("wall", 0.01, 4.0),
        ("wall", 1.0, 2.1),
        ("wall", 8.0, 3.5),
    ],
)
@pytest.mark.types("float64")
def test_lbfgs_line_search_ends_at_a_strong_wolfe_point(
    device: torch.device, name: str, lr: float, most: float
) -> None:
    """With `strong_wolfe`, the step from each point satisfies both conditions, from short and long first guesses.

    The value falls by at least 1e-4 of the slope's prediction, and the slope at the end is at most 0.9 of that at the
    start. The mean number of evaluations per step is at most a seventh above torch 2.13's: a search with worse guesses
    than cubic interpolation needs more.
    """
    torch.manual_seed(7)
    function = SEARCHED[name]
    checked, flat, evaluations = 0, 0, 0
    for _ in range(12):
        run = Minimized(
            device,
            function,
            (torch.randn(2) * 1.5).tolist(),
            lr=lr,
            max_iter=1,
            max_eval=40,
            line_search_fn="strong_wolfe",
        )
        for _ in range(4):
            before = run.x.detach().cpu().clone()
            value, gradient = value_and_gradient(function, before)
            if float(gradient.abs().max()) < 1e-3:
                break
            evaluated = run.evaluations
            assert run.step() == pytest.approx(value, rel=1e-12)
            moved = run.x.detach().cpu() - before
            slope = float(gradient @ moved)
            after, end = value_and_gradient(function, run.x)
            assert slope < 0, (before, moved)
            assert after <= value + SUFFICIENT_DECREASE * slope + 1e-12 * abs(value), (before, moved)
            checked += 1
            flat += abs(float(end @ moved)) <= CURVATURE * abs(slope) * (1 + 1e-9)
            assert 1 < run.evaluations - evaluated <= 40
            evaluations += run.evaluations - evaluated
        assert run.evaluations == run.count("func_evals")
    assert checked > 24
    assert flat == checked
    assert evaluations / checked <= most


@pytest.mark.parametrize(
    ("lr", "end", "evaluations"),
    [
        # The slope is 16 at the start, so the search may end where it is at most 14.4, at 3.6 or before -3.6.
        (0.5, 3.5, 2),
        # The first guess is too long, -3.9: a cubic through both ends has its minimum at that of the parabola.
        (7.9, 0.0, 3),
        # The first guesses are too short, 3.99 and 3.9: each next one is at most ten times as long.
        (0.01, 3.0, 4),
    ],
    ids=["fits", "too_long", "too_short"],
)
@pytest.mark.types("float64")
def test_lbfgs_line_search_on_a_parabola(device: torch.device, lr: float, end: float, evaluations: int) -> None:
    """The search accepts a first guess that fits, interpolates between both sides of a minimum, and extends tenfold.

    The first guess is a step of length `lr`, since the gradient is above 1.
    """
    run = Minimized(device, lambda x: (x**2).sum() / 2, [4.0], lr=lr, **ONE_SEARCH)
    run.step()
    assert run.x.item() == pytest.approx(end, abs=1e-9)
    assert run.evaluations == evaluations


@pytest.mark.types("float64")
def test_lbfgs_ends_where_the_gradient_is_small(device: torch.device) -> None:
    """A step ends immediately if no entry of the gradient is above `tolerance_grad`, by default 1e-7."""
    for gradient, ends in ((1e-7, True), (2e-7, False)):
        run = Minimized(device, lambda x, slope=gradient: (slope * x).sum(), [1.0, 2.0])
        run.step()
        assert (run.count("n_iter") == 0) is ends
        assert run.evaluations == 1 if ends else run.evaluations > 0


@pytest.mark.types("float64")
def test_lbfgs_ends_where_it_moves_little(device: torch.device) -> None:
    """A step ends after an iteration that moves by at most `tolerance_change`, or changes the value by less."""
    settings = {"lr": 1e-3, "max_iter": 20, "tolerance_grad": 0.0}
    moves = Minimized(device, quadratic, [2.0, 2.0, 2.0, 2.0], tolerance_change=1.0, **settings)
    moves.step()
    assert moves.count("n_iter") == 1
    goes_on = Minimized(device, quadratic, [2.0, 2.0, 2.0, 2.0], tolerance_change=0.0, **settings)
    goes_on.step()
    assert goes_on.count("n_iter") == 20


@pytest.mark.types("float64")
def test_lbfgs_stops_at_its_most_evaluations(device: torch.device) -> None:
    """A step of 8 iterations makes at most a quarter more evaluations, and at most `max_eval` if it is given."""
    settings = {"lr": 0.05, "max_iter": 8, "tolerance_grad": 0.0, "tolerance_change": 0.0}
    for more, most in (({}, 8), ({"max_eval": 3}, 3)):
        run = Minimized(device, quadratic, [2.0] * 4, **settings, **more)
        run.step()
        assert run.evaluations == run.count("func_evals") == most
    searching = Minimized(device, valley, [-1.2, 1.0], **settings, line_search_fn="strong_wolfe")
    searching.step()
    assert searching.evaluations == searching.count("func_evals") == 10


@pytest.mark.types("float64")
def test_lbfgs_closure_runs_with_gradients_on(device: torch.device) -> None:
    """The closure computes gradients, also within `no_grad`, at each of its evaluations."""
    weight = torch.ones(2, dtype=torch.float64, device=device, requires_grad=True)
    for search in (None, "strong_wolfe"):
        optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=3, line_search_fn=search)
        seen: list[bool] = []

        def closure(optimizer: torch.optim.LBFGS = optimizer, seen: list[bool] = seen) -> torch.Tensor:
            seen.append(torch.is_grad_enabled())
            optimizer.zero_grad()
            value = (weight**4).sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        with torch.no_grad():
            optimizer.step(closure)
        assert len(seen) > 1
        assert all(seen)


@pytest.mark.types("float64")
def test_lbfgs_refuses_an_unknown_line_search(device: torch.device) -> None:
    """A line search other than `strong_wolfe` raises RuntimeError in the step; a rate of 0 is allowed."""
    run = Minimized(device, quadratic, [2.0] * 4, line_search_fn="golden")
    with pytest.raises(RuntimeError, match="strong_wolfe"):
        run.step()
    still = Minimized(device, quadratic, [2.0] * 4, lr=0.0)
    still.step()
    assert still.x.tolist() == [2.0] * 4
    assert not math.isnan(still.x.sum().item())


@pytest.mark.types("float64")
def test_lbfgs_moves_complex_weights_as_pairs(device: torch.device) -> None:
    """A complex weight is moved like its real and imaginary parts as a real weight."""
    start = torch.randn(3, 2, dtype=torch.float64)
    pairs = start.to(device, copy=True).requires_grad_(requires_grad=True)
    whole = torch.view_as_complex(start.clone()).to(device).requires_grad_(requires_grad=True)
    for weight in (pairs, whole):
        optimizer = torch.optim.LBFGS([weight], lr=0.3, max_iter=5)

        def closure(weight: torch.Tensor = weight, optimizer: torch.optim.LBFGS = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            real = torch.view_as_real(weight) if weight.is_complex() else weight
            value = ((real - 2) ** 4 + real**2).sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(closure)
    torch.testing.assert_close(torch.view_as_real(whole.detach().cpu()), pairs.detach().cpu(), rtol=1e-10, atol=1e-10)


#: The settings of L-BFGS, and the values and gradients of its evaluations in order. A value of None is at the bound of
#: the sufficient decrease, if the first value is 0 and the first gradient 1 or -1.
Script = tuple[dict[str, Any], list[tuple[float | None, float]]]

#: Gradients of the first evaluation: common ones, and some with brackets as short as a search divides.
FIRST_GRADIENTS = (1.0, -1.0, 1.0, -4.0, 0.5, -0.25, 1e-9, -1.5e-9, 3e-9)
GRADIENTS = (1.0, -1.0, 0.9, -0.9, 0.5, -0.5, 0.25, -0.25, 2.0, -2.0, 4.0, -4.0, 1.0, 0.0)
VALUES = (None, None, 0.0, 0.0, -1e-3, 1e-4, 0.25, -0.25, 0.5, -0.5, 1.0, -1.0, -1.25, 2.0, -2.0)

LONG = {"lr": 1.0, "max_iter": 2, "max_eval": 40, "tolerance_grad": 0.0, "tolerance_change": 0.0, "history_size": 2}
#: Scripts with equal sides of a comparison, which no draw finds.
TIES: list[Script] = [
    # The second guess is at the tenth of the bracket that is too near to its end, and the third is nearer.
    ({**LONG, "lr": 10.0}, [(0.0, 1.0), (40.0, -9.0), (40.0, -40.0), *[(-0.5, -0.5)] * 60]),
    # The cubic has no slope at its only turn.
    (LONG, [(0.0, 1.0), (-1.0, 4.0), *[(-2.0, -0.5)] * 60]),
    # The third guess has the value of the second.
    (LONG, [(0.0, 1.0), (-1.0, 1.0), (-2.0, 2.0), (-2.0, 2.0), *[(-3.0, -0.5)] * 60]),
    # The product of the step and the change of the gradient is 1e-10.
    ({**LONG, "lr": 2.0**-34, "max_iter": 4}, [(0.0, 1.0), *[(-1.0, 1 - 1e-10 * 2.0**34)] * 60]),
]


def draw(numbers: random.Random) -> Script:
    """Return a script that fits no function. Each branch of the search is taken within a few hundred scripts."""
    max_iter = numbers.choice((0, 1, 2, 3, 5))
    settings = {
        "lr": numbers.choice((1.0, 1.0, 0.5, 2.0, 8.0)),
        "max_iter": max_iter,
        "max_eval": numbers.choice((max_iter * 5 // 4, 1, 3, 6, 12, 40)),
        "tolerance_grad": numbers.choice((0.0, 0.0, 1e-12, 0.25)),
        "tolerance_change": numbers.choice((0.0, 0.0, 1e-20, 0.25)),
        "history_size": numbers.choice((1, 2, 10)),
    }
    size = numbers.choice((1.0, 1.0, 1.0, 1e-9))
    found: list[tuple[float | None, float]] = [(numbers.choice((0.0, 0.0, 1.0)), numbers.choice(FIRST_GRADIENTS))]
    for _ in range(120):
        value = numbers.choice(VALUES)
        if numbers.random() < 0.3 and (last := found[-1][0]) is not None:
            value = last + numbers.choice((0.0, -0.25, -0.5))
        found.append((value, numbers.choice(GRADIENTS) * size))
    return settings, found


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.types("float64")
def test_lbfgs_evaluates_where_minfunc_does(device: torch.device, search: str | None) -> None:
    """Each evaluation of two steps is at minFunc's point, for any values and gradients that the closure returns.

    The docstring of L-BFGS names minFunc as its model. The closure may return the same tensors each time.
    """
    numbers = random.Random(11)
    draws = 400 if device.type == "cpu" else 60  # an accelerator is slow for such small work
    compared = 0
    for number, (settings, script) in enumerate(itertools.chain(TIES, (draw(numbers) for _ in range(draws)))):
        reference = Lbfgs(**settings, searching=search is not None)
        weight = torch.zeros(1, dtype=torch.float64, device=device, requires_grad=True)
        weight.grad = torch.zeros_like(weight)
        loss = torch.zeros((), dtype=torch.float64, device=device)
        found: list[float] = []
        wanted: list[float] = []

        def closure(
            weight: torch.Tensor = weight,
            loss: torch.Tensor = loss,
            script: list[tuple[float | None, float]] = script,
            found: list[float] = found,
        ) -> torch.Tensor:
            value, gradient = at(weight.item(), script, found)
            assert weight.grad is not None
            weight.grad.fill_(gradient)
            return loss.fill_(value)

        def evaluate(
            point: float, script: list[tuple[float | None, float]] = script, wanted: list[float] = wanted
        ) -> tuple[float, float]:
            return at(point, script, wanted)

        x, steps = 0.0, 0
        try:
            while steps < 2 and reference.moved:
                x, steps = reference.step(x, evaluate), steps + 1
        except ZeroDivisionError:
            continue  # the cubic is a line
        optimizer = torch.optim.LBFGS([weight], **settings, line_search_fn=search)
        for _ in range(steps):
            optimizer.step(closure)
        compared += 1
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-20), (number, settings)
        assert weight.item() == pytest.approx(x, rel=1e-9, abs=1e-20), (number, settings)
        state = optimizer.state[weight]
        assert (state["n_iter"], state["func_evals"]) == (reference.iterations, reference.evaluations)
    assert compared > draws * 3 / 4


def at(point: float, script: list[tuple[float | None, float]], seen: list[float]) -> tuple[float, float]:
    """Return value and gradient of the next evaluation, and record its point."""
    value, gradient = script[len(seen)]
    seen.append(point)
    return (-SUFFICIENT_DECREASE * abs(point) if value is None else value), gradient


@pytest.mark.requires(sparse=True)
@pytest.mark.types("float64")
def test_lbfgs_takes_a_missing_gradient_as_zeros_and_a_sparse_one_as_dense(device: torch.device) -> None:
    """A weight without a gradient does not change, real or complex; a sparse gradient acts like a dense one."""
    for search in (None, "strong_wolfe"):
        moved = []
        for sparse in (False, True):
            still = [torch.ones(2, 3, dtype=dtype, device=device) for dtype in (torch.float64, torch.complex128)]
            table = torch.arange(8.0, dtype=torch.float64, device=device).reshape(4, 2).requires_grad_()
            last = torch.ones(3, dtype=torch.float64, device=device, requires_grad=True)
            optimizer = torch.optim.LBFGS([still[0], table, still[1], last], lr=0.3, max_iter=4, line_search_fn=search)

            def closure(
                table: torch.Tensor = table,
                last: torch.Tensor = last,
                optimizer: torch.optim.LBFGS = optimizer,
                sparse: bool = sparse,
            ) -> torch.Tensor:
                optimizer.zero_grad()
                rows = torch.nn.functional.embedding(torch.tensor([1, 3, 1], device=device), table, sparse=sparse)
                value = ((rows - 1) ** 2).sum() + ((last - 3) ** 4).sum()
                value.backward()  # type: ignore[no-untyped-call]
                assert table.grad is not None
                assert table.grad.is_sparse is sparse
                return value

            optimizer.step(closure)
            assert all(torch.equal(each, torch.ones_like(each)) for each in still)
            assert table[::2].tolist() == [[0.0, 1.0], [4.0, 5.0]]
            moved.append((table.detach().cpu(), last.detach().cpu()))
        assert (moved[0][0][1::2] != torch.tensor([[2.0, 3.0], [6.0, 7.0]], dtype=torch.float64)).all()
        torch.testing.assert_close(moved[1], moved[0], rtol=1e-10, atol=1e-10)
