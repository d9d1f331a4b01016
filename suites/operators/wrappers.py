"""Ways to run an operator whose gradients must be those of a plain backward pass."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from . import comparison, oracles, samples
from .gradients import weights_of

#: A function of the differentiable inputs that returns the differentiable results.
Function = Callable[..., tuple[torch.Tensor, ...]]
Gradients = Sequence[torch.Tensor | None]


class Call:
    """A sample of an operator as a function of its differentiable inputs, which are moved to the device once.

    `inputs`: the tensors that require a gradient. `weights`: one per differentiable result. Both are empty if nothing
    is differentiable. `expected`: the gradients of a plain backward pass, zeros where there is none.
    """

    def __init__(self, info: Any, sample: Any, device: torch.device) -> None:
        self._call = oracles.call(info)
        self._sample = sample
        self._device = device
        self._take_inputs()
        outs = self._results(*self.inputs) if self.inputs else []
        self._differentiable = [each.requires_grad for each in outs]
        outs = [each for each in outs if each.requires_grad]
        self.weights = weights_of(outs)
        found = torch.autograd.grad(outs, self.inputs, self.weights, allow_unused=True) if outs else ()
        self.expected = self.filled(found)

    def _take_inputs(self) -> None:
        self._given = samples.move(samples.arguments(self._sample), self._device)
        self.inputs = samples.leaves(self._given)

    def again(self) -> Call:
        """Return the same with copies of the inputs."""
        made = copy.copy(self)
        made._take_inputs()
        return made

    def filled(self, found: Gradients) -> list[torch.Tensor]:
        """Return gradients with zeros where there is none."""
        return [torch.zeros_like(one) if two is None else two for one, two in zip(self.inputs, found, strict=False)]

    def _results(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        by_id = {id(one): two for one, two in zip(self.inputs, inputs, strict=True)}
        given = tree_map(lambda each: by_id.get(id(each), each), self._given)
        return comparison.tensors(self._sample.output_process_fn_grad(self._call(given)))

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the differentiable results for other inputs."""
        return tuple(itertools.compress(self._results(*inputs), self._differentiable))


def _backward(outs: Sequence[torch.Tensor], call: Call) -> Gradients:
    return torch.autograd.grad(outs, call.inputs, call.weights, allow_unused=True)


def cloned(call: Call) -> Gradients:
    """Save a clone of each tensor."""
    with saved_tensors_hooks(torch.clone, lambda saved: saved):
        outs = call(*call.inputs)
    return _backward(outs, call)


def offloaded(call: Call) -> Gradients:
    """Save each tensor in the host's memory."""
    with save_on_cpu():
        outs = call(*call.inputs)
    return _backward(outs, call)


def checkpointed(call: Call) -> Gradients:
    """Save the inputs, and compute the results again in the backward pass."""
    return _backward(checkpoint(call, *call.inputs, use_reentrant=False), call)


def reentrant(call: Call) -> Gradients:
    """Save the inputs, and run a backward pass inside of the backward pass."""
    outs = checkpoint(call, *call.inputs, use_reentrant=True)
    torch.autograd.backward(outs, call.weights)
    return [each.grad for each in call.inputs]


def _pulled(call: Call, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    _, pull = torch.func.vjp(call, *inputs)
    found: tuple[torch.Tensor, ...] = pull(tuple(call.weights))
    return found


def functional(call: Call) -> Gradients:
    """Transform the function by `torch.func.vjp`."""
    return _pulled(call, *(each.detach() for each in call.inputs))


def batched(call: Call) -> Gradients:
    """Compute the gradients of two equal samples at once, by `torch.func.vmap`."""
    twice = [torch.stack([each.detach(), each.detach()]) for each in call.inputs]
    found = torch.func.vmap(lambda *each: _pulled(call, *each), randomness="same")(*twice)
    return [each[1] for each in found]


def compiled(call: Call) -> Gradients:
    """Trace both passes by `torch.compile`, and run the traced operators."""
    return _backward(torch.compile(call, backend="aot_eager")(*call.inputs), call)


WRAPPERS: dict[str, Callable[[Call], Gradients]] = {
    each.__name__: each for each in (cloned, offloaded, checkpointed, reentrant, functional, batched)
}
