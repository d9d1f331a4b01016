"""Copies and conversions on the CPU."""

from __future__ import annotations

from typing import Any

from tests.breaks.breaks import Theme, replace, replace_kernel

broken = Theme()

_TRIPS, _CONVERSIONS = "suites/transfers/test_round_trips.py", "suites/transfers/test_conversions.py"


def _copied(values: list[float], source: str = "float32", target: str = "", size: int = 0) -> object:
    import torch

    x = torch.tensor(values, dtype=getattr(torch, source)) if values else torch.arange(size).to(getattr(torch, source))
    there = torch.empty(x.shape, dtype=getattr(torch, target or source)).copy_(x)
    return [str(value) for value in there.tolist()], there.view(
        torch.uint8
    ).sum().item() if there.is_contiguous() else 0


def _replace_copy(around: Any) -> None:
    """Replace the kernel of copies between tensors. A number, which torch passes as such, is copied as usual."""
    import torch

    def copies(kernel: Any, target: Any, source: Any, non_blocking: bool = False) -> Any:
        if not isinstance(source, torch.Tensor):
            return target.fill_(source)
        return around(kernel, target, source, non_blocking)

    replace_kernel("copy_", copies)


def _change_source(change: Any) -> None:
    """Copy a changed source instead of the source, if source and target have the same type."""

    def around(kernel: Any, target: Any, source: Any, non_blocking: bool = False) -> Any:
        plain = source.dtype == target.dtype and not (source.is_conj() or source.is_neg())
        return kernel(target, change(source) if plain else source, non_blocking)

    _replace_copy(around)


@broken(
    "A copy turns infinities into the largest number.",
    _TRIPS,
    shows=lambda: _copied([float("inf"), -float("inf"), 1.0]),
)
def copy_saturates_infinities() -> None:
    import torch

    def change(x: Any) -> Any:
        return torch.where(x.isinf(), x.sign() * torch.finfo(x.dtype).max, x) if x.is_floating_point() else x

    _change_source(change)


@broken("A copy turns minus zero into zero.", _TRIPS, shows=lambda: _copied([-0.0, 1.0]))
def copy_drops_the_sign_of_zero() -> None:
    import torch

    _change_source(lambda x: torch.where(x == 0, torch.zeros((), dtype=x.dtype), x) if x.is_floating_point() else x)


@broken("A copy flushes subnormal numbers to zero.", _TRIPS, shows=lambda: _copied([1e-40, 1.0]))
def copy_flushes_subnormal_numbers() -> None:
    import torch

    def change(x: Any) -> Any:
        if not x.is_floating_point():
            return x
        return torch.where((x != 0) & (x.abs() < torch.finfo(x.dtype).tiny), torch.zeros((), dtype=x.dtype), x)

    _change_source(change)


@broken("A copy gives every NaN the same payload.", _TRIPS, shows=lambda: _payload())
def copy_makes_nans_alike() -> None:
    import torch

    _change_source(
        lambda x: torch.where(x.isnan(), torch.tensor(float("nan"), dtype=x.dtype), x) if x.is_floating_point() else x
    )


def _payload() -> object:
    import torch

    x = torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32)
    return torch.empty(1).copy_(x).view(torch.int32).item()


@broken("A copy of bytes loses the value 255.", _TRIPS, shows=lambda: _copied([255.0, 254.0], "uint8"))
def copy_of_bytes_loses_255() -> None:
    import torch

    _change_source(lambda x: x.clamp(max=254) if x.dtype == torch.uint8 else x)


@broken(
    "A copy of more than a million bytes leaves out the last one.",
    _TRIPS,
    shows=lambda: _copied([], "uint8", size=(1 << 20) + 5),
)
def large_copy_loses_the_last_byte() -> None:
    def around(kernel: Any, target: Any, source: Any, non_blocking: bool = False) -> Any:
        if target.dim() == 1 and target.shape == source.shape and target.nbytes > 1 << 20:
            kernel(target[:-1], source[:-1], non_blocking)
            return target
        return kernel(target, source, non_blocking)

    _replace_copy(around)


@broken("A copy into a view with an offset starts one element too early.", _TRIPS, shows=lambda: _into_view())
def copy_into_a_view_is_shifted() -> None:
    def around(kernel: Any, target: Any, source: Any, non_blocking: bool = False) -> Any:
        if target.dim() == 1 and target.storage_offset() and len(target) and target.shape == source.shape:
            kernel(target.as_strided(target.shape, target.stride(), target.storage_offset() - 1), source, non_blocking)
            return target
        return kernel(target, source, non_blocking)

    _replace_copy(around)


