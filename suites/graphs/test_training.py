"""Whole training steps in one graph: forward, backward, gradient scaling and optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from .capturing import Api, apis, captured

pytestmark = pytest.mark.timeout(120)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


@apis
def test_graph_of_a_training_step_by_hand(api: Api, device: torch.device) -> None:
    """A hand-written training step in one graph exactly equals eager steps (whole numbers, no rounding)."""
    weight = torch.zeros(8, 4, device=device)
    x = torch.zeros(6, 8, device=device)
    target = torch.zeros(6, 4, device=device)

    def step() -> None:
        difference = torch.mm(x, weight) - target
        weight.sub_(torch.mm(x.t(), difference))

    graph = captured(api, device, step)
    expected = torch.ones(8, 4)
    weight.copy_(expected)
    for number in range(4):
        data = ((torch.arange(48) + number) % 3 - 1).reshape(6, 8).float()
        wanted = ((torch.arange(24) * 2 + number) % 3 - 1).reshape(6, 4).float()
        x.copy_(data)
        target.copy_(wanted)
        graph.replay()
        expected -= data.t() @ (data @ expected - wanted)
        torch.accelerator.synchronize(device)
        assert torch.equal(weight.cpu(), expected), f"step {number}"


OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, capturable=True),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, capturable=True, fused=True),
}


@apis
@pytest.mark.parametrize(
    ("name", "scaled"), [("sgd", False), ("adam", False), ("adamw_fused", False), ("adamw_fused", True)]
)
def test_graph_of_a_whole_training_step_with_optimizer_and_gradscaler(
    api: Api, name: str, scaled: bool, device: torch.device
) -> None:
    """A training step with autocast and gradient scaling in one graph trains like its eager twin, up to rounding.

    An overflow in the data skips a step and halves the scale. The optimizers are fused, because for others the scaler
    reads the overflow flag back to the host. Kernels of products may differ in a capture.
    """
    eager_model = Model().to(device)
    model = copy.deepcopy(eager_model)
    x, y = torch.zeros(12, 16, device=device), torch.zeros(12, 4, device=device)

    def stepper(model: torch.nn.Module) -> tuple[Callable[[], None], torch.amp.GradScaler]:
        optimiser = OPTIMISERS[name](model.parameters())
        scaler = torch.amp.GradScaler(device.type, init_scale=128.0, enabled=scaled)

        def step() -> None:
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=torch.float16, enabled=scaled, cache_enabled=False):
                loss = torch.nn.functional.mse_loss(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()

        return step, scaler

    step, scaler = stepper(model)
    twin, twin_scaler = stepper(eager_model)
    stream = torch.Stream(device)
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        for _ in range(3):
            step()
    for _ in range(3):
        twin()
    torch.accelerator.synchronize(device)
    graph = api.new()
    with api.capturing(graph, stream):
        step()
    for number in range(6):
        x.normal_()
        y.normal_()
        if scaled and number == 3:
            x.fill_(float("inf"))
        graph.replay()
        twin()
    for one, other in zip(model.parameters(), eager_model.parameters(), strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=1e-2 if scaled else 1e-4, atol=1e-3 if scaled else 1e-5)
    assert scaler.get_scale() == twin_scaler.get_scale() == (64.0 if scaled else 1.0)
