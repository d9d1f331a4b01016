"""The gradient scaler: scaling, updates of the scale, and errors.

Scales are powers of two, so scaling and unscaling are exact in float32 and no tolerance is needed.
"""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch

from ._torch_private import growth_tracker
from .training import Scale, push, scales, weight

BAD = pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")], ids=["inf", "minus_inf", "nan"])


# ---- scaling ----


def test_gradscaler_scale_multiplies_a_loss(device: torch.device) -> None:
    """`scale` returns the loss times the scale on the loss's device.

    Its gradients are scaled by the same factor.
    """
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    x = weight(device)

    scaled = scaler.scale((x * 3).sum())
    scaled.backward()

    assert scaled.item() == 8 * 3 * 4
    assert scaled.device == device
    assert x.grad is not None
    assert x.grad.tolist() == [24.0] * 4


def test_gradscaler_scale_scales_all_tensors_in_a_container(device: torch.device) -> None:
    """`scale` scales each tensor in nested tuples and lists, preserving their types, and in other iterables.

    A non-tensor raises ValueError.
    """
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
    one, two, three = (torch.tensor(float(number), device=device) for number in (1, 2, 3))

    found = scaler.scale((one, [two, (three,)]))

    assert isinstance(found, tuple)
    assert isinstance(found[1], list)
    assert isinstance(found[1][1], tuple)
    assert [found[0].item(), found[1][0].item(), found[1][1][0].item()] == [4.0, 8.0, 12.0]
    assert [item.item() for item in scaler.scale(iter([one, two]))] == [4.0, 8.0]
    with pytest.raises(ValueError, match="iterable of Tensors"):
        scaler.scale(3.0)


def test_gradscaler_scale_keeps_the_dtype_of_a_loss(device: torch.device) -> None:
    """A float16 loss is scaled in float16, so that overflow is visible; a float32 loss is not rounded."""
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**16)

    half = scaler.scale(torch.ones((1,), dtype=torch.float16, device=device))
    single = scaler.scale(torch.full((1,), 1 + 2.0**-23, device=device))

    assert half.dtype == torch.float16
    assert half.isinf().all()
    assert single.dtype == torch.float32
    assert single.item() == 2.0**16 * (1 + 2.0**-23)


# ---- updates of the scale ----


@pytest.mark.parametrize(
    ("overflows", "interval"),
    [
        pytest.param([False] * 7, 3, id="grows"),
        pytest.param([True] * 4, 3, id="backs_off"),
        pytest.param([False, False, True, False, False, False, True, True, False], 3, id="starts_again_after_overflow"),
        pytest.param([False, True] * 3, 1, id="at_every_step"),
    ],
)
@pytest.mark.types("float64")
def test_gradscaler_update_grows_and_backs_off(device: torch.device, overflows: list[bool], interval: int) -> None:
    """A nonfinite gradient skips the step, multiplies the scale by the backoff factor, and resets the count.

    `growth_interval` consecutive finite steps multiply the scale by the growth factor. The scale is compared with a
    Python model after each step.
    """
    scaler = torch.amp.GradScaler(
        device.type, init_scale=64.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=interval
    )
    x = weight(device)
    optimiser = torch.optim.SGD([x], lr=0.5)
    expected = scales(Scale(64.0, growth=4.0, backoff=0.25, interval=interval), overflows)

    for overflow, (scale, good) in zip(overflows, expected, strict=True):
        before = x.detach().clone()
        optimiser.zero_grad()
        push(scaler, x, float("inf") if overflow else 1.0)
        scaler.step(optimiser)
        scaler.update()

        assert scaler.get_scale() == scale
        assert growth_tracker(scaler) == good
        assert torch.equal(x.detach(), before if overflow else before - 0.5)


@pytest.mark.types("float64")
def test_gradscaler_update_does_not_grow_to_infinity(device: torch.device) -> None:
    """A scale whose growth would overflow float32 does not change."""
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**127, growth_interval=1)
    x = weight(device)
    optimiser = torch.optim.SGD([x], lr=0.5)

    push(scaler, x, 0.0)
    scaler.step(optimiser)
    scaler.update()

    assert scaler.get_scale() == 2.0**127


