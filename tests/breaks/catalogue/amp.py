"""Automatic mixed precision: the gradient scaler, autocast, and functions that take part in it."""

from __future__ import annotations

from typing import Any

from tests.breaks.breaks import Theme

broken = Theme()

_SCALER = "torch.amp.grad_scaler:GradScaler"
_STEPS, _SCALES = "suites/amp/test_scaler_steps.py", "suites/amp/test_scaler.py"
_REGIONS, _FUNCTIONS = "suites/amp/test_regions.py", "suites/amp/test_custom_functions.py"
INF = float("inf")


def _scaled(gradients: tuple[float, ...], steps: int = 1, **options: Any) -> object:
    """Return the scale and the weights after one step of one optimiser per gradient."""
    import torch

    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, **{"growth_interval": 1, **options})
    weights = [torch.ones(2, requires_grad=True) for _ in gradients]
    optimisers = [torch.optim.SGD([weight], lr=1.0) for weight in weights]
    found = []
    for _ in range(steps):
        for weight, gradient, optimiser in zip(weights, gradients, optimisers, strict=True):
            optimiser.zero_grad()
            scaler.scale((weight * gradient).sum()).backward()
            scaler.step(optimiser)
        scaler.update()
        found.append((scaler.get_scale(), scaler.state_dict(), [weight.tolist() for weight in weights]))
    return found


