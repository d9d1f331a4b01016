"""Optimizer steps in graphs, with and without a gradient scaler: replays equal eager steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from suites.cuda_warnings import of_empty_graphs

from .catalogue import CAPTURABLE, KINDS, Kind, marks, new_gradients, new_weights
from .graphs import captured, rehearsed

pytestmark = [
    # Before torch 2.13, only CUDA's graphs exist.
    pytest.mark.requires(any=[{"device": "cuda"}, {"accelerator_graphs": True}]),
    pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True"),
]

REHEARSALS, REPLAYS = 3, 4
CAPTURED = [(kind, form) for kind in KINDS.values() for form in kind.forms if form in CAPTURABLE]
FUSED = [kind for kind in KINDS.values() if "fused" in kind.forms]


@pytest.mark.covers("test_cuda::TestCudaOptims::test_graph_optims")
@pytest.mark.parametrize(
    ("kind", "form", "settings"),
    [
        pytest.param(kind, form, settings, id=f"{kind.name}-{form}-{settings}")
        for kind, form in CAPTURED
        for settings in kind.settings
    ]
    + [
        pytest.param(
            kind,
            "fused",
            "plain",
            id=f"{kind.name}-fused-plain",
            marks=marks(kind, "fused"),
        )
        for kind in FUSED
    ],
)
def test_capturable_step_replay_equals_a_step(device: torch.device, kind: Kind, form: str, settings: str) -> None:
    """A captured step, replayed with new gradients in place, is bitwise equal to an eager step of its kind."""
    capturable: dict[str, Any] = {"capturable": True} if form == "fused" and "capturable" in kind.forms else {}
    weights = [weight.detach() for weight in new_weights(device, torch.float32)]
    others = [weight.clone() for weight in weights]
    gradients = new_gradients(REHEARSALS + REPLAYS)
    for weight, other in zip(weights, others, strict=True):
        weight.grad, other.grad = torch.empty_like(weight), torch.empty_like(other)
    graphed, run = (kind.make(some, form, settings, **capturable) for some in (weights, others))

    def fill(some: list[torch.Tensor], step: int) -> None:
        for weight, gradient in zip(some, gradients[step], strict=True):
            assert weight.grad is not None
            weight.grad.copy_(gradient)

    for step in range(REHEARSALS):
        fill(weights, step)
        rehearsed(device, graphed.step, 1)
    still = [weight.clone() for weight in weights]
    graph = captured(device, graphed.step)
    assert all(map(torch.equal, weights, still)), "the capture ran the step"
    for step in range(REHEARSALS, REHEARSALS + REPLAYS):
        fill(weights, step)
        graph.replay()
    for step in range(REHEARSALS + REPLAYS):
        fill(others, step)
        run.step()

    torch.accelerator.synchronize(device)
    assert all(map(torch.equal, weights, others))
    assert not all(map(torch.equal, weights, still))


@of_empty_graphs
@pytest.mark.covers("test_cuda::TestCuda::test_graph_optims_with_explicitly_capturable_param_groups")
@pytest.mark.parametrize("name", [kind.name for kind in KINDS.values() if "capturable" in kind.forms])
def test_capturable_in_all_groups_can_be_captured(device: torch.device, name: str) -> None:
    """An optimizer whose groups are all capturable can be captured, and each group uses its own learning rate.

    The tolerance of 1e-4 is float32's rounding of the step count on the device.
    """
    weights = [torch.ones(1, device=device) for _ in range(2)]
    others = [weight.clone() for weight in weights]
    cls = getattr(torch.optim, name)
    rates = (0.1, 0.02)
    graphed, run = (
        cls([{"params": [one], "lr": rate, "capturable": on} for one, rate in zip(some, rates, strict=True)])
        for some, on in ((weights, True), (others, False))
    )
    for weight, other, gradient in zip(weights, others, (0.5, -2.0), strict=True):
        weight.grad, other.grad = torch.full_like(weight, gradient), torch.full_like(other, gradient)

    rehearsed(device, graphed.step, REHEARSALS)
    graph = captured(device, graphed.step)
    for _ in range(REPLAYS):
        graph.replay()
    for _ in range(REHEARSALS + REPLAYS):
        run.step()

    torch.accelerator.synchronize(device)
    for weight, other in zip(weights, others, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-4, atol=1e-4)
    assert weights[0].item() < 1 < weights[1].item()


@of_empty_graphs
@pytest.mark.covers("test_cuda::TestCuda::test_graph_optims_with_explicitly_capturable_param_groups")
@pytest.mark.requires(device="cuda")
@pytest.mark.parametrize("name", [kind.name for kind in KINDS.values() if "capturable" in kind.forms])
def test_capturable_missing_in_a_group_is_refused(device: torch.device, name: str) -> None:
    """If any group is not capturable, a step under capture raises; the capture ends, and later eager steps work."""
    for capturable in (0, 1):
        weights = [torch.ones(1, device=device) for _ in range(2)]
        groups = [{"params": [weight], "capturable": number == capturable} for number, weight in enumerate(weights)]
        optimiser = getattr(torch.optim, name)(groups, lr=0.1)
        for weight in weights:
            weight.grad = torch.full_like(weight, 0.5)
        rehearsed(device, optimiser.step, REHEARSALS)
        before = [weight.clone() for weight in weights]

        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="Attempting CUDA graph capture of step"), torch.cuda.graph(graph):
            optimiser.step()
        assert not torch.cuda.is_current_stream_capturing()
        torch.cuda.synchronize(device)
        assert all(map(torch.equal, weights, before))

        optimiser.step()
        assert not any(map(torch.equal, weights, before))


# ---- with a gradient scaler ----


@pytest.mark.covers("test_cuda::TestCudaOptims::test_graph_grad_scaling")
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param(kind, form, id=f"{kind.name}-{form}", marks=marks(kind, form))
        for kind in FUSED
        for form in ("one_by_one", "foreach", "fused")
    ],
)
@pytest.mark.types("float64")
def test_gradscaler_scale_is_read_at_each_replay_of_a_captured_backward(
    device: torch.device, kind: Kind, form: str
) -> None:
    """A captured scaled backward multiplies by the current scale at each replay, and eager steps use its gradients.

    An overflow halves the scale and keeps the weight; two consecutive finite steps double it, and each equals the
    formula with the unscaled gradient (1e-5).
    """
    weight = torch.ones(100, device=device, requires_grad=True)
    optimiser = kind.make([weight], form, "plain")
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0, growth_interval=2)
    data, formula = torch.ones_like(weight), kind.reference(**kind.settings["plain"])
    weight.grad = torch.zeros_like(weight)

    def backward() -> None:
        assert weight.grad is not None
        weight.grad.zero_()
        loss = (weight.half() * data).sum() / weight.detach().half()[0]
        scaler.scale(loss).backward()

    rehearsed(device, backward, 1)
    graph = captured(device, backward)
    # 40000 in float16, times the scale, is infinite.
    wanted = [(5.0, 20.0, 4.0, 1), (40000.0, float("inf"), 2.0, 0), (5.0, 10.0, 2.0, 1), (5.0, 10.0, 4.0, 0)]
    for value, scaled, scale, good in wanted:
        data.fill_(value)
        before = weight.detach().clone()
        with torch.no_grad():
            weight.fill_(1.0)
            before.fill_(1.0)
        graph.replay()
        torch.accelerator.synchronize(device)
        assert weight.grad.tolist() == [scaled] * 100
        scaler.step(optimiser)
        scaler.update()
        assert (scaler.get_scale(), scaler.state_dict()["_growth_tracker"]) == (scale, good)
        assert torch.equal(weight.detach(), before) == (scaled == float("inf"))
        if scaled != float("inf"):
            assert weight.tolist() == pytest.approx([formula.step(1.0, value)] * 100, rel=1e-5)


@pytest.mark.covers("test_cuda::TestCudaOptims::test_graph_scaling_fused_optimizers")
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.name, marks=marks(kind, "fused")) for kind in FUSED],
)
def test_gradscaler_step_and_update_of_a_fused_optimizer_can_be_captured(device: torch.device, kind: Kind) -> None:
    """A fused optimizer's step with a scaler, including the update, can be captured, and replays are bitwise equal.

    Weights and scales match, with overflowing steps in between, and the weights equal the formula (1e-5).
    """
    capturable: dict[str, Any] = {"capturable": True} if "capturable" in kind.forms else {}

    def train(*, graphed: bool) -> tuple[list[float], torch.Tensor]:
        weight = torch.linspace(0.5, 1.5, 32, device=device).requires_grad_(requires_grad=True)
        weight.grad = torch.ones_like(weight)
        optimiser = kind.make([weight], "fused", "plain", **capturable)
        scaler = torch.amp.GradScaler(device.type, init_scale=8.0, growth_interval=2)
        scaler.scale(torch.ones((), device=device))
        found: list[float] = []

        def step() -> None:
            scaler.step(optimiser)
            scaler.update()

        for _ in range(2):
            weight.grad.fill_(1.0)  # a fused step leaves the unscaled gradient there
            rehearsed(device, step, 1)
        graph = captured(device, step) if graphed else None
        for value in (4.0, float("inf"), 2.0, 2.0, float("nan"), 1.0):
            weight.grad.fill_(value)
            if graph is not None:
                graph.replay()
            else:
                step()
            torch.accelerator.synchronize(device)
            found.append(scaler.get_scale())
        return found, weight.detach().clone()

    run, replayed = train(graphed=False), train(graphed=True)

    assert run[0] == [16.0, 8.0, 8.0, 16.0, 8.0, 8.0]
    assert replayed[0] == run[0]
    assert torch.equal(replayed[1], run[1])
    wanted = []
    for number in torch.linspace(0.5, 1.5, 32).tolist():
        formula = kind.reference(**kind.settings["plain"])
        for gradient in (1 / 8, 1 / 8, 4 / 16, 2 / 8, 2 / 8, 1 / 8):
            number = formula.step(number, gradient)
        wanted.append(number)
    assert run[1].tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-5)