@BAD
@pytest.mark.parametrize("place", [0, 511, 999])
@pytest.mark.types("float64")
def test_gradscaler_step_is_skipped_for_one_inf_or_nan_anywhere(device: torch.device, bad: float, place: int) -> None:
    """One inf or NaN in any element of any gradient, of any dtype, skips the step and reduces the scale."""
    scaler = torch.amp.GradScaler(device.type, init_scale=256.0, growth_interval=1)
    parameters = [weight(device, size) for size in (3, 1000, 17)] + [
        torch.ones(5, device=device, dtype=torch.float64, requires_grad=True)
    ]
    optimiser = torch.optim.SGD(parameters, lr=1.0)
    for number, spoilt in enumerate(parameters, start=1):
        optimiser.zero_grad()
        scaler.scale(sum(p.float().sum() for p in parameters)).backward()
        assert spoilt.grad is not None
        spoilt.grad[place % len(spoilt)] = bad

        scaler.step(optimiser)
        scaler.update()

        assert all(bool((p == 1).all()) for p in parameters)
        assert scaler.get_scale() == 256.0 / 2**number

    optimiser.zero_grad()
    scaler.scale(sum(p.float().sum() for p in parameters)).backward()
    scaler.step(optimiser)
    assert all(bool((p == 0).all()) for p in parameters)


@BAD
@pytest.mark.parametrize("layout", ["transposed", "with_gaps", "channels_last"])
def test_gradscaler_step_is_skipped_for_inf_or_nan_in_a_gradient_of_any_layout(
    device: torch.device, bad: float, layout: str
) -> None:
    """One inf or NaN at any place of a gradient whose elements are in another order, or apart, skips the step.

    Without it, such a gradient is unscaled like others.
    """
    shape = (2, 3, 4, 5)
    scaler = torch.amp.GradScaler(device.type, init_scale=256.0, growth_interval=100)
    first, x = (torch.nn.Parameter(torch.ones(shape, device=device)) for _ in range(2))
    optimiser = torch.optim.SGD([first, x], lr=1.0)
    scaler.scale(torch.zeros((), device=device))

    def gradient(place: int | None) -> torch.Tensor:
        values = torch.full((120,), 256.0, device=device)
        if place is not None:
            values[place] = bad
        if layout == "transposed":
            return values.view(5, 4, 3, 2).permute(3, 2, 1, 0)
        if layout == "with_gaps":
            return torch.stack([values, values * 0], dim=1)[:, 0].view(shape)
        return values.view(shape).contiguous(memory_format=torch.channels_last)

    for skipped, place in enumerate([0, 24, 96, None]):
        first.grad, x.grad = torch.full(shape, 256.0, device=device), gradient(place)
        assert not x.grad.is_contiguous()
        scaler.step(optimiser)
        scaler.update()
        values = 1.0 if place is not None else 1.0 - 256.0 * 2.0**skipped / 256.0
        assert bool((first == values).all())
        assert bool((x == values).all())
        assert scaler.get_scale() == 256.0 / 2 ** (skipped + (place is not None))


@pytest.mark.types("float64")
def test_gradscaler_step_takes_large_finite_gradients(device: torch.device) -> None:
    """The largest and lowest finite values do not count as overflow."""
    scaler = torch.amp.GradScaler(device.type, init_scale=1.0, growth_interval=1)
    x = weight(device)
    largest = torch.finfo(torch.float32).max
    x.grad = torch.tensor([largest, -largest, 1.0, -largest], device=device)
    scaler.scale(torch.zeros((), device=device))
    optimiser = torch.optim.SGD([x], lr=2.0**-127)

    scaler.step(optimiser)
    scaler.update()

    assert scaler.get_scale() == 2.0
    assert not torch.equal(x.detach(), torch.ones_like(x))


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((), id="number"),
        pytest.param(
            (1,),
            id="one_element",
            marks=pytest.mark.xfail(
                raises=RuntimeError,
                reason="GradScaler.update requires a tensor of one element, and copies it into a zero-dimensional one "
                "(torch/amp/grad_scaler.py)",
            ),
        ),
    ],
)
def test_gradscaler_update_takes_a_new_scale(device: torch.device, shape: tuple[int, ...]) -> None:
    """`update(new_scale)` sets the scale from a float or a one-element tensor, by value."""
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0)
    scaler.scale(torch.ones((), device=device))

    scaler.update(16.0)
    first = scaler.get_scale()
    wanted = torch.full(shape, 32.0, device=device)
    scaler.update(wanted)
    wanted.fill_(1.0)

    assert (first, scaler.get_scale()) == (16.0, 32.0)


