"""Overloads of aten that write into an argument compute what their functional siblings return.

`out=` of `torch` and the methods in place are checked in `test_variants.py`; these are the other overloads, which
gradients, compiled code and `torch.ops.aten` call.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from . import comparison, known, tolerances, variants
from .references import running

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch says about deprecation and experiments is not under test


def _marks() -> list[Any]:
    return [
        pytest.param(each, id=each.name, marks=[pytest.mark.operator(each.operator), pytest.mark.extended])
        for each in variants.variants()
    ]


@pytest.mark.parametrize("variant", _marks())
def test_overloads(variant: variants.Variant, device: torch.device, request: pytest.FixtureRequest) -> None:
    """An overload with ``out`` arguments or in place writes what its functional sibling returns for the same inputs.

    The tensors that it writes into have other values before: results must not depend on them.
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
        given = tree_map(lambda each: each.clone() if isinstance(each, torch.Tensor) else each, call.arguments)
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
