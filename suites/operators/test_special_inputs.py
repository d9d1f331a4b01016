"""Values with a NaN, with a row of minus infinity, and far from zero: in each argument of each operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from . import _torch_private, known, oracles, samples, types
from .catalogue import COSTLY, by_operator, entries
from .comparison import WrongValueError
from .single import CPU_OR_CUDA

pytestmark = [pytest.mark.filterwarnings("ignore"), CPU_OR_CUDA]


def _with_nan(x: torch.Tensor) -> torch.Tensor:
    x.view(-1)[x.numel() // 2] = math.nan
    return x


def _with_a_row(x: torch.Tensor) -> torch.Tensor:
    x.view(-1, x.shape[-1])[-1] = -math.inf
    return x


def _far_from_zero(x: torch.Tensor) -> torch.Tensor:
    finite = x.nan_to_num(0.0, 0.0, 0.0)
    return finite / finite.abs().amax().clamp(min=1) + 37


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nan": _with_nan,
    "rows of -inf": _with_a_row,
    "far mean": _far_from_zero,
}


def _of_float32(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a change of a copy in row-major order, for tensors of the type that the case is about."""

    def changed(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32 or not x.numel():
            return x
        return change(x.detach().clone(memory_format=torch.contiguous_format))

    return changed


#: Operators whose results the reference does not determine.
_NOT_UNIQUE = [each.name for each in entries() if oracles.kind(each.name) not in (oracles.NUMPY, oracles.PICKS)]


@by_operator("values", without={*_NOT_UNIQUE, *COSTLY})
def test_special_inputs(name: str, device: torch.device) -> None:
    """A NaN, an infinity or a large mean in one argument gives the values of the definition: for each argument alone.

    `known.special` names the operators for which there is no such value.
    """
    info = _torch_private.operator(name)
    if torch.float32 not in types.supported(info, device) or known.deviates(name, "float32", device):
        pytest.skip(f"{name} takes no float32 on {device.type}, or deviates for it")
    of_each = samples.of_each_argument(samples.samples(info, torch.float32, samples.MOST))
    for what, change in CHANGES.items():
        if known.special(name, what):
            continue
        for key, sample in of_each.items():
            first, others, named = samples.with_changed(samples.arguments(sample), key, _of_float32(change))
            oracles.verify(name, info, SimpleNamespace(input=first, args=others, kwargs=named), device)


@pytest.mark.operator("nn.functional.soft_margin_loss")
def test_soft_margin_loss_of_large_numbers(device: torch.device, request: pytest.FixtureRequest) -> None:
    """The loss log(1 + exp(-y x)) of a large -y x is -y x, and not infinite."""
    known.waive(request, f"computes the exponential ({known.ISSUE}77529)", device, everywhere=True)
    x, y = torch.tensor([-100.0, 200.0, 3.0], device=device), torch.tensor([1.0, -1.0, 1.0], device=device)

    found = torch.nn.functional.soft_margin_loss(x, y, reduction="none").cpu().double()

    wanted = torch.tensor([100.0, 200.0, math.log1p(math.exp(-3))], dtype=torch.float64)
    if not torch.allclose(found, wanted, rtol=1e-5):
        raise WrongValueError(f"soft_margin_loss: {found.tolist()}, expected {wanted.tolist()}")


@pytest.mark.operator("nn.functional.scaled_dot_product_attention")
@pytest.mark.parametrize("place", ["query", "key"])
def test_attention_keeps_nan(place: str, device: torch.device, request: pytest.FixtureRequest) -> None:
    """A NaN in a query is in its row of the result, and one in a key in each row, whatever back end torch chooses."""
    if place == "query":
        known.waive(request, f"the CPU's fused attention returns zeros for the row ({known.ISSUE}141128)", device)
    arguments = {each: torch.linspace(-1, 1, 64, device=device).view(1, 1, 8, 8) for each in ("query", "key", "value")}
    arguments[place] = arguments[place].clone()
    arguments[place][0, 0, 3, 5] = math.nan

    found = torch.nn.functional.scaled_dot_product_attention(**arguments).isnan().all(-1)[0, 0].cpu()

    wanted = torch.arange(8) == 3 if place == "query" else torch.ones(8, dtype=torch.bool)
    if not torch.equal(found, wanted):
        raise WrongValueError(
            f"attention with a NaN in a {place}: rows with NaN are {found.nonzero().flatten().tolist()}"
        )