@pytest.mark.types("float64")
def test_gradscaler_set_growth_factor_backoff_factor_and_interval(device: torch.device) -> None:
    """Growth factor, backoff factor and interval can be changed and apply from then on."""
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0, growth_interval=100)
    x = weight(device)
    optimiser = torch.optim.SGD([x], lr=0.0)

    def step(gradient: float) -> float:
        push(scaler, x, gradient)
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad()
        return scaler.get_scale()

    assert step(1.0) == 8.0
    scaler.set_growth_factor(16.0)
    scaler.set_growth_interval(2)
    assert step(1.0) == 128.0
    scaler.set_backoff_factor(0.125)
    assert step(float("nan")) == 16.0
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (16.0, 0.125, 2)


@pytest.mark.parametrize(
    "options",
    [{"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"growth_factor": 0.5}, {"backoff_factor": 2.0}],
    ids=str,
)
def test_gradscaler_refuses_factors_that_do_not_grow_or_back_off(
    device: torch.device, options: dict[str, float]
) -> None:
    """A growth factor must be above one, and a backoff factor below one."""
    with pytest.raises(AssertionError, match="factor"):
        torch.amp.GradScaler(device.type, **options)


def test_gradscaler_defaults_are_the_documented_ones(device: torch.device) -> None:
    """The initial scale is 65536; it doubles after 2000 consecutive finite steps, and an overflow halves it."""
    scaler = torch.amp.GradScaler(device.type)
    found = (scaler.get_scale(), scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
    assert found == (65536.0, 2.0, 0.5, 2000)
    assert scaler.state_dict() == {
        "scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 0,
    }


def test_gradscaler_update_refuses_a_new_scale_that_is_no_single_number(device: torch.device) -> None:
    """A new scale is refused if it has several elements, is on another device, or requires grad.

    The scale does not change.
    """
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0)
    scaler.scale(torch.ones((), device=device))
    for wrong in (
        torch.ones(2, device=device),
        torch.ones((), device="meta"),
        torch.ones((), device=device, requires_grad=True),
    ):
        with pytest.raises(AssertionError, match="new_scale should be a float or a 1-element"):
            scaler.update(wrong)
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.types("float64")
def test_gradscaler_does_not_depend_on_default_type_and_device(device: torch.device, fused: bool) -> None:
    """A scaler's own tensors are float32 on the device of the loss, whatever the default dtype and device are."""
    x = weight(device)
    optimiser = torch.optim.SGD([x], lr=0.5, fused=fused)
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0, growth_interval=1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for gradient in (1.0, float("inf"), 2.0):
            optimiser.zero_grad()
            loss = (x * gradient).sum()
            with torch.device("meta"):
                (scaled,) = scaler.scale([loss])
                scaled.backward()
                scaler.step(optimiser)
                scaler.update()
    finally:
        torch.set_default_dtype(before)
    assert scaler.get_scale() == 16.0
    assert x.tolist() == [-0.5] * 4


# ---- order of calls ----


@pytest.mark.types("float64")
def test_gradscaler_refuses_unscale_and_step_out_of_order(device: torch.device) -> None:
    """Calls in the wrong order raise until the next `update`.

    A step before any scaling raises AssertionError; a second `unscale_`, an `unscale_` after `step`, a second `step`,
    and a closure raise RuntimeError.
    """
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0)
    x = weight(device)
    optimiser = torch.optim.SGD([x], lr=1.0)
    with pytest.raises(AssertionError, match="scale"):
        scaler.step(optimiser)

    for _ in range(2):
        push(scaler, x, 1.0)
        scaler.unscale_(optimiser)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.unscale_(optimiser)
        scaler.step(optimiser)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.step(optimiser)
        with pytest.raises(RuntimeError, match=r"after step"):
            scaler.unscale_(optimiser)
        scaler.update()
        optimiser.zero_grad()

    push(scaler, x, 1.0)
    with pytest.raises(RuntimeError, match="Closure"):
        scaler.step(optimiser, closure=lambda: 0.0)
    assert x.tolist() == [-1.0] * 4


def test_gradscaler_update_without_a_step_is_an_error(device: torch.device) -> None:
    """`update` raises unless a step or an `unscale_` preceded it."""
    scaler = torch.amp.GradScaler(device.type)
    scaler.scale(torch.ones((), device=device))

    with pytest.raises(AssertionError, match="inf checks"):
        scaler.update()


@pytest.mark.types("float64")
def test_gradscaler_refuses_gradients_of_float16(device: torch.device) -> None:
    """Gradients of float16 weights raise ValueError, because weights must stay in float32."""
    scaler = torch.amp.GradScaler(device.type)
    x = torch.ones(2, device=device, dtype=torch.float16, requires_grad=True)
    optimiser = torch.optim.SGD([x], lr=1.0)
    x.grad = torch.ones_like(x)
    scaler.scale(torch.ones((), device=device))

    with pytest.raises(ValueError, match="FP16"):
        scaler.unscale_(optimiser)


# ---- disabled ----


def test_gradscaler_enabled_false_does_nothing(device: torch.device) -> None:
    """With `enabled=False`, `scale` returns the loss and `step` is the optimizer's, even with infinite gradients.

    The scale is one, and the state dictionary is empty.
    """
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    x = weight(device)
    optimiser = torch.optim.SGD([x], lr=1.0)
    loss = (x * 2).sum()

    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(optimiser)
    assert scaler.step(optimiser, closure=lambda: 17.0) == 17.0
    scaler.update()
    assert x.tolist() == [-1.0] * 4
    assert (scaler.get_scale(), scaler.is_enabled(), scaler.state_dict()) == (1.0, False, {})

    x.grad = torch.full_like(x, float("inf"))
    scaler.step(optimiser)
    assert x.isinf().all()


def test_gradscaler_enabled_false_is_kept_and_checks_nothing(device: torch.device) -> None:
    """A disabled scaler accepts any factors, and is disabled after pickling."""
    scaler = torch.amp.GradScaler(device.type, growth_factor=0.5, backoff_factor=2.0, enabled=False)
    other = pickle.loads(pickle.dumps(scaler))
    assert (other.is_enabled(), other.get_scale(), other.state_dict()) == (False, 1.0, {})


@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled, but CUDA is not available")
@pytest.mark.parametrize(("module", "of"), [(torch.cuda.amp, "cuda"), (torch.cpu.amp, "cpu")], ids=["cuda", "cpu"])
def test_gradscaler_old_names_warn_and_work(module: object, of: str) -> None:
    """The deprecated `GradScaler` names work, with a FutureWarning that names the replacement."""
    with pytest.warns(FutureWarning, match=rf"torch\.amp\.GradScaler\('{of}'"):
        scaler = module.GradScaler(init_scale=4.0)  # type: ignore[attr-defined]

    assert isinstance(scaler, torch.amp.GradScaler)
    if of == "cpu":
        assert scaler.scale(torch.ones(())).item() == 4.0


@pytest.mark.requires(not_={"device": "cuda"})
def test_gradscaler_for_cuda_without_a_gpu_warns_and_is_off() -> None:
    """Without a GPU, a scaler for CUDA, the default, warns that it is disabled, and is disabled.

    A scaler that is created with `enabled=False` does not warn.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scaler = torch.amp.GradScaler()
        torch.amp.GradScaler(enabled=False)

    assert ["CUDA is not available" in str(warning.message) for warning in caught] == [True]
    assert not scaler.is_enabled()