broken.edit(
    "scaler_update_sees_the_first_optimiser_only",
    "An update of the scaler ignores the overflow of a second optimiser.",
    f"{_SCALER}.update",
    "found_inf_combined += found_infs[i]",
    "pass",
    _STEPS,
    shows=lambda: _scaled((1.0, INF)),
)
broken.edit(
    "scaler_update_sees_the_last_optimiser_only",
    "An update of the scaler ignores the overflow of all optimisers but the last.",
    f"{_SCALER}.update",
    "found_inf_combined = found_infs[0]",
    "found_inf_combined = found_infs.pop()",
    _STEPS,
    shows=lambda: _scaled((INF, 1.0)),
)
broken.edit(
    "scaler_steps_with_overflow",
    "A step is taken although its gradients overflow.",
    f"{_SCALER}._maybe_opt_step",
    "if not sum(",
    "if True or not sum(",
    _STEPS,
    _SCALES,
    shows=lambda: _scaled((INF,)),
)
broken.edit(
    "scaler_grows_too_late",
    "The scale grows one good step later than the interval specifies.",
    f"{_SCALER}.update",
    "self._growth_interval,",
    "self._growth_interval + 1,",
    _SCALES,
    shows=lambda: _scaled((1.0,), 2),
)
broken.edit(
    "scaler_backs_off_by_the_growth_factor",
    "The scale backs off by the inverse of the growth factor.",
    f"{_SCALER}.update",
    "self._backoff_factor,",
    "1 / self._growth_factor,",
    _SCALES,
    shows=lambda: _scaled((INF,), growth_factor=4.0, backoff_factor=0.5),
)
broken.edit(
    "scaler_state_lacks_the_count",
    "Loading the state dictionary of a scaler resets the count of good steps.",
    f"{_SCALER}.load_state_dict",
    'cast(int, state_dict["_growth_tracker"])',
    "0",
    _STEPS,
    shows=lambda: _reloaded(),
)
broken.edit(
    "scaler_in_use_keeps_its_scale",
    "A scaler in use that loads a state dictionary keeps its old scale.",
    f"{_SCALER}.load_state_dict",
    'self._scale.fill_(state_dict["scale"])',
    "pass",
    _STEPS,
    shows=lambda: _reloaded(),
)
broken.edit(
    "scaler_loads_no_backoff_factor",
    "A state dictionary of a scaler that is loaded leaves the back-off factor as it was.",
    f"{_SCALER}.load_state_dict",
    'self._backoff_factor = cast(float, state_dict["backoff_factor"])',
    "pass",
    _STEPS,
    shows=lambda: _reloaded(),
)
broken.edit(
    "scaler_pickles_the_first_scale",
    "A pickled scaler goes on from the scale that it was made with.",
    f"{_SCALER}.__getstate__",
    'state["_init_scale"] = self.get_scale()',
    "pass",
    _STEPS,
    shows=lambda: _pickled(),
)
broken.edit(
    "scaler_unscales_twice",
    "Gradients may be unscaled a second time before an update.",
    f"{_SCALER}.unscale_",
    'optimizer_state["stage"] = OptState.UNSCALED',
    "pass",
    _SCALES,
    _STEPS,
    shows=lambda: _unscaled_twice(),
)
broken.edit(
    "scaler_accepts_half_gradients",
    "Gradients of float16 are unscaled without an error.",
    f"{_SCALER}._unscale_grads_",
    "(not allow_fp16)",
    "False",
    _SCALES,
    shows=lambda: _half_gradients(),
)
broken.edit(
    "scaler_scales_the_first_of_a_list",
    "Of a list of losses only the first is scaled.",
    f"{_SCALER}.scale",
    "iterable = map(apply_scale, val)",
    "iterable = (apply_scale(v) if i == 0 else v for i, v in enumerate(val))",
    _SCALES,
    shows=lambda: _scaled_list(),
)
broken.edit(
    "scaler_flattens_tuples",
    "A tuple of losses is scaled into a list.",
    f"{_SCALER}.scale",
    "return type(val)(iterable)",
    "return list(iterable)",
    _SCALES,
    shows=lambda: _scaled_list(),
)
broken.edit(
    "scaler_follows_the_new_scale",
    "A new scale that is given as a tensor is not copied: the scaler follows its later changes.",
    f"{_SCALER}.update",
    "self._scale.copy_(new_scale)",
    "self._scale = new_scale",
    _SCALES,
    shows=lambda: _followed(),
)
broken.edit(
    "autocast_leaves_its_type_behind",
    "Leaving an autocast region keeps its type for the next one.",
    "torch.amp.autocast_mode:autocast.__exit__",
    "torch.set_autocast_dtype(self.device, self.prev_fastdtype)",
    "pass",
    _REGIONS,
    shows=lambda: _after_autocast(),
)
broken.edit(
    "autocast_stays_enabled",
    "Leaving a nested region without autocast leaves autocast off.",
    "torch.amp.autocast_mode:autocast.__exit__",
    "torch.set_autocast_enabled(self.device, self.prev)",
    "torch.set_autocast_enabled(self.device, self.prev and self._enabled)",
    _REGIONS,
    shows=lambda: _nested_autocast(),
)
broken.edit(
    "autocast_forgets_the_cache",
    "The cache of casts is never emptied when autocast ends.",
    "torch.amp.autocast_mode:autocast.__exit__",
    "torch.clear_autocast_cache()",
    "pass",
    _REGIONS,
    "suites/amp/test_casting.py",
    shows=lambda: _cached_cast(),
)
broken.edit(
    "autocast_casts_no_mapping",
    "Arguments in a mapping are not cast for a function of one's own.",
    "torch.amp.autocast_mode:_cast",
    "_cast(v, device_type, dtype)\n            for k",
    "v\n            for k",
    _FUNCTIONS,
    shows=lambda: _cast_kinds(),
)
broken.edit(
    "autocast_casts_float64",
    "Arguments of float64 are cast for a function of one's own.",
    "torch.amp.autocast_mode:_cast",
    "and (value.dtype is not torch.float64)",
    "",
    _FUNCTIONS,
    shows=lambda: _cast_kinds(),
)
broken.edit(
    "autocast_backward_without_autocast",
    "The backward pass of a function of one's own runs without the autocast of its forward pass.",
    "torch.amp.autocast_mode:custom_bwd",
    "enabled=args[0]._fwd_used_autocast",
    "enabled=False",
    _FUNCTIONS,
    shows=lambda: _custom_backward(),
)
broken.edit(
    "autocast_backward_with_the_default_type",
    "The backward pass of a function of one's own runs with the type of autocast at that time.",
    "torch.amp.autocast_mode:custom_bwd",
    "dtype=args[0]._dtype",
    "dtype=None",
    _FUNCTIONS,
    shows=lambda: _custom_backward(),
)


