"""Hooks of a backward pass and streams: each runs with the stream of its gradient current, and reads a late gradient.

A gradient is written late, into a buffer of poison. A hook copies it on the current stream, without a wait of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from .apis import Api
from .busy import NOT_SHOWN, POISON, calibrate, ever, sleep_on

pytestmark = [
    pytest.mark.requires(accelerator=True),
    pytest.mark.covers("test_cuda::TestCuda::test_streaming_backwards_sync"),
]

ELEMENTS = 1 << 12
FACTOR = 3.0


class WritesLate(torch.autograd.Function):
    """`x * FACTOR`, whose backward sleeps on its stream before it writes the gradient into `buffer`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, buffer: torch.Tensor, api: Api) -> torch.Tensor:
        ctx.buffer, ctx.api = buffer, api
        return x * FACTOR

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sleep_on(ctx.api.current_stream(ctx.buffer.device))
        return torch.mul(gradients[0], FACTOR, out=ctx.buffer), None, None


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@dataclass
class Scene:
    """`leaf` goes through `module` and becomes `middle`, whose gradient comes late. A hook calls `see`."""

    api: Api
    device: torch.device
    #: The ids of the current device and the current stream in each call of a hook, and copies that it made there.
    current: list[tuple[int, int]] = field(default_factory=list)
    copies: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leaf = torch.ones(ELEMENTS, device=self.device, requires_grad=True)
        self.module = Doubled()
        self.middle = self.leaf  # until the forward pass

    def see(self, gradient: torch.Tensor | None) -> None:
        """Note what is current in a hook, and copy the gradient."""
        assert gradient is not None
        stream = self.api.current_stream(self.device)
        self.current.append((torch.accelerator.current_device_index(), stream.stream_id))
        self.copies.append(gradient.detach().clone())

    def node(self) -> Any:
        assert self.middle.grad_fn is not None
        return self.middle.grad_fn

    def node_of_leaf(self) -> Any:
        return self.node().next_functions[0][0]


@dataclass(frozen=True)
class Hook:
    """One kind of hook. `before` and `after` register it before or after the forward pass, and return handles."""

    #: The expected gradient at the hook: that of `middle`, or that of `leaf`.
    value: float
    before: Callable[[Scene], object] = lambda _: None
    after: Callable[[Scene], object] = lambda _: None


OF_MIDDLE, OF_LEAF = FACTOR, 2 * FACTOR


def _on_all_modules(register: Callable[..., Any], call: Callable[[Scene], Callable[..., None]]) -> Any:
    return lambda scene: register(call(scene))


HOOKS: dict[str, Hook] = {
    "register_hook": Hook(OF_MIDDLE, after=lambda scene: scene.middle.register_hook(scene.see)),
    "register_hook_of_a_leaf": Hook(OF_LEAF, after=lambda scene: scene.leaf.register_hook(scene.see)),
    "register_post_accumulate_grad_hook": Hook(
        OF_LEAF, before=lambda scene: scene.leaf.register_post_accumulate_grad_hook(lambda leaf: scene.see(leaf.grad))
    ),
    "register_multi_grad_hook_all": Hook(
        OF_LEAF,
        after=lambda scene: torch.autograd.graph.register_multi_grad_hook(
            (scene.middle, scene.leaf), lambda gradients: scene.see(gradients[1]), mode="all"
        ),
    ),
    "register_multi_grad_hook_any": Hook(
        OF_MIDDLE,
        after=lambda scene: torch.autograd.graph.register_multi_grad_hook(
            (scene.middle, scene.leaf), scene.see, mode="any"
        ),
    ),
    "node_register_prehook": Hook(
        OF_MIDDLE, after=lambda scene: scene.node().register_prehook(lambda given: scene.see(given[0]))
    ),
    "node_register_hook": Hook(
        OF_LEAF, after=lambda scene: scene.node().register_hook(lambda made, _given: scene.see(made[0]))
    ),
    "accumulategrad_register_prehook": Hook(
        OF_LEAF, after=lambda scene: scene.node_of_leaf().register_prehook(lambda given: scene.see(given[0]))
    ),
    "accumulategrad_register_hook": Hook(
        OF_LEAF,
        after=lambda scene: scene.node_of_leaf().register_hook(lambda _made, _given: scene.see(scene.leaf.grad)),
    ),
    "register_full_backward_pre_hook": Hook(
        OF_MIDDLE,
        before=lambda scene: scene.module.register_full_backward_pre_hook(lambda _, given: scene.see(given[0])),
    ),
    "register_full_backward_hook": Hook(
        OF_LEAF,
        before=lambda scene: scene.module.register_full_backward_hook(lambda _, made, _given: scene.see(made[0])),
    ),
    "register_module_full_backward_pre_hook": Hook(
        OF_MIDDLE,
        before=_on_all_modules(
            nn.modules.module.register_module_full_backward_pre_hook,
            lambda scene: lambda _, given: scene.see(given[0]),
        ),
    ),
    "register_module_full_backward_hook": Hook(
        OF_LEAF,
        before=_on_all_modules(
            nn.modules.module.register_module_full_backward_hook,
            lambda scene: lambda _, made, _given: scene.see(made[0]),
        ),
    ),
}


