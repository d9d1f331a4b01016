"""Functions for tensors of several devices that treat the last device differently from the first."""

from __future__ import annotations

import functools
from typing import Any

from tests.breaks.breaks import Theme, replace
from tests.breaks.kernels import torch_with_cuda

broken = Theme()
_on_cuda = functools.partial(broken, device="simcuda")
_STEPS = "suites/optimizers/test_two_devices.py"
_CHECKPOINTS = "suites/autograd/test_checkpoint_options.py"


def _with_gradients() -> list[Any]:
    """Return a weight with a gradient on each of two devices."""
    torch = torch_with_cuda()
    weights = [torch.ones(2, device=f"cuda:{index}", requires_grad=True) for index in range(2)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    return weights


def _stepped() -> object:
    torch = torch_with_cuda()
    weights = _with_gradients()
    torch.optim.Adam(weights, lr=1.0, foreach=True).step()
    return [each.tolist() for each in weights]


@_on_cuda("An optimizer over lists leaves out the weights of the second device.", _STEPS, shows=_stepped)
def lists_step_on_one_device() -> None:
    from torch.optim import Optimizer

    def around(group: Any) -> Any:
        def of_the_first(tensors: Any, with_indices: bool = False) -> Any:
            groups = group(tensors, with_indices)
            return {key: value for key, value in groups.items() if getattr(key[0], "index", 0) != 1} or groups

        return staticmethod(of_the_first)

    replace(Optimizer, "_group_tensors_by_device_and_dtype", around)


def _clipped() -> object:
    torch = torch_with_cuda()
    return torch.nn.utils.clip_grad_norm_(_with_gradients(), 1.0).item()


@_on_cuda("The norm of gradients is that of the first one's device.", _STEPS, shows=_clipped)
def norm_is_that_of_one_device() -> None:
    from torch.nn.utils import clip_grad

    def around(norm: Any) -> Any:
        def of_one_device(tensors: Any, *more: Any, **named: Any) -> Any:
            return norm([each for each in tensors if each.device == tensors[0].device], *more, **named)

        return of_one_device

    replace(clip_grad, "_get_total_norm", around)


def _limited() -> object:
    torch = torch_with_cuda()
    weights = _with_gradients()
    torch.nn.utils.clip_grad_value_(weights, 0.5, foreach=True)
    return [weight.grad.tolist() for weight in weights]


@_on_cuda("Limits of gradients over lists hold for the first one's device.", _STEPS, shows=_limited)
def limits_hold_on_one_device() -> None:
    import torch

    def around(limit: Any) -> Any:
        return lambda x, *more: None if x[0].device.index == 1 else limit(x, *more)

    replace(torch, "_foreach_clamp_min_", around)
    replace(torch, "_foreach_clamp_max_", around)


def _joined() -> object:
    torch = torch_with_cuda()
    try:
        return torch.nn.utils.parameters_to_vector(_with_gradients()).tolist()
    except TypeError:
        return "refused"


@_on_cuda("`parameters_to_vector` moves what is on another device.", _STEPS, shows=_joined)
def vector_of_two_devices() -> None:
    from torch.nn.utils import convert_parameters

    def around(join: Any) -> Any:
        return lambda parameters: join([each.to("cuda:0") for each in parameters])

    import torch

    replace(convert_parameters, "parameters_to_vector", around)
    torch.nn.utils.parameters_to_vector = convert_parameters.parameters_to_vector


def _recomputed() -> object:
    torch = torch_with_cuda()
    from torch.utils import checkpoint

    return len(checkpoint.get_device_states(*(torch.ones(1, device=f"cuda:{index}") for index in range(2)))[0])


@_on_cuda("A checkpoint keeps the generator of the first device alone.", _CHECKPOINTS, shows=_recomputed)
def checkpoint_keeps_one_generator() -> None:
    from torch.utils import checkpoint

    def around(states: Any) -> Any:
        return lambda *args: tuple(each[:1] for each in states(*args))

    replace(checkpoint, "get_device_states", around)
