"""Small programs that several cases profile: their inputs, their work, and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.profiler import record_function

from .models import linear, perceptron, train

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Scene:
    """A program to run once. `given` are its input tensors; `work` returns the tensors that it leaves, by name."""

    work: Callable[[], Tensors]
    given: Tensors = field(default_factory=dict)


def values(device: torch.device, count: int = 6, grad: bool = False) -> torch.Tensor:
    """Return a vector of nonzero numbers."""
    return torch.linspace(0.5, 1.5, count, device=device, requires_grad=grad)


def annotated(device: torch.device) -> Scene:
    """Return two writes and two new tensors in nested scopes, one of which has an operator's name."""
    x, y = values(device), values(device)

    def work() -> Tensors:
        with record_function("space::words"), record_function("plain words"):
            x.neg_()
            y.zero_()
            return {"p": torch.ones_like(x), "q": torch.zeros_like(y)}

    return Scene(work, {"x": x, "y": y})


def scalar(device: torch.device) -> Scene:
    """Return a scene with a Python number as an operand, for which torch creates a tensor outside of any operator."""
    x = values(device)

    def work() -> Tensors:
        x.div(2)
        return {}

    return Scene(work, {"x": x})


def product(device: torch.device) -> Scene:
    """Return a scene with a new tensor and a view of it."""
    x, w = values(device), values(device, grad=True)

    def work() -> Tensors:
        return {"z": x.mul(w).unsqueeze(0)}

    return Scene(work, {"x": x, "w": w})


def product_without_graph(device: torch.device) -> Scene:
    """Return the scene `product` with autograd off."""
    return _without_graph(product(device))


def product_in_place(device: torch.device) -> Scene:
    """Return an in-place multiplication by a tensor that requires grad, for which autograd saves the old value."""
    x, w = values(device), values(device, grad=True)

    def work() -> Tensors:
        x.mul_(w)
        return {}

    return Scene(work, {"x": x, "w": w})


def product_in_place_without_graph(device: torch.device) -> Scene:
    """Return the scene `product_in_place` with autograd off."""
    return _without_graph(product_in_place(device))


def _without_graph(scene: Scene) -> Scene:
    def work() -> Tensors:
        with torch.no_grad():
            return scene.work()

    return Scene(work, scene.given)


def pass_back(device: torch.device) -> Scene:
    """Return a forward through two operators, and its backward."""
    x, w = values(device, 1), values(device, 1, grad=True)

    def work() -> Tensors:
        (x * w).exp().backward()
        assert w.grad is not None
        return {"w_grad": w.grad}

    return Scene(work, {"x": x, "w": w})


def pass_back_again(device: torch.device) -> Scene:
    """Return the scene `pass_back` with an existing gradient to accumulate into."""
    scene = pass_back(device)
    scene.work()
    return scene


def chain(device: torch.device) -> Scene:
    """Return a scene with tensors that are created, changed in place with a Python number, and passed as `out=`."""

    def work() -> Tensors:
        a = torch.ones(7, device=device)
        b = a.mul(3).sub_(1)
        c = torch.cos(b, out=torch.empty_like(b))
        return {"a": a, "b": b, "c": c}

    return Scene(work)


def views_and_deletion(device: torch.device) -> Scene:
    """Return writes through views, a concatenation, and a tensor changed and freed between uses of the others."""
    x = values(device)

    def work() -> Tensors:
        base = torch.zeros(6, device=device)
        base.view(2, 3)[1].copy_(x[:3])
        both = torch.cat([base, x])
        dropped = both.neg().abs_()
        total = dropped.sum()
        del dropped
        base.unsqueeze(0).exp_()
        total.neg_()
        return {"base": base, "total": total}

    return Scene(work, {"x": x})


def stacked(device: torch.device) -> Scene:
    """Return two layers of plain tensors, trained for two steps by hand: gradients are created, then accumulated."""
    x = values(device)
    weights = [values(device, grad=True) for _ in range(2)]

    def work() -> Tensors:
        for _ in range(2):
            hidden = x
            for weight in weights:
                hidden = (hidden * weight).tanh()
            hidden.sum().backward()
            with torch.no_grad():
                for weight in weights:
                    assert weight.grad is not None
                    weight.sub_(weight.grad)
        left = {f"w{i}": weight for i, weight in enumerate(weights)}
        left |= {f"w{i}_grad": weight.grad for i, weight in enumerate(weights) if weight.grad is not None}
        return left

    return Scene(work, {"x": x})