@pytest.fixture(params=HOOKS)
def hook(request: pytest.FixtureRequest) -> Hook:
    return HOOKS[request.param]


def run(
    scene: Scene, hook: Hook, forward: torch.Stream, late: torch.Stream, caller: torch.Stream | None
) -> torch.Tensor:
    """Run both passes: forward, the part whose gradient is late, and the call of `backward` on streams of their own.

    Return a copy of the late gradient that a stream without a wait made.
    """
    api = scene.api
    buffer = torch.full((ELEMENTS,), float(POISON), device=scene.device)
    stranger = api.stream(scene.device)
    handles: list[Any] = [hook.before(scene)]
    try:
        api.synchronize(scene.device)
        with api.entered(forward):
            scene.middle = scene.module(scene.leaf)
        handles.append(hook.after(scene))
        late.wait_stream(forward)
        with api.entered(late):
            result: torch.Tensor = WritesLate.apply(scene.middle, buffer, api)  # type: ignore[no-untyped-call]
            total = result.sum()
        if caller is not None:
            caller.wait_stream(late)
        with _entered(api, caller):
            total.backward()
        with api.entered(stranger):
            early = buffer.clone()
        api.synchronize(scene.device)
    finally:
        for handle in handles:
            if handle is not None:
                handle.remove()
        scene.middle = scene.leaf  # its graph holds the hooks of modules, and these hold the scene
    return early


def _entered(api: Api, stream: torch.Stream | None) -> AbstractContextManager[object]:
    return nullcontext() if stream is None else api.entered(stream)


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
@pytest.mark.parametrize("consumer", ["same_stream", "other_stream"])
def test_hook_of_a_backward_reads_a_late_gradient_on_its_stream(
    consumer: str, hook: Hook, api: Api, device: torch.device
) -> None:
    """A hook runs with the stream of its tensor's forward current, which waits for the gradient.

    This holds if the gradient comes from another stream as well, and whichever stream calls `backward`. A stream
    without a wait must be observed to read the gradient too early.
    """
    calibrate(device)

    def stranger_was_early() -> bool:
        scene = Scene(api, device)
        forward, caller = api.stream(device), api.stream(device)
        late = forward if consumer == "same_stream" else api.stream(device)
        early = run(scene, hook, forward, late, caller)
        assert scene.current == [(device.index, forward.stream_id)]
        (copy,) = scene.copies
        assert copy.unique().tolist() == [hook.value], "the hook read the gradient too early"
        return bool((early == POISON).any())

    assert ever(stranger_was_early), NOT_SHOWN


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(devices=2)
def test_hook_of_a_backward_runs_with_the_device_of_its_gradient(hook: Hook, api: Api, device: torch.device) -> None:
    """A hook runs with the device and the stream of its gradient current, while the caller's device is another one."""
    second = torch.device(device.type, 1)
    calibrate(second)
    scene = Scene(api, second)
    forward = api.stream(second)

    run(scene, hook, forward, forward, None)

    assert torch.accelerator.current_device_index() == device.index
    assert scene.current == [(second.index, forward.stream_id)]
    assert scene.copies[0].unique().tolist() == [hook.value]


@pytest.fixture
def side(api: Api, device: torch.device) -> Iterator[torch.Stream]:
    """A stream on which forward passes run, while the backward pass is called on the default one."""
    calibrate(device)
    api.synchronize(device)
    yield api.stream(device)
    api.synchronize(device)


def test_saved_tensors_hooks_run_on_the_stream_of_the_forward(
    api: Api, device: torch.device, side: torch.Stream
) -> None:
    """`pack` and `unpack` run with the stream of the operator's forward current, so that copies need no wait."""
    seen: list[tuple[str, int]] = []
    x = torch.full((ELEMENTS,), float(POISON), device=device, requires_grad=True)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(("pack", api.current_stream(device).stream_id))
        return tensor.detach().clone()

    def unpack(kept: torch.Tensor) -> torch.Tensor:
        seen.append(("unpack", api.current_stream(device).stream_id))
        return kept.clone()

    side.wait_stream(api.current_stream(device))
    with api.entered(side):
        sleep_on(side)
        with torch.no_grad():
            x.fill_(5)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = x.exp().log()
        total = y.sum()
    total.backward()
    api.synchronize(device)

    assert seen == [(name, side.stream_id) for name in ("pack", "pack", "unpack", "unpack")]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.ones_like(x))


def test_checkpoint_recomputes_on_the_stream_of_the_forward(api: Api, device: torch.device, side: torch.Stream) -> None:
    """The second forward of `checkpoint` runs on the stream of the first, and reads an input written late there."""
    seen: list[int] = []
    x = torch.full((ELEMENTS,), float(POISON), device=device, requires_grad=True)

    def square(value: torch.Tensor) -> torch.Tensor:
        seen.append(api.current_stream(device).stream_id)
        return value * value

    side.wait_stream(api.current_stream(device))
    with api.entered(side):
        sleep_on(side)
        with torch.no_grad():
            x.fill_(5)
        total = torch.utils.checkpoint.checkpoint(square, x, use_reentrant=False).sum()
    total.backward()
    api.synchronize(device)

    assert seen == [side.stream_id] * 2
    assert x.grad is not None
    assert x.grad.unique().tolist() == [10.0]
