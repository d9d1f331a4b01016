"""Large copies, and copies and conversions of float8, float4, complex32 and unsigned types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.breaks.breaks import replace_kernel
from tests.breaks.kernels import Around, KernelTheme, torch_

broken = KernelTheme()

_LARGE, _TYPES, _CONVERSIONS = (
    f"suites/transfers/test_{name}.py" for name in ("large_copies", "every_type", "exact_conversions")
)

MIB = 1 << 20


def _copies(around: Around) -> Callable[[], object]:
    """Replace the kernel of copies between tensors. A number, which torch passes as such, is copied as usual."""

    def apply() -> None:
        torch = torch_()

        def copies(kernel: Any, target: Any, source: Any, non_blocking: bool = False) -> Any:
            if not isinstance(source, torch.Tensor):
                return target.fill_(source)
            return around(kernel, target, source, non_blocking)

        replace_kernel("copy_", copies)

    return apply


def _beyond(limit: int) -> Around:
    """Flip one bit of the byte at the limit in larger copies."""

    def around(kernel: Any, target: Any, source: Any, non_blocking: bool) -> Any:
        kernel(target, source, non_blocking)
        if target.numel() * target.element_size() > limit and target.is_contiguous() and target.dtype == source.dtype:
            target.view(-1).view(torch_().uint8)[limit].bitwise_xor_(4)
        return target

    return around


def _byte(limit: int) -> Any:
    torch = torch_()
    return torch.empty(limit + 9, dtype=torch.uint8).copy_(torch.zeros(limit + 9, dtype=torch.uint8))[limit]


for _limit in (16, 32):
    for _device, _where in (("cpu", ""), ("soft", ", on the software device")):
        broken.function(
            f"copy_beyond_{_limit}_mib_flips_a_bit" + ("" if _device == "cpu" else "_on_soft"),
            f"A copy of more than {_limit} MiB flips one bit{_where}.",
            _LARGE,
            _copies(_beyond(_limit * MIB)),
            lambda limit=_limit * MIB: _byte(limit),  # type: ignore[misc]
            _device,
        )


def _when(wanted: Callable[[Any, Any], bool], change: Callable[[Any, Any], Any]) -> Around:
    """Change the source of copies between two types."""
    return lambda kernel, target, source, non_blocking: kernel(
        target, change(source, target) if wanted(source, target) else source, non_blocking
    )


def _converted(values: Sequence[float], source: str, target: str) -> Any:
    torch = torch_()
    x = torch.tensor(values, dtype=getattr(torch, source)).to(getattr(torch, target))
    return x.view(torch.uint8).tolist()


_EIGHTS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
broken.function(
    "conversion_to_float8_is_twice_too_large",
    "A conversion to float8 is twice too large.",
    _CONVERSIONS,
    _copies(
        _when(
            lambda x, to: str(to.dtype).removeprefix("torch.") in _EIGHTS and x.dtype != to.dtype, lambda x, to: x * 2
        )
    ),
    lambda: _converted([1.0], "float32", "float8_e4m3fn"),
)
broken.function(
    "conversion_of_float8_e5m2_loses_a_bit",
    "A conversion of float8_e5m2 to float32 loses the last bit.",
    _CONVERSIONS,
    _copies(
        _when(
            lambda x, to: x.dtype == torch_().float8_e5m2 and to.dtype == torch_().float32,
            lambda x, to: x.contiguous().view(torch_().uint8).bitwise_and(254).view(x.dtype),
        )
    ),
    lambda: torch_().tensor([1.25]).to(torch_().float8_e5m2).to(torch_().float32),
)
broken.function(
    "conversion_of_unsigned_types_loses_a_bit",
    "A conversion from uint16, uint32 or uint64 to another type loses the second bit.",
    _CONVERSIONS,
    _copies(
        _when(
            lambda x, to: str(x.dtype) in ("torch.uint16", "torch.uint32", "torch.uint64") and to.dtype != x.dtype,
            lambda x, to: _without(x, 2),
        )
    ),
    lambda: _converted([7], "uint16", "int32"),
)
broken.function(
    "copy_of_unsigned_types_loses_the_top_bit",
    "A copy of uint16, uint32 or uint64 to the same type loses the highest bit.",
    _TYPES,
    _copies(
        _when(
            lambda x, to: str(x.dtype) in ("torch.uint16", "torch.uint32", "torch.uint64") and to.dtype == x.dtype,
            lambda x, to: _without(x, 1 << 8 * x.element_size() - 1),
        )
    ),
    lambda: torch_().full((2,), 65535, dtype=torch_().uint16).clone().view(torch_().uint8).tolist(),
)
broken.function(
    "conversion_to_uint64_saturates",
    "A conversion of floats to uint64 stops at the largest int64.",
    _CONVERSIONS,
    _copies(
        _when(
            lambda x, to: to.dtype == torch_().uint64 and x.is_floating_point(),
            lambda x, to: x.clamp(max=float(1 << 62)),
        )
    ),
    lambda: _converted([float(1 << 63)], "float64", "uint64"),
)
broken.function(
    "copy_of_float4_clears_a_bit",
    "A copy of float4 loses the sign of the upper number.",
    _TYPES,
    _copies(
        _when(
            lambda x, to: x.dtype == torch_().float4_e2m1fn_x2 and x.is_contiguous(),
            lambda x, to: x.view(torch_().uint8).bitwise_and(127).view(x.dtype),
        )
    ),
    lambda: (
        torch_()
        .full((2,), 255, dtype=torch_().uint8)
        .view(torch_().float4_e2m1fn_x2)
        .clone()
        .view(torch_().uint8)
        .tolist()
    ),
)
broken.function(
    "copy_of_complex32_exchanges_its_parts",
    "A copy of complex32 exchanges the real and the imaginary part.",
    _TYPES,
    _copies(
        _when(
            lambda x, to: x.dtype == torch_().complex32 == to.dtype and x.is_contiguous(),
            lambda x, to: x.view(torch_().float16).view(-1, 2).flip(1).contiguous().view(x.dtype).view(x.shape),
        )
    ),
    lambda: (
        torch_()
        .tensor([1.0, 2.0], dtype=torch_().float16)
        .view(torch_().complex32)
        .clone()
        .view(torch_().float16)
        .tolist()
    ),
)


def _without(x: Any, bit: int) -> Any:
    """Return unsigned integers without a bit, by way of signed integers of the same width, which have more kernels."""
    torch = torch_()
    signed = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    width = 8 * x.element_size()
    mask = (1 << width) - 1 - bit
    return x.contiguous().view(signed).bitwise_and(mask - (1 << width) if mask >> width - 1 else mask).view(x.dtype)