def leaves_forward(device: torch.device) -> Scene:
    """Return operators on tensors that require grad, without module or backward."""
    v, w = values(device, grad=True), values(device, grad=True)

    def work() -> Tensors:
        x = torch.ones(6, device=device)
        y = torch.stack([x * v, x * w])
        y.neg()
        return {"x": x, "v": v, "w": w, "y": y}

    return Scene(work)


def leaves_backward(device: torch.device) -> Scene:
    """Return the scene `leaves_forward` with a loss and its backward."""
    v, w = values(device, grad=True), values(device, grad=True)

    def work() -> Tensors:
        x = torch.ones(6, device=device)
        target = torch.full((2, 6), 2.0, device=device)
        loss = torch.nn.functional.mse_loss(torch.stack([x * v, x * w]), target)
        loss.backward()
        assert v.grad is not None
        assert w.grad is not None
        return {"x": x, "target": target, "loss": loss, "v": v, "w": w, "v_grad": v.grad, "w_grad": w.grad}

    return Scene(work)


def leaves_step(device: torch.device) -> Scene:
    """Return the scene `leaves_backward` with an optimizer step."""
    v, w = values(device, grad=True), values(device, grad=True)
    optimizer = torch.optim.SGD([v, w], lr=0.1)

    def work() -> Tensors:
        x = torch.ones(6, device=device)
        target = torch.full((2, 6), 2.0, device=device)
        loss = torch.nn.functional.mse_loss(torch.stack([x * v, x * w]), target)
        loss.backward()
        optimizer.step()
        assert v.grad is not None
        assert w.grad is not None
        return {"x": x, "target": target, "loss": loss, "v": v, "w": w, "v_grad": v.grad, "w_grad": w.grad}

    return Scene(work)


def module_forward(device: torch.device) -> Scene:
    """Return a call of a layer."""
    return _module(torch.nn.Sequential(linear(3, 2, device)), device)


def module_backward(device: torch.device) -> Scene:
    """Return a layer, a loss and its backward."""
    return _module(torch.nn.Sequential(linear(3, 2, device)), device, backward=True)


def module_step(device: torch.device) -> Scene:
    """Return a layer, a loss, its backward and an optimizer step."""
    return _module(torch.nn.Sequential(linear(3, 2, device)), device, backward=True, step=True)


def layers_forward(device: torch.device) -> Scene:
    """Return two layers, the second without bias, with activation functions between and after them."""
    return _module(_layers(device), device)


def layers_backward(device: torch.device) -> Scene:
    """Return the scene `layers_forward` with a loss and its backward."""
    return _module(_layers(device), device, backward=True)


def _layers(device: torch.device) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        linear(3, 4, device), torch.nn.Sigmoid(), linear(4, 2, device, bias=False), torch.nn.Softmax(dim=1)
    )


def _module(model: torch.nn.Sequential, device: torch.device, backward: bool = False, step: bool = False) -> Scene:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def work() -> Tensors:
        x = torch.ones((2, 3), device=device)
        y = model(x)
        left = {"x": x}
        if backward:
            left["loss"] = y.square().sum()
            left["loss"].backward()
        if step:
            optimizer.step()
        for name, parameter in model.named_parameters():
            left[name.replace(".", "_")] = parameter
            if parameter.grad is not None:
                left[f"{name.replace('.', '_')}_grad"] = parameter.grad
        return left

    return Scene(work)


def training(device: torch.device) -> Scene:
    """Return a training step with momentum after the first one, so that the momentum buffers exist.

    The gradients are cleared before, so the run frees no older memory. On the CPU, the profiler can report a wrong size
    for such memory if its address was allocated in one profile and freed outside of any.
    """
    model = perceptron(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, target = torch.ones((2, 3), device=device), torch.zeros((2, 1), device=device)
    train(model, optimizer, x, target)
    optimizer.zero_grad()

    def work() -> Tensors:
        left = {"x": x, "target": target, "loss": train(model, optimizer, x, target)}
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            left[name] = parameter
            left[f"{name}.grad"] = parameter.grad
            left[f"{name}.momentum"] = optimizer.state[parameter]["momentum_buffer"]
        return left

    return Scene(work)


FLOW = [
    annotated,
    scalar,
    product,
    product_without_graph,
    product_in_place,
    product_in_place_without_graph,
    pass_back,
    pass_back_again,
    chain,
    views_and_deletion,
    stacked,
]
CATEGORIES = [
    leaves_forward,
    leaves_backward,
    leaves_step,
    module_forward,
    module_backward,
    module_step,
    layers_forward,
    layers_backward,
]
