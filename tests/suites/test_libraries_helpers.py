"""The oracles of `suites/libraries`, and of conversions in `suites/transfers`, compared with other computations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from suites.libraries import convolution, oracle, spectra
from suites.transfers import narrow_floats

pytestmark = pytest.mark.acceptance


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("dtype", oracle.DIGITS, ids=str)
@pytest.mark.parametrize("terms", [1, 7, 300, 5000])
def test_factors_have_exact_sums_in_their_type(rng: np.random.Generator, dtype: torch.dtype, terms: int) -> None:
    """The sum of the magnitudes of each row's products fits in the type's digits."""
    a, b = oracle.factors(rng, (4, terms), (terms, 3), dtype)

    for part in (np.abs(a.real), np.abs(a.imag)):
        assert (part @ np.maximum(np.abs(b.real), np.abs(b.imag))).max() <= 2 ** oracle.DIGITS[dtype]
    for values in (a, b):
        kept = oracle.numbers(oracle.tensor(values, dtype, torch.device("cpu")))
        assert (kept == values).all()
    assert np.abs(a).any()


@pytest.mark.parametrize("x", [[1.5, -2.0, 3e38, float("inf"), 1e-40, -0.0]])
def test_numbers_of_bfloat16_are_those_of_torch(x: list[float]) -> None:
    given = torch.tensor(x, dtype=torch.bfloat16)

    assert oracle.numbers(given).tolist() == given.tolist()


def test_assertions_of_the_oracle_fail_on_one_wrong_number() -> None:
    expected = np.arange(6.0).reshape(2, 3)
    x = torch.from_numpy(expected.copy())
    oracle.assert_equal(x, expected)
    oracle.assert_within(x, expected, 0.0)
    for wrong in (99.0, float("nan")):
        x[1, 1] = wrong
        with pytest.raises(AssertionError, match="1 of 6"):
            oracle.assert_equal(x, expected)
        with pytest.raises(AssertionError, match="1 of 6"):
            oracle.assert_within(x, expected, 0.5)


@pytest.mark.parametrize(
    "form",
    [convolution.Form(), convolution.Form(2, 1, 1, 1), convolution.Form(1, 2, 2, 2), convolution.Form(3, 2, 2, 2)],
    ids=str,
)
def test_correlate_is_the_sum_over_the_kernel(rng: np.random.Generator, form: convolution.Form) -> None:
    """The oracle is compared with nested loops, and its adjoints with the definition of an adjoint."""
    x, w = (
        rng.integers(-5, 6, (2, 4, 7, 6)).astype(float),
        rng.integers(-5, 6, (6, 4 // form.groups, 3, 2)).astype(float),
    )
    found = convolution.correlate(x, w, form)
    padded = np.pad(x, [(0, 0), (0, 0), (form.padding,) * 2, (form.padding,) * 2])
    for n, o, row, column in itertools.product(*map(range, found.shape)):
        first = o // (6 // form.groups) * (4 // form.groups)
        total = sum(
            padded[n, first + c, row * form.stride + i * form.dilation, column * form.stride + j * form.dilation]
            * w[o, c, i, j]
            for c, i, j in itertools.product(range(4 // form.groups), range(3), range(2))
        )
        assert found[n, o, row, column] == total
    y = rng.integers(-5, 6, found.shape).astype(float)
    assert (found * y).sum() == (x * convolution.adjoint_of_input(y, w, x.shape, form)).sum()
    assert (found * y).sum() == (w * convolution.adjoint_of_weights(x, y, w.shape, form)).sum()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_matrices_have_their_spectra(rng: np.random.Generator, size: int, dtype: torch.dtype) -> None:
    spectrum = spectra.values(rng, size)
    assert (np.diff(spectrum) > 0).all()
    assert np.abs(spectrum).min() > 1e-3
    assert np.allclose(np.linalg.eigvalsh(spectra.hermitian(rng, spectrum, dtype)), spectrum)
    singular = np.linspace(3.0, 1.0, size)
    assert np.allclose(np.linalg.svd(spectra.of_shape(rng, size + 2, size, singular, dtype))[1], singular)


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (torch.float8_e4m3fn, {0x7E: 448.0, 0x7F: math.nan, 0x01: 2.0**-9, 0x38: 1.0, 0xC0: -2.0}),
        (torch.float8_e5m2, {0x7B: 57344.0, 0x7C: math.inf, 0x7D: math.nan, 0x01: 2.0**-16, 0xBC: -1.0}),
        (torch.float8_e4m3fnuz, {0x7F: 240.0, 0x80: math.nan, 0x01: 2.0**-10, 0x40: 1.0}),
        (torch.float8_e5m2fnuz, {0x7F: 57344.0, 0x80: math.nan, 0x01: 2.0**-17, 0x40: 1.0}),
        (torch.float8_e8m0fnu, {0x00: 2.0**-127, 0x7F: 1.0, 0xFE: 2.0**127, 0xFF: math.nan}),
        (torch.bfloat16, {0x3F80: 1.0, 0x7F80: math.inf, 0x0001: 2.0**-133}),
    ],
    ids=str,
)
def test_decoded_numbers_are_those_of_the_specifications(dtype: torch.dtype, numbers: dict[int, float]) -> None:
    table = narrow_floats.decoded(dtype)

    assert len(table) == 1 << 8 * dtype.itemsize
    for code, value in numbers.items():
        assert table[code] == value or (math.isnan(table[code]) and math.isnan(value))


def test_rounded_numbers_include_ties_and_overflow() -> None:
    table = narrow_floats.rounded(torch.float8_e4m3fn)

    assert (table[1.0], table[1.0625], table[1.1875]) == (0x38, 0x38, 0x3A)
    assert (table[464.0], table[1e30 if 1e30 in table else float(np.float32(1e30))]) == (0x7E, 0x7F)
    assert narrow_floats.rounded(torch.float8_e5m2)[61440.0] == 0x7C
