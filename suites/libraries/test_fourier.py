"""Fourier transforms, compared with NumPy's in float64, known spectra and inverses.

A transform of n numbers by stages has an error of at most about 8*u*log2(n) relative to the 2-norm of the result
(Higham, Accuracy and Stability, 24.1). A prime length takes three transforms of up to four times the length
(Bluestein), so the bound here is 24*u*log2(4n) for all. A spectrum that is twice too large, or lacks one frequency,
exceeds it by orders of magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from .oracle import Array, assert_equal, assert_within, name, numbers, reals, tensor, types, unit

#: Powers of two, products of small primes, primes, and one below and above powers of two.
SIZES = [1, 2, 3, 4, 7, 8, 12, 13, 31, 60, 64, 97, 101, 128, 255, 257, 1000, 1009, 1024]
NORM = pytest.mark.parametrize("norm", ["backward", "forward", "ortho"])
REAL = types(torch.float32, torch.float64)
COMPLEX = types(torch.complex64, torch.complex128)
BOTH = types(torch.float32, torch.float64, torch.complex64, torch.complex128)


def assert_spectrum(found: torch.Tensor, expected: Array, size: int) -> None:
    """Check the 2-norm of the error of a transform of `size` numbers against its bound."""
    values = numbers(found)
    assert values.shape == expected.shape
    assert found.is_complex() == np.iscomplexobj(expected)
    allowed = 24 * math.log2(4 * size) * unit(found.dtype) * np.linalg.norm(expected)
    off = np.linalg.norm(values - expected)
    assert off <= allowed, f"the error of {size} numbers is {off:.3g}, beyond {allowed:.3g}"


def of_real_signals(x: torch.Tensor, size: int) -> torch.Tensor:
    """Return half a spectrum whose first number, and for an even size also the last, is real."""
    x[..., 0] = x[..., 0].real + 0j
    if size % 2 == 0:
        x[..., -1] = x[..., -1].real + 0j
    return x


@NORM
@BOTH
@pytest.mark.parametrize("inverse", [False, True], ids=["fft", "ifft"])
def test_fft_and_ifft_of_each_size(
    device: torch.device, rng: np.random.Generator, inverse: bool, norm: Any, dtype: torch.dtype
) -> None:
    """`fft` and `ifft` of each size and norm equal NumPy's, for real and complex numbers, and for each row."""
    run: Any = torch.fft.ifft if inverse else torch.fft.fft
    expect: Any = np.fft.ifft if inverse else np.fft.fft
    for size in SIZES:
        x = reals(rng, (3, size), dtype)
        assert_spectrum(run(x.to(device), norm=norm), expect(numbers(x), norm=norm), size)


