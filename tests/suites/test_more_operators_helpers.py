"""The helpers of the cases of lists, recurrent networks and transformers, compared with other computations."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from suites.libraries import slopes
from suites.libraries.recurrence import KINDS, Network
from suites.operators import foreach, lists, nested
from suites.operators.comparison import Bound, WrongValueError
from suites.operators.references import running
from suites.operators.test_foreach_gradients import slopes_of

SUITES = Path(__file__).parents[2] / "suites"
CPU = torch.device("cpu")
#: Overloads that this release lacks are in cases for other releases.
ASKED = sorted(
    {
        name
        for path in (*(SUITES / "operators").glob("*.py"), *(SUITES / "libraries").glob("*.py"))
        for name in re.findall(r"(?:aten|overload)\(\s*\"([a-z_0-9A-Z]+\.[A-Za-z_0-9]+)\"", path.read_text())
    }
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def _found(name: str) -> bool:
    packet, _, overload = name.partition(".")
    return overload in getattr(getattr(torch.ops.aten, packet, None), "overloads", list)()


@pytest.mark.skipif(torch.__version__.startswith(("2.11", "2.12")), reason="earlier releases lack some")
@pytest.mark.parametrize("name", ASKED)
def test_torch_has_each_overload_that_cases_call(name: str) -> None:
    assert _found(name), f"torch {torch.__version__} has no aten::{name}, so its cases are skipped"


def test_torch_has_each_operation_on_lists() -> None:
    assert len(ASKED) >= 50
    for operation in foreach.operations().values():
        assert _found(operation.aten(False)), operation.id
        assert _found(operation.aten(True)) or not operation.has_in_place, operation.id


#: Operations on lists with a jump, their slope, and two numbers beside it, closer than any difference's step.
_JUMPS = [
    *((name, 0.0, (3 - 1e-9, 3 + 1e-9)) for name in ("ceil", "floor", "trunc")),
    ("frac", 1.0, (3 - 1e-9, 3 + 1e-9)),
    ("round", 0.0, (2.5 - 1e-9, 2.5 + 1e-9)),
    ("sign", 0.0, (-1e-9, 1e-9)),
]


@pytest.mark.parametrize(("name", "slope", "points"), _JUMPS, ids=[name for name, _, _ in _JUMPS])
def test_a_slope_beside_a_jump_is_that_of_its_side(name: str, slope: float, points: tuple[float, float]) -> None:
    found = slopes_of(foreach.operations()[name], [np.array(points)], 0)
    assert found.tolist() == [slope, slope]


@pytest.mark.parametrize("overload", ["List", "Scalar", "ScalarList"])
@pytest.mark.parametrize(("name", "of_less"), [("minimum", 1), ("clamp_max", 1), ("maximum", 0), ("clamp_min", 0)])
def test_a_slope_beside_a_kink_is_that_of_its_side(name: str, of_less: int, overload: str) -> None:
    arrays = [np.array([1.25 - 1e-9, 1.25 + 1e-9]), np.array([1.25, 1.25])]
    operation = foreach.operations()[f"{name}.{overload}"]
    assert slopes_of(operation, arrays, 0).tolist() == [of_less, 1 - of_less]
    assert slopes_of(operation, arrays, 1).tolist() == [1 - of_less, of_less]


def test_a_slope_of_a_formula_is_exact() -> None:
    operations, x = foreach.operations(), np.array([1.5, 2.75])
    assert np.allclose(slopes_of(operations["tan"], [x / 4], 0), 1 + np.tan(x / 4) ** 2, rtol=1e-14, atol=0)
    assert np.allclose(slopes_of(operations["pow.List"], [x, x], 1), x**x * np.log(x), rtol=1e-14, atol=0)
    assert np.allclose(slopes_of(operations["lgamma"], [np.array([3.0])], 0), 1.5 - np.euler_gamma, rtol=1e-14, atol=0)


def test_lists_have_tensors_of_each_kind(rng: np.random.Generator) -> None:
    few = lists.listed("few", lambda shape: rng.uniform(0, 1, shape), torch.float32, CPU)
    assert () in [tuple(each.shape) for each in few.tensors]
    assert 0 in few.sizes
    odd = lists.listed("misaligned", lambda shape: rng.uniform(0, 1, shape), torch.float32, CPU)
    assert all(each.data_ptr() % 16 for each in odd.tensors)
    gaps = lists.listed("strided", lambda shape: rng.uniform(0, 1, shape), torch.float32, CPU)
    assert sum(not each.is_contiguous() for each in gaps.tensors) >= 3
    assert np.array_equal(lists.flat(gaps.tensors), gaps.values)
    before = lists.outside(odd)
    odd.around[0][0] = 1
    assert lists.outside(odd) == before - 1


def test_a_wrong_number_type_or_shape_in_a_list_is_noticed() -> None:
    found = [torch.ones(2), torch.ones(())]
    lists.check(found, [(2,), ()], np.ones(3), torch.float32, Bound(0), "ones")
    for shapes, values, dtype in (
        ([(2,), (1,)], np.ones(3), torch.float32),
        ([(2,), ()], np.array([1, 1, 2.0]), torch.float32),
        ([(2,), ()], np.ones(3), torch.float64),
    ):
        with pytest.raises(WrongValueError):
            lists.check(found, shapes, values, dtype, Bound(0), "ones")


def test_slopes_notice_one_wrong_entry(rng: np.random.Generator) -> None:
    a = rng.uniform(0.5, 1, (3, 4))
    right = torch.from_numpy(3 * a**2)

    def value(given: object) -> complex:
        assert isinstance(given, dict)
        return complex((given["x"] ** 3).sum())

    slopes.assert_slopes(value, {"x": a}, {"x": right}, rng, 16)
    wrong = right.clone()
    wrong[1, 2] *= 1 + 1e-9
    with pytest.raises(AssertionError, match="gradient of x"):
        slopes.assert_slopes(value, {"x": a}, {"x": wrong}, rng, 16)
    with pytest.raises(AssertionError, match="no gradient"):
        slopes.assert_slopes(value, {"x": a}, {"x": None}, rng, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_ends_early_is_a_shorter_row(kind: str, rng: np.random.Generator) -> None:
    gates = {"LSTM": 4, "GRU": 3}.get(kind, 1)
    arrays = {
        "x": rng.uniform(-1, 1, (5, 2, 3)),
        "h": rng.uniform(-1, 1, (2, 2, 4)),
        "c": rng.uniform(-1, 1, (2, 2, 4)),
    }
    for suffix in ("_l0", "_l0_reverse"):
        arrays[f"weight_ih{suffix}"] = rng.uniform(-1, 1, (gates * 4, 3))
        arrays[f"weight_hh{suffix}"] = rng.uniform(-1, 1, (gates * 4, 4))
    network = Network(kind, directions=2)

    out, h, c = network.run(arrays, np.array([5, 2]))

    short = {**arrays, "x": arrays["x"][:2, 1:], "h": arrays["h"][:, 1:], "c": arrays["c"][:, 1:]}
    wanted = network.run(short, np.array([2]))
    np.testing.assert_allclose(out[:2, 1:], wanted[0])
    np.testing.assert_allclose(h[:, 1:], wanted[1])
    np.testing.assert_allclose(c[:, 1:], wanted[2])
    assert not out[2:, 1].any()
    assert not np.allclose(out[:, 0, :4], out[:, 0, 4:])


def test_a_reference_declares_the_type_by_the_kind_of_number_each_time() -> None:
    """`1`, `1.0` and `True` are equal as keys of a dict."""
    whole = running.on_reference(torch.tensor([2, 3]))
    found = {type(number): running.run(torch.mul, whole, number).dtype for number in (1, 1.0, True, 1)}
    assert found == {int: torch.int64, float: torch.float32, bool: torch.int64}
    again = running.run(torch.mul, running.on_reference(torch.ones(2, 1, dtype=torch.int64)), 1)
    assert tuple(again.shape) == (2, 1)


def test_lists_tuples_and_dicts_are_walked_in_order() -> None:
    value = (1, [2, {"a": 3, "b": (4, torch.Size([5]))}])
    assert [*nested.leaves(value)] == [1, 2, 3, 4, torch.Size([5])]
    assert nested.mapped(pow, (2, [3, {"a": 4, "b": ()}]), 2) == (4, [9, {"a": 16, "b": ()}])