def _reloaded() -> object:
    import torch

    first = torch.amp.GradScaler("cpu", init_scale=3.0, growth_factor=5.0, backoff_factor=0.25, growth_interval=9)
    weight = torch.ones(1, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=1.0)
    first.scale(weight.sum()).backward()
    first.step(optimiser)
    first.update()
    second = torch.amp.GradScaler("cpu")
    second.scale(torch.ones(()))
    third = torch.amp.GradScaler("cpu")
    for other in (second, third):
        other.load_state_dict(first.state_dict())
    return second.state_dict(), third.state_dict(), second.scale(torch.ones(())).item()


def _pickled() -> object:
    import pickle

    import torch

    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    scaler.update(32.0)
    return pickle.loads(pickle.dumps(scaler)).get_scale()


def _unscaled_twice() -> object:
    import torch

    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    weight = torch.ones(1, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimiser)
    scaler.unscale_(optimiser)
    return weight.grad


def _half_gradients() -> object:
    import torch

    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    weight = torch.ones(1, dtype=torch.float16, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    scaler.scale(torch.ones(()))
    scaler.unscale_(torch.optim.SGD([weight], lr=1.0))
    return weight.grad


def _scaled_list() -> object:
    import torch

    return torch.amp.GradScaler("cpu", init_scale=4.0).scale((torch.ones(()), torch.ones(())))  # type: ignore[call-overload]


def _followed() -> object:
    import torch

    scaler, wanted = torch.amp.GradScaler("cpu"), torch.full((), 32.0)
    scaler.scale(torch.ones(()))
    scaler.update(wanted)
    wanted.fill_(1.0)
    return scaler.get_scale()


def _after_autocast() -> object:
    import torch

    with torch.autocast("cpu", dtype=torch.float16):
        pass
    return torch.get_autocast_dtype("cpu")


def _nested_autocast() -> object:
    import torch

    with torch.autocast("cpu"):
        with torch.autocast("cpu", enabled=False):
            pass
        return torch.is_autocast_enabled("cpu")


def _cached_cast() -> object:
    import torch

    weight = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu"):
        torch.mm(weight, weight)
    with torch.no_grad():
        weight.fill_(2)
    with torch.autocast("cpu"):
        return torch.mm(weight, weight).tolist()


def _cast_kinds() -> object:
    import torch
    from torch.amp import autocast_mode

    values = {"a": torch.ones(1), "b": torch.ones(1, dtype=torch.float64)}
    found = autocast_mode._cast(values, "cpu", torch.bfloat16)
    return [each.dtype for each in found.values()], autocast_mode._cast(values["b"], "cpu", torch.bfloat16).dtype


def _custom_backward() -> object:
    import torch

    seen = []

    class Own(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
            return gradient

    x = torch.ones(2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16):
        y = Own.apply(x)
    y.sum().backward()
    return seen


broken.edit(
    "autocast_cache_survives_an_exception",
    "An autocast region that ends with an exception keeps its casts of the weights.",
    "torch.amp.autocast_mode:autocast.__exit__",
    "torch.autocast_decrement_nesting() == 0",
    "torch.autocast_decrement_nesting() == 0 and exc_type is None",
    _REGIONS,
    shows=lambda: _after_an_exception(),
)


def _after_an_exception() -> object:
    import torch

    weight, x = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            (x @ weight).view(3)
    except RuntimeError:
        pass
    with torch.no_grad():
        weight.mul_(3)
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ weight).tolist()


broken.edit(
    "inner_autocast_region_enables_the_cache",
    "After an inner autocast region the cache of casts is enabled, whatever the outer region has.",
    "torch.amp.autocast_mode:autocast.__exit__",
    "torch.set_autocast_cache_enabled(self.prev_cache_enabled)",
    "torch.set_autocast_cache_enabled(True)",
    "suites/amp/test_casting.py",
    shows=lambda: _cache_after_an_inner_region(),
)


def _cache_after_an_inner_region() -> bool:
    import torch

    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        with torch.autocast("cpu", torch.bfloat16):
            pass
        return torch.is_autocast_cache_enabled()