@NORM
@REAL
def test_rfft_and_irfft_of_each_size(
    device: torch.device, rng: np.random.Generator, norm: Any, dtype: torch.dtype
) -> None:
    """`rfft` gives the lower half of the spectrum, with its top frequency, and `irfft` inverts it, for each size."""
    for size in SIZES:
        x = reals(rng, (3, size), dtype)
        assert_spectrum(torch.fft.rfft(x.to(device), norm=norm), np.fft.rfft(numbers(x), norm=norm), size)
        half = of_real_signals(reals(rng, (3, size // 2 + 1), dtype.to_complex()), size)
        assert_spectrum(
            torch.fft.irfft(half.to(device), n=size, norm=norm), np.fft.irfft(numbers(half), n=size, norm=norm), size
        )


@NORM
@REAL
def test_hfft_and_ihfft_of_each_size(
    device: torch.device, rng: np.random.Generator, norm: Any, dtype: torch.dtype
) -> None:
    """`hfft` gives the real spectrum of a signal from half of it, and `ihfft` gives that half."""
    for size in SIZES:
        x = reals(rng, (3, size), dtype)
        assert_spectrum(torch.fft.ihfft(x.to(device), norm=norm), np.fft.ihfft(numbers(x), norm=norm), size)
        half = of_real_signals(reals(rng, (3, size // 2 + 1), dtype.to_complex()), size)
        assert_spectrum(
            torch.fft.hfft(half.to(device), n=size, norm=norm), np.fft.hfft(numbers(half), n=size, norm=norm), size
        )


OTHER_WAY = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
SHAPES: list[tuple[int, ...]] = [(4, 6), (8, 9), (13, 16), (5, 1), (31, 33), (3, 4, 5), (2, 7, 8), (3, 16, 9)]


def hermitian(x: Array, norm: str, sizes: Sequence[int], axes: Sequence[int]) -> Array:
    """Return `hfftn`, which NumPy lacks: the inverse real transform of the conjugate, scaled the other way."""
    found: Array = np.fft.irfftn(x.conj(), s=sizes, axes=axes, norm=OTHER_WAY[norm])  # type: ignore[arg-type]
    return found


MANY: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., Array]]] = {
    "fftn": (torch.fft.fftn, np.fft.fftn),
    "ifftn": (torch.fft.ifftn, np.fft.ifftn),
    "rfftn": (torch.fft.rfftn, np.fft.rfftn),
    "ihfftn": (torch.fft.ihfftn, lambda x, norm, axes: np.fft.rfftn(x, norm=OTHER_WAY[norm], axes=axes).conj()),
    "fft2": (torch.fft.fft2, np.fft.fft2),
    "ifft2": (torch.fft.ifft2, np.fft.ifft2),
    "rfft2": (torch.fft.rfft2, np.fft.rfft2),
    "ihfft2": (torch.fft.ihfft2, lambda x, norm, axes: np.fft.rfft2(x, norm=OTHER_WAY[norm], axes=axes).conj()),
}


#: The simulated CUDA takes strides from torch's meta functions, which are wrong before release 2.13
#: (https://github.com/pytorch/pytorch/issues/167636).
ANY_ORDER = pytest.mark.requires(any=[{"not_": {"device": "cuda"}}, {"silicon": True}, {"torch": ">=2.13"}])


@NORM
@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("order", ["in_order", pytest.param("reversed", marks=ANY_ORDER)])
@REAL
def test_transforms_of_many_dimensions(
    device: torch.device, rng: np.random.Generator, kind: str, order: str, norm: Any, dtype: torch.dtype
) -> None:
    """Transforms of the last two dimensions, or of the first and the last, in either order, equal NumPy's."""
    run, expect = MANY[kind]
    only_real = kind.startswith(("rfft", "ihfft"))
    for shape in SHAPES:
        x = reals(rng, shape, dtype if only_real else dtype.to_complex())
        for pair in ((-2, -1), (0, len(shape) - 1)):
            dims = pair if order == "in_order" else pair[::-1]
            found = run(x.to(device), norm=norm, dim=dims)
            assert_spectrum(found, expect(numbers(x), norm=norm, axes=dims), math.prod(shape))


@NORM
@REAL
@pytest.mark.parametrize("kind", ["irfftn", "irfft2", "hfftn", "hfft2"])
def test_transforms_to_real_numbers_of_many_dimensions(
    device: torch.device, rng: np.random.Generator, kind: str, norm: Any, dtype: torch.dtype
) -> None:
    """`irfftn` and `hfftn` of the spectrum of a real signal equal NumPy's, for an even or odd last dimension."""
    run: Any = getattr(torch.fft, kind)
    for shape in SHAPES:
        signal = reals(rng, shape, torch.float64).numpy()
        x = tensor(np.fft.rfftn(signal, axes=(-2, -1)), dtype.to_complex(), torch.device("cpu"))
        sizes, axes = shape[-2:], (-2, -1)
        if kind.startswith("h"):
            expected = hermitian(numbers(x), norm, sizes, axes)
        else:
            expected = np.fft.irfftn(numbers(x), s=sizes, axes=axes, norm=norm)
        found = run(x.to(device), s=sizes, dim=axes, norm=norm)
        assert_spectrum(found, expected, math.prod(shape))


@BOTH
def test_fft_pads_and_cuts_to_the_given_size(
    device: torch.device, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    """With `n`, the signal is first cut or filled with zeros, along any dimension."""
    x = reals(rng, (10, 6, 11), dtype)
    for size in (1, 5, 10, 17):
        for dim in (0, 1, 2, -1):
            found = torch.fft.fft(x.to(device), n=size, dim=dim)
            assert_spectrum(found, np.fft.fft(numbers(x), n=size, axis=dim), size)


@REAL
@pytest.mark.parametrize("kind", ["rfft", "irfft", "ihfft", "hfft"])
def test_real_transforms_along_each_dimension(
    device: torch.device, rng: np.random.Generator, kind: str, dtype: torch.dtype
) -> None:
    """`rfft`, `ihfft` and their inverses transform any dimension, to an even or odd size.

    The input of an inverse is a spectrum of real signals.
    """
    run: Any = getattr(torch.fft, kind)
    expect: Any = getattr(np.fft, kind)
    forward = {"irfft": np.fft.rfft, "hfft": np.fft.ihfft}.get(kind)
    for size in (4, 5, 12, 13):
        for dim in (0, 1, 2, -2):
            shape = [3, 4, 5]
            shape[dim] = size
            x = reals(rng, tuple(shape), dtype)
            if forward is not None:
                x = tensor(forward(numbers(x), axis=dim), dtype.to_complex(), x.device)
            assert_spectrum(run(x.to(device), n=size, dim=dim), expect(numbers(x), n=size, axis=dim), size)


@BOTH
@pytest.mark.parametrize("layout", ["sliced", "transposed", "conjugate", "expanded"])
def test_fft_of_views(device: torch.device, rng: np.random.Generator, layout: str, dtype: torch.dtype) -> None:
    """A transform of a view with gaps, in another order, conjugated or with a stride of zero is that of its numbers."""
    x = reals(rng, (6, 15, 8), dtype).to(device)
    view = {
        "sliced": x[::2, 1::3, 1:],
        "transposed": x.permute(2, 0, 1),
        "conjugate": x.conj(),
        "expanded": x[:1].expand(6, 15, 8),
    }[layout]
    a = numbers(view)

    assert_spectrum(torch.fft.fft(view), np.fft.fft(a), a.shape[-1])
    assert_spectrum(torch.fft.fftn(view), np.fft.fftn(a), a.size)
    assert_spectrum(torch.fft.fft(view, dim=0), np.fft.fft(a, axis=0), a.shape[0])


# ---- known answers ----


@COMPLEX
@pytest.mark.parametrize("size", [8, 13, 60, 127, 256])
def test_fft_of_an_impulse_is_the_roots_of_unity(device: torch.device, size: int, dtype: torch.dtype) -> None:
    """The transform of an impulse at place s is exp(-2*pi*i*s*k/n), and that of one frequency is an impulse of n."""
    for place in {1, size // 2, size - 1}:
        x = torch.zeros(size, dtype=dtype, device=device)
        x[place] = 1
        angles = 2 * np.pi * (np.arange(size) * place % size) / size
        wave = np.cos(angles) - 1j * np.sin(angles)

        assert_spectrum(torch.fft.fft(x), wave, size)
        expected = np.zeros(size, complex)
        expected[place] = size
        assert_spectrum(torch.fft.fft(tensor(wave.conj(), dtype, device)), expected, size)


@BOTH
@pytest.mark.parametrize("size", [1, 2, 15, 16, 1009, 4096])
def test_fft_keeps_the_energy(device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype) -> None:
    """Parseval: the squares of a spectrum sum to n times those of the signal, or to the same with `ortho`."""
    x = reals(rng, (size,), dtype)
    energy = float((np.abs(numbers(x)) ** 2).sum())
    bound = 50 * math.log2(4 * size) * unit(dtype)

    for norm, factor in (("backward", size), ("ortho", 1)):
        spectrum = numbers(torch.fft.fft(x.to(device), norm=norm))
        assert abs((np.abs(spectrum) ** 2).sum() - factor * energy) <= bound * factor * energy


INVERSES = {
    "fft": (torch.fft.fft, torch.fft.ifft),
    "rfft": (torch.fft.rfft, torch.fft.irfft),
    "ihfft": (torch.fft.ihfft, torch.fft.hfft),
    "fft2": (torch.fft.fft2, torch.fft.ifft2),
    "rfft2": (torch.fft.rfft2, torch.fft.irfft2),
    "fftn": (torch.fft.fftn, torch.fft.ifftn),
    "rfftn": (torch.fft.rfftn, torch.fft.irfftn),
    "ihfftn": (torch.fft.ihfftn, torch.fft.hfftn),
}


@NORM
@pytest.mark.parametrize("kind", INVERSES)
@REAL
def test_transform_and_inverse_return_the_signal(
    device: torch.device, rng: np.random.Generator, kind: str, norm: Any, dtype: torch.dtype
) -> None:
    """The inverse of a transform gives the signal, for even and odd sizes."""
    there: Any
    back: Any
    there, back = INVERSES[kind]
    for shape in ((4, 6), (5, 9), (16, 127), (3, 256)):
        x = reals(rng, shape, dtype)
        size = {"s": shape} if kind.endswith("n") else {"s": shape[-2:]} if kind.endswith("2") else {"n": shape[-1]}
        found = back(there(x.to(device), norm=norm), norm=norm, **size)
        expected = numbers(x) + 0j if found.is_complex() else numbers(x)
        assert_spectrum(found, expected, 2 * x.numel() ** 2)


@pytest.mark.parametrize("size", [1, 2, 9, 10])
@pytest.mark.types("float64")
def test_frequencies_and_shifts(device: torch.device, size: int) -> None:
    """`fftfreq` and `rfftfreq` are the documented frequencies, and `fftshift` and `ifftshift` undo each other."""
    for spacing in (1.0, 0.25):
        for run, expect in ((torch.fft.fftfreq, np.fft.fftfreq), (torch.fft.rfftfreq, np.fft.rfftfreq)):
            found = run(size, d=spacing, dtype=torch.float64, device=device)
            assert_within(found, expect(size, d=spacing), 4 * 2.0**-53 * size)
    a = np.arange(3.0 * size).reshape(3, size)
    x = tensor(a, torch.float64, device)
    assert_equal(torch.fft.fftshift(x), np.fft.fftshift(a))
    assert_equal(torch.fft.ifftshift(x, dim=1), np.fft.ifftshift(a, axes=1))
    assert_equal(torch.fft.ifftshift(torch.fft.fftshift(x)), a)


@REAL
@pytest.mark.parametrize("hop", [4, 7, 16])
def test_stft_is_the_spectra_of_its_windows(
    device: torch.device, rng: np.random.Generator, hop: int, dtype: torch.dtype
) -> None:
    """`stft` gives the `rfft` of each part of the signal times the window, and `istft` gives the signal."""
    x, window = reals(rng, (200,), dtype), torch.hann_window(16, periodic=True, dtype=dtype) + 0.5
    frames = np.lib.stride_tricks.sliding_window_view(numbers(x), 16)[::hop] * numbers(window)

    found = torch.stft(x.to(device), 16, hop_length=hop, window=window.to(device), center=False, return_complex=True)

    assert_spectrum(found, np.fft.rfft(frames).T, 16)
    if hop < 16:
        whole = torch.stft(x.to(device), 16, hop_length=hop, window=window.to(device), return_complex=True)
        back = torch.istft(whole, 16, hop_length=hop, window=window.to(device), length=190)
        assert_within(back, numbers(x)[:190], 500 * unit(dtype) * np.abs(numbers(x)).max())


@COMPLEX
def test_fft_gradient_is_the_transform_of_the_gradient(
    device: torch.device, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    """The gradient of a transform is the transform by the conjugate, n times the inverse."""
    x, y = reals(rng, (4, 30), dtype), reals(rng, (4, 30), dtype)
    leaf = x.to(device).requires_grad_()

    torch.fft.fft(leaf).backward(y.to(device))

    assert leaf.grad is not None
    assert_spectrum(leaf.grad, 30 * np.fft.ifft(numbers(y)), 30)


# ---- full sizes, and half precision ----


@pytest.mark.parametrize(
    "shape",
    [
        (65_536,),
        (65_537,),
        (257, 1021),
        *(
            pytest.param(each, marks=pytest.mark.requires(silicon=True, free_memory=">=8GiB"))
            for each in ((1 << 24,), (4096, 4096), (256, 256, 256), (10_000_019,), (1000, 1 << 14))
        ),
    ],
    ids=lambda shape: "x".join(map(str, shape)),
)
@BOTH
def test_fftn_of_a_large_size(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Transforms that need several kernels and a workspace equal NumPy's."""
    x = reals(rng, shape, dtype)
    assert_spectrum(torch.fft.fftn(x.to(device)), np.fft.fftn(numbers(x)), x.numel())


@pytest.mark.requires(silicon=True)
@pytest.mark.parametrize("size", [2, 8, 64, 256, 1024])
def test_fft_of_half_precision(device: torch.device, rng: np.random.Generator, size: int) -> None:
    """On CUDA, `fft` of complex32 and `rfft` of float16, of powers of two, are within the bound of half precision."""
    x = tensor(rng.standard_normal((3, size)), torch.float16, torch.device("cpu"))
    found = torch.fft.rfft(x.to(device), norm="ortho")
    assert name(found.dtype) == "complex32"
    expected = np.fft.rfft(numbers(x), norm="ortho")
    off = np.linalg.norm(numbers(found.to(torch.complex64)) - expected)
    assert off <= 24 * math.log2(4 * size) * 2.0**-11 * np.linalg.norm(expected)


@pytest.fixture
def plans(device: torch.device) -> Iterator[Any]:
    """Yield the empty plan cache of the device; restore its size."""
    found = torch.backends.cuda.cufft_plan_cache[device]
    before = found.max_size
    found.clear()
    yield found
    found.max_size = before
    found.clear()


@pytest.mark.requires(device="cuda", rocm=False)
def test_cufft_plan_cache_max_size_reads_back(device: torch.device, plans: Any) -> None:
    """The size of a device's plan cache can be set; the manager has that of the current device.

    A negative size and a missing device raise; the number of plans cannot be set.
    """
    manager = torch.backends.cuda.cufft_plan_cache
    plans.max_size = 3
    assert (plans.max_size, manager.max_size, manager[device].max_size) == (3, 3, 3)
    manager.max_size = 5
    assert plans.max_size == 5
    assert (plans.size, manager.size) == (0, 0)
    with pytest.raises(RuntimeError, match=r"cannot be set directly|read-only"):
        plans.size = 1
    with pytest.raises(RuntimeError, match="non-negative"):
        plans.max_size = -1
    with pytest.raises(RuntimeError, match="device index"):
        manager[torch.cuda.device_count()]
    assert plans.max_size == 5


@pytest.mark.requires(silicon=True, rocm=False)
def test_cufft_plan_cache_keeps_as_many_plans_as_wanted(device: torch.device, plans: Any) -> None:
    """Each size has a plan, which is reused; beyond `max_size` the oldest is removed, and `clear` removes all."""
    plans.max_size = 2
    for length, expected in ((64, 1), (64, 1), (128, 2), (256, 2)):
        torch.fft.fft(torch.ones(length, device=device))
        assert plans.size == expected
    plans.clear()
    assert plans.size == 0
