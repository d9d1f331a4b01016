"""Wrong values in the place of results."""

from __future__ import annotations

import collections

import pytest
import torch

from tests.breaks.search.wrong import changed

_TYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
_TYPES += [torch.complex64, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", _TYPES, ids=str)
@pytest.mark.parametrize("number", [0, 1])
def test_last_element_of_a_tensor_is_wrong(dtype: torch.dtype, number: int) -> None:
    tensor = torch.full((2, 3), number).to(dtype)
    version = tensor._version
    assert changed(tensor, every=False) is tensor
    wrong = tensor.to(torch.complex64) != number
    assert wrong.tolist() == [[False] * 3, [False, False, True]]
    assert tensor._version == version


def test_every_element_of_a_tensor_with_gaps_is_wrong_and_nothing_between() -> None:
    whole = torch.arange(12.0).view(3, 4)
    changed(whole[:, ::2], every=True)
    assert (whole != torch.arange(12.0).view(3, 4)).tolist() == [[True, False, True, False]] * 3


@pytest.mark.parametrize(
    "tensor",
    [torch.empty(0), torch.ones(2, device="meta"), torch.ones(2).to_sparse(), torch.tensor(float("nan"))],
    ids=["empty", "meta", "sparse", "nan"],
)
def test_tensors_without_elements_and_special_ones_do_no_harm(tensor: torch.Tensor) -> None:
    before = tensor.is_floating_point() and not tensor.is_sparse and not tensor.is_meta and bool(tensor.isnan().any())
    changed(tensor, every=False)
    assert not before or not tensor.isnan().any()


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (True, False),
        (3, 7),
        (0.5, 2.0),
        (float("nan"), 0.0),
        ("abc", "cba"),
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        ({"a": 1, "b": 2}, {"a": 1, "b": 5}),
        ([1, 2], [1, 5]),
        ((1, None), (3, None)),
        (torch.Size([2, 3]), torch.Size([2, 7])),
        (None, None),
    ],
)
def test_other_values(value: object, wrong: object) -> None:
    found = changed(value, every=False)
    assert found == wrong
    assert type(found) is type(wrong)


def test_named_tuples_keep_their_type() -> None:
    pair = collections.namedtuple("pair", "left right")
    assert changed(pair(1, 2), every=True) == pair(3, 5)
    values = torch.return_types.max((torch.ones(1), torch.zeros(1, dtype=torch.int64)))
    assert type(changed(values, every=False)) is type(values)