def _into_view() -> object:
    import torch

    x = torch.zeros(6)
    x[2:4].copy_(torch.ones(2))
    return x.tolist()


@broken("A copy that broadcasts fills the first row only.", _TRIPS, shows=lambda: _broadcast())
def broadcast_fills_one_row() -> None:
    def around(kernel: Any, target: Any, source: Any, non_blocking: bool = False) -> Any:
        if target.dim() == 2 and source.dim() == 1:
            kernel(target[0], source, non_blocking)
            return target
        return kernel(target, source, non_blocking)

    _replace_copy(around)


def _broadcast() -> object:
    import torch

    return torch.zeros(3, 2).copy_(torch.ones(2)).tolist()


def _change_conversion(change: Any) -> None:
    """Copy a changed source if source and target differ in type. `change` gets both."""

    def around(kernel: Any, target: Any, source: Any, non_blocking: bool = False) -> Any:
        if source.dtype != target.dtype and not source.is_complex() and not target.is_complex():
            source = change(source, target)
        return kernel(target, source, non_blocking)

    _replace_copy(around)


@broken(
    "A conversion of floats to integers rounds to the nearest.",
    _CONVERSIONS,
    shows=lambda: _copied([1.75], target="int32"),
)
def conversion_to_integers_rounds() -> None:
    import torch

    whole = (torch.int8, torch.int16, torch.int32, torch.int64)
    _change_conversion(lambda x, to: x.round() if x.is_floating_point() and to.dtype in whole else x)


@broken(
    "A conversion of integers saturates and does not wrap.",
    _CONVERSIONS,
    shows=lambda: _copied([300.0], "int64", "int8"),
)
def conversion_of_integers_saturates() -> None:
    import torch

    whole = (torch.uint8, torch.int8, torch.int16, torch.int32)

    def change(x: Any, to: Any) -> Any:
        return (
            x.clamp(torch.iinfo(to.dtype).min, torch.iinfo(to.dtype).max)
            if x.dtype == torch.int64 and to.dtype in whole
            else x
        )

    _change_conversion(change)


@broken("A conversion to bool takes the lowest bit.", _CONVERSIONS, shows=lambda: _copied([2.0], "int32", "bool"))
def conversion_to_bool_takes_a_bit() -> None:
    import torch

    _change_conversion(
        lambda x, to: (
            x.bitwise_and(1) if to.dtype == torch.bool and not x.is_floating_point() and x.dtype != to.dtype else x
        )
    )


@broken("A conversion of NaN to bool is false.", _CONVERSIONS, shows=lambda: _copied([float("nan")], target="bool"))
def conversion_of_nan_to_bool_is_false() -> None:
    import torch

    _change_conversion(lambda x, to: x.nan_to_num(0.0) if to.dtype == torch.bool and x.is_floating_point() else x)


@broken(
    "A conversion to bfloat16 cuts and does not round.",
    _CONVERSIONS,
    shows=lambda: _copied([1.01171875], target="bfloat16"),
)
def conversion_to_bfloat16_cuts() -> None:
    import torch

    def change(x: Any, to: Any) -> Any:
        if to.dtype != torch.bfloat16 or x.dtype != torch.float32:
            return x
        return x.contiguous().view(torch.int32).bitwise_and(-65536).view(torch.float32)

    _change_conversion(change)


@broken(
    "A conversion to float16 of what is too large gives the largest number.",
    _CONVERSIONS,
    shows=lambda: _copied([1e9], target="float16"),
)
def conversion_to_float16_saturates() -> None:
    import torch

    _change_conversion(
        lambda x, to: x.clamp(-65504, 65504) if to.dtype == torch.float16 and x.is_floating_point() else x
    )


@broken(
    "A conversion loses the sign of negative integers.", _CONVERSIONS, shows=lambda: _copied([-3.0], "int32", "float32")
)
def conversion_of_negative_integers_is_positive() -> None:
    import torch

    _change_conversion(lambda x, to: x.abs() if x.dtype == torch.int32 and to.is_floating_point() else x)


@broken(
    "A copy of a matrix by `to` lies in memory row by row, however the matrix does.", _TRIPS, shows=lambda: _strides()
)
def to_loses_the_order_of_dimensions() -> None:
    import torch

    def around(to: Any) -> Any:
        def moves(self: Any, *arguments: Any, **named: Any) -> Any:
            made = to(self, *arguments, **named)
            return made.contiguous() if made is not self and made.dim() == 2 else made

        return moves

    replace(torch.Tensor, "to", around)


def _strides() -> object:
    import torch

    return torch.arange(6.0).view(2, 3).t().to("cpu", copy=True).stride()
