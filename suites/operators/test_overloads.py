"""Overloads of aten that write into an argument, compared with the results of their functional siblings.

`test_variants.py` checks `out=` of `torch` and the in-place methods. These are the other overloads, which gradients,
compiled code and `torch.ops.aten` call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from . import comparison, known, nested, tolerances, variants
from .references import running

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecated and experimental features warn


#: Overloads without a kernel on CUDA.
_NOT_ON_CUDA = frozenset(f"{name}.out" for name in known.OUT_WITHOUT_CUDA)


def _by_overload(chosen: Iterable[variants.Variant], *, extended: bool) -> Any:
    more = [pytest.mark.extended] if extended else []
    parameters = [
        pytest.param(
            each,
            id=each.name,
            marks=[
                pytest.mark.operator(each.operator),
                *more,
                *([pytest.mark.requires(not_={"accelerator": True})] if "_for_cpu" in each.name else []),
                *([pytest.mark.requires(not_={"device": "cuda"})] if each.name in _NOT_ON_CUDA else []),
            ],
        )
        for each in chosen
    ]
    return pytest.mark.parametrize("variant", parameters)


@_by_overload(variants.variants(), extended=True)
def test_overloads(variant: variants.Variant, device: torch.device, request: pytest.FixtureRequest) -> None:
    """An overload with `out` arguments or in place writes the result of its functional sibling for the same inputs.

    The tensors that it writes have other values before, on which results must not depend.
    """
    if variant.name in known.OVERLOADS:
        known.waive(request, known.OVERLOADS[variant.name], device)
    target = variants.overload(variant.name)
    found = variants.calls(variant, device, 4)
    if not found:
        pytest.skip(f"no sample of {variant.operator} calls {variant.sibling} on this device")
    names = variants.written(target)
    in_place = not any(each.is_out for each in target._schema.arguments)
    tried = 0
    for call in found:
        given = nested.mapped(lambda each: each.clone() if isinstance(each, torch.Tensor) else each, call.arguments)
        if in_place:
            first = given[names[0]]
            if first.shape != call.results[0].shape:
                continue
            outs = [first]
        else:
            outs = [torch.empty_like(each).fill_(3) for each in call.results]
            given.update(zip(names, outs, strict=True))
        tried += 1
        target(**given)
        for out, wanted in zip(outs, call.results, strict=False):
            expected = running.on_reference(comparison.on_host(wanted).to(out.dtype))  # a truth value is 0 or 1
            bound = tolerances.gradient_bound(variant.operator, wanted.dtype)
            comparison.check_tensor(out, expected, bound, lambda: 0.0, variant.name)
    if not tried:
        pytest.skip(f"no result of {variant.sibling} is like its first argument")


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with gaps, which contain other values."""
    if not tensor.dim() or tensor.layout != torch.strided:
        return tensor.clone()
    wider = torch.empty((*tensor.shape, 2), dtype=tensor.dtype, device=tensor.device).fill_(1)
    return wider[..., 0].copy_(tensor)


@_by_overload(variants.derivatives(), extended=False)
def test_gradients_of_strided_arguments(
    variant: variants.Variant, device: torch.device, request: pytest.FixtureRequest
) -> None:
    """A gradient kernel computes the same whichever of its arguments has gaps, including saved results and indices.

    It may refuse arguments that are not contiguous. Compiled code calls it with strides that eager code never uses.
    """
    if variant.name in known.STRIDED:
        known.waive(request, known.STRIDED[variant.name], device)
    target = variants.overload(variant.name)
    found = variants.calls(variant, device, 2)
    if not found:
        pytest.skip(f"no sample of {variant.operator} calls {variant.name} on this device")
    for call in found:
        for name, value in call.arguments.items():
            if not isinstance(value, torch.Tensor):
                continue
            given = nested.mapped(lambda each: each.clone() if isinstance(each, torch.Tensor) else each, call.arguments)
            given[name] = _apart(value)
            try:
                results = comparison.tensors(target(**given))
            except RuntimeError as error:
                if "contiguous" in str(error):
                    continue
                raise
            for out, wanted in zip(results, call.results, strict=True):
                expected = running.on_reference(comparison.on_host(wanted))
                bound = tolerances.gradient_bound(variant.operator, wanted.dtype)
                comparison.check_tensor(out, expected, bound, lambda: 0.0, f"{variant.name} with {name} apart")
