"""The memory that a generated kernel uses, from the indices of its loads and stores."""

from __future__ import annotations

from itertools import islice

import pytest
import sympy
from torch._inductor.dependencies import MemoryDep, StarDep

from harness.sim.simcuda.compiler import accesses
from harness.sim.simcuda.compiler.accesses import Layout

ROW, COLUMN, N = sympy.symbols("row column n", integer=True)


@pytest.mark.parametrize(
    ("layout", "found"),
    [
        (Layout(0, (), ()), [(0, 4)]),
        (Layout(3, (5,), (1,)), [(12, 20)]),
        (Layout(0, (2, 3), (3, 1)), [(0, 24)]),
        (Layout(0, (3, 2), (1, 3)), [(0, 24)]),  # transposed
        (Layout(0, (2, 3), (8, 1)), [(0, 12), (32, 12)]),  # columns of a wider matrix
        (Layout(1, (3,), (2,)), [(4, 4), (12, 4), (20, 4)]),
        (Layout(0, (4, 3), (0, 1)), [(0, 12)]),  # expanded
        (Layout(0, (2, 1, 2, 2), (16, 99, 8, 1)), [(0, 8), (32, 8), (64, 8), (96, 8)]),
        (Layout(0, (3, 2), (1, 2)), [(0, 20)]),  # overlapping windows
        (Layout(0, (3, 0), (1, 1)), []),
    ],
)
def test_runs_of_a_layout(layout: Layout, found: list[tuple[int, int]]) -> None:
    assert list(accesses.runs(layout, 4)) == found


def test_a_layout_with_many_gaps_costs_nothing_in_advance() -> None:
    many = accesses.runs(Layout(0, (1 << 40, 1), (2, 1)), 4)
    assert list(islice(many, 2)) == [(0, 4), (8, 4)]


@pytest.mark.parametrize(
    ("index", "size", "layout"),
    [
        (ROW * 8 + COLUMN, (4, 8), Layout(0, (4, 8), (8, 1))),
        (ROW * 8 + 2 * COLUMN + 5, (4, 3), Layout(5, (4, 3), (8, 2))),
        (COLUMN, (4, 8), Layout(0, (4, 8), (0, 1))),
        (ROW * N + COLUMN, (4, 8), None),  # a size that only the run knows
        (ROW * 8 + COLUMN, (N, 8), None),
        (sympy.Mod(ROW, 3), (4, 8), None),
        (ROW * COLUMN, (4, 8), None),
        (7 - COLUMN, (4, 8), None),  # backwards
    ],
)
def test_affine_indices_with_known_sizes_have_a_layout(
    index: sympy.Expr, size: tuple[int, ...], layout: Layout | None
) -> None:
    assert accesses._layout(MemoryDep("buffer", index, (ROW, COLUMN), size)) == layout


def test_a_dependency_on_a_whole_tensor_has_no_layout() -> None:
    assert accesses._layout(StarDep("buffer")) is None
