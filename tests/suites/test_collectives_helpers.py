"""Inputs and references of `suites/collectives`: leaving out or replacing a rank changes each result."""

from __future__ import annotations

import pytest
import torch

from suites.collectives import inputs
from suites.collectives.checking import Checks, difference, digest, expect_all_right

REDUCTIONS = [
    (dtype, reduction) for dtype in inputs.TYPES for reduction in (*inputs.reductions(dtype, "gloo"), "SUM")[:9]
]


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize(("dtype", "reduction"), dict.fromkeys(REDUCTIONS))
def test_each_rank_matters(dtype: str, reduction: str, world: int) -> None:
    kind = getattr(torch, dtype)
    parts = [inputs.operand(reduction, rank, 300, kind, world) for rank in range(world)]
    whole = inputs.reduced(reduction, parts)
    assert whole.dtype is kind
    for rank in range(world):
        others = [*parts[:rank], *parts[rank + 1 :]]
        replaced = [*others, parts[(rank + 1) % world]]
        assert difference(inputs.reduced(reduction, replaced), whole), f"rank {rank} can be replaced by the next"


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize(("dtype", "reduction"), dict.fromkeys(REDUCTIONS))
def test_no_other_reduction_gives_the_same(dtype: str, reduction: str, world: int) -> None:
    kind = getattr(torch, dtype)
    same = [{"SUM", "MAX", "BOR"}, {"PRODUCT", "MIN", "BAND"}, {"BXOR"}] if dtype == "bool" else [{reduction}]
    alike = next(each for each in same if reduction in each)
    parts = [inputs.operand(reduction, rank, 300, kind, world) for rank in range(world)]
    whole = inputs.reduced(reduction, parts)
    for other in (*inputs.reductions(dtype, "gloo"), "SUM"):
        if other not in alike:
            assert difference(inputs.reduced(other, parts), whole), f"{other} gives what {reduction} gives"


@pytest.mark.parametrize("dtype", inputs.TYPES)
@pytest.mark.parametrize("reduction", ["SUM", "PRODUCT"])
def test_eight_ranks_stay_exact(dtype: str, reduction: str) -> None:
    kind = getattr(torch, dtype)
    parts = [inputs.operand(reduction, rank, 300, kind, 8) for rank in range(8)]
    in_order = parts[0]
    for part in parts[1:]:
        in_order = (in_order + part) if reduction == "SUM" else (in_order * part)
    assert not difference(in_order, inputs.reduced(reduction, parts))


def test_numbers_of_ranks_differ_at_each_place() -> None:
    for place in range(300):
        assert len({int(inputs.numbers(rank, 300, torch.int64)[place]) for rank in range(8)}) == 8


@pytest.mark.parametrize(
    ("found", "expected", "text"),
    [
        ([1.0, 2.0], [1.0, 2.0], ""),
        ([1.0, 2.0], [1.0, 3.0], "element 1 is 2.0, expected 3.0 (1 of 2 wrong)"),
        ([0.0], [-0.0], "element 0 is 0.0, expected -0.0 (1 of 1 wrong)"),
        ([float("nan")], [float("nan")], ""),
        ([1.0], [1.0, 2.0], "torch.float32 (1,), expected torch.float32 (2,)"),
        ([], [], ""),
    ],
)
def test_difference(found: list[float], expected: list[float], text: str) -> None:
    assert difference(torch.tensor(found), torch.tensor(expected)) == text


def test_digest_depends_on_each_bit() -> None:
    tensors = [torch.arange(5.0), torch.tensor([1], dtype=torch.bfloat16)]
    assert digest(tensors) == digest([each.clone() for each in tensors])
    assert digest(tensors) != digest([tensors[0], tensors[1] + 1])


def test_guarded_notices_a_write_beside_the_tensor() -> None:
    guarded = inputs.Guarded(torch.arange(5), torch.device("cpu"))
    assert guarded.tensor.tolist() == [0, 1, 2, 3, 4]
    assert guarded.is_intact()
    guarded.tensor.as_strided((6,), (1,))[5] = 9
    assert not guarded.is_intact()


def test_wrong_checks_are_named_with_their_rank() -> None:
    right, wrong = Checks(0), Checks(1)
    for checks, value in ((right, 1.0), (wrong, 2.0)):
        checks.same("all_reduce", torch.tensor([value]), torch.tensor([1.0]))
        checks.refused("a refusal", lambda: [][1], "range")
    expect_all_right([right, right])
    with pytest.raises(AssertionError) as caught:
        expect_all_right([right, wrong])
    # pytest indents the message if it has rewritten the assertion.
    assert " ".join(str(caught.value).split()).startswith(
        "1 of 4 checks are wrong: rank 1 of 2: all_reduce: element 0 is 2.0, expected 1.0 (1 of 1 wrong)"
    )
    with pytest.raises(AssertionError, match="ranks made"):
        expect_all_right([right, Checks(1)])
