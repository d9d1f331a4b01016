"""Rare errors, like those of a failing chip, and operators that are fast because they compute too little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.breaks.breaks import Theme, replace_kernel

broken = Theme()

_COMPUTE, _MEMORY = "suites/endurance/test_compute.py", "suites/endurance/test_memory.py"
_SPEED, _COPIES, _LAUNCHES = (f"suites/performance/test_{name}.py" for name in ("compute", "copies", "launches"))
#: A rare error happens in one of this many calls.
_RARE = 25


def _sums(compute: Callable[[], Any]) -> object:
    """Return the sums of the results of many calls, as Python numbers."""
    import torch

    results = [torch.view_as_real(x) if x.is_complex() else x for x in (compute() for _ in range(2 * _RARE))]
    return [sum(x.flatten().tolist()) for x in results]


def _square(dtype: str = "float32", size: int = 32) -> Any:
    import torch

    return torch.arange(size * size).remainder(5).view(size, size).to(getattr(torch, dtype))


def _rarely(operator: str, spoil: Callable[[Any], object]) -> None:
    """Let `spoil` change the result of one call of many."""
    calls = [0]

    def around(kernel: Any, *arguments: Any, **named: Any) -> Any:
        result = kernel(*arguments, **named)
        calls[0] += 1
        if calls[0] % _RARE == 0:
            spoil(result)
        return result

    replace_kernel(operator, around)


def _one_more(x: Any) -> None:
    x.view(-1)[-1].add_(1)


def _product_into() -> Any:
    import torch

    return torch.mm(_square(), _square(), out=torch.empty(32, 32))


@broken("One product of 25 has one element that is 1 too large.", _COMPUTE, shows=lambda: _sums(_product_into))
def rare_product_error() -> None:
    _rarely("mm.out", _one_more)


def _convolved() -> Any:
    import torch

    return torch.conv2d(_square().view(1, 1, 32, 32), _square(size=3).view(1, 1, 3, 3))


@broken("One convolution of 25 has one element that is 1 too large.", _COMPUTE, shows=lambda: _sums(_convolved))
def rare_convolution_error() -> None:
    _rarely("convolution", _one_more)


def _transformed() -> Any:
    import torch

    return torch.fft.fft(_square("complex64"))


@broken("One Fourier transform of 25 has one element that is 1 too large.", _COMPUTE, shows=lambda: _sums(_transformed))
def rare_transform_error() -> None:
    _rarely("_fft_c2c", _one_more)


def _differences() -> Any:
    import torch

    x = torch.arange(1000)
    return torch.ne(x, x.clone(), out=torch.empty(1000, dtype=torch.bool))


@broken("A bit of memory has flipped when it is read, one time of 25.", _MEMORY, shows=lambda: _sums(_differences))
def rare_flipped_bit_in_memory() -> None:
    calls = [0]

    def around(kernel: Any, x: Any, other: Any, *, out: Any) -> Any:
        calls[0] += 1
        if calls[0] % _RARE == 0:
            x[-1].bitwise_xor_(1 << 9)
        return kernel(x, other, out=out)

    replace_kernel("ne.Tensor_out", around)


def _copied() -> Any:
    import torch

    return torch.zeros(5000, dtype=torch.int64).copy_(torch.arange(5000))


@broken("One copy of 25, of more than 4,096 elements, has a wrong last one.", _MEMORY, shows=lambda: _sums(_copied))
def rare_copy_error() -> None:
    _spoil_copies(_RARE)


@broken("A copy of more than 4,096 elements has a wrong last one.", _COPIES, shows=lambda: _sums(_copied))
def fast_copy_error() -> None:
    _spoil_copies(1)


def _spoil_copies(every: int) -> None:
    import torch

    calls = [0]

    def around(kernel: Any, target: Any, source: Any, non_blocking: bool = False) -> Any:
        if not isinstance(source, torch.Tensor):
            return target.fill_(source)
        kernel(target, source, non_blocking)
        if target.numel() > 4096:
            calls[0] += 1
            if calls[0] % every == 0:
                target.view(-1)[-1].add_(1)
        return target

    replace_kernel("copy_", around)


def _added() -> Any:
    import torch

    return torch.zeros(4, dtype=torch.int64).add_(1)


@broken("One small addition in place of 25 does nothing.", _LAUNCHES, shows=lambda: _sums(_added))
def rare_lost_launch() -> None:
    calls = [0]

    def around(kernel: Any, x: Any, other: Any, *, alpha: Any = 1) -> Any:
        calls[0] += 1
        return x if calls[0] % _RARE == 0 else kernel(x, other, alpha=alpha)

    replace_kernel("add_.Tensor", around)


def _product() -> Any:
    return _square() @ _square()


@broken("A product leaves out the last of its terms.", _SPEED, shows=lambda: _sums(_product))
def product_loses_last_term() -> None:
    replace_kernel("mm", lambda kernel, a, b: kernel(a[:, :-1], b[:-1]))


@broken("The last row of a product is that of the row before.", _SPEED, shows=lambda: _sums(_product))
def product_repeats_a_row() -> None:
    def around(kernel: Any, a: Any, b: Any) -> Any:
        result = kernel(a, b)
        result[-1:].copy_(result[-2:-1].clone())
        return result

    replace_kernel("mm", around)


@broken(
    "Products are right at first; later the last element is too large.",
    _SPEED,
    shows=lambda: _sums(_product),
)
def product_is_right_at_first() -> None:
    calls = [0]

    def around(kernel: Any, a: Any, b: Any) -> Any:
        result = kernel(a, b)
        calls[0] += 1
        if calls[0] > 8:
            result.view(-1)[-1].add_(1)
        return result

    replace_kernel("mm", around)


def _scaled() -> Any:
    import torch

    x, one = _square().to(torch.float8_e4m3fn), torch.ones(())
    return torch._scaled_mm(x, x.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


@broken("A product of 8-bit numbers is twice too large.", _SPEED, shows=lambda: _sums(_scaled))
def scaled_product_is_doubled() -> None:
    replace_kernel("_scaled_mm", lambda kernel, *arguments, **named: kernel(*arguments, **named) * 2)


@broken("The last image of a convolution is zero.", _SPEED, shows=lambda: _sums(_convolved))
def convolution_leaves_out_an_image() -> None:
    def around(kernel: Any, *arguments: Any, **named: Any) -> Any:
        result = kernel(*arguments, **named)
        result[-1].zero_()
        return result

    replace_kernel("convolution", around)


def _attended() -> Any:
    import torch

    x = _square().view(1, 1, 32, 32)
    return torch.nn.functional.scaled_dot_product_attention(x, x, x.flip(2))


@broken("Attention does not look at the last key.", _SPEED, shows=lambda: _sums(_attended))
def attention_leaves_out_a_key() -> None:
    def around(kernel: Any, q: Any, k: Any, v: Any, *arguments: Any, **named: Any) -> Any:
        return kernel(q, k[:, :, :-1], v[:, :, :-1], *arguments, **named)

    replace_kernel("_scaled_dot_product_flash_attention_for_cpu", around)
