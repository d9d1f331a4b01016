"""The numbers of 8- and 16-bit floating-point types, computed in Python from their definitions.

E4M3 and E5M2 are the types of the OCP 8-bit floating-point specification. `fn` types have no infinity. `fnuz` types
have no infinity and no negative zero, whose pattern is NaN. E8M0 is the scale of the OCP microscaling formats.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch

INF, NAN = math.inf, math.nan


@dataclass(frozen=True, slots=True)
class Form:
    """The bits of exponent and fraction, the exponent's bias, and the meaning of the largest patterns.

    - `special`: "ieee" (infinities and NaNs), "fn" (NaN where all bits are one) or "fnuz" (NaN for minus zero).
    """

    exponent: int
    fraction: int
    bias: int
    special: str

    def decode(self, code: int) -> float:
        """Return the number of a bit pattern."""
        sign = -1.0 if code >> (self.exponent + self.fraction) else 1.0
        power, part = code >> self.fraction & (1 << self.exponent) - 1, code & (1 << self.fraction) - 1
        full = (1 << self.exponent) - 1
        if self.special == "ieee" and power == full:
            return NAN if part else sign * INF
        if self.special == "fn" and power == full and part == (1 << self.fraction) - 1:
            return NAN
        if self.special == "fnuz" and sign < 0 and not power and not part:
            return NAN
        if not power:
            return sign * math.ldexp(part, 1 - self.bias - self.fraction)
        return sign * math.ldexp((1 << self.fraction) + part, power - self.bias - self.fraction)


FORMS: Mapping[torch.dtype, Form] = {
    torch.float8_e4m3fn: Form(4, 3, 7, "fn"),
    torch.float8_e4m3fnuz: Form(4, 3, 8, "fnuz"),
    torch.float8_e5m2: Form(5, 2, 15, "ieee"),
    torch.float8_e5m2fnuz: Form(5, 2, 16, "fnuz"),
    torch.float16: Form(5, 10, 15, "ieee"),
    torch.bfloat16: Form(8, 7, 127, "ieee"),
}
FLOAT8 = [dtype for dtype in FORMS if dtype.itemsize == 1]


def decoded(dtype: torch.dtype) -> list[float]:
    """Return the number of each pattern of a type, in order. E8M0 has powers of two, and NaN at the end."""
    if dtype == torch.float8_e8m0fnu:
        return [math.ldexp(1.0, code - 127) for code in range(255)] + [NAN]
    return [FORMS[dtype].decode(code) for code in range(1 << 8 * dtype.itemsize)]


def rounded(dtype: torch.dtype) -> dict[float, int]:
    """Return float32 numbers with the pattern to which each rounds.

    They are each number of the type, the middle between neighbors (rounded to the even pattern), the float32 numbers
    next to the middle, numbers that overflow, and numbers that underflow.
    """
    form = FORMS[dtype]
    top = 1 << form.exponent + form.fraction
    codes = [code for code in range(top) if math.isfinite(form.decode(code))]
    values = [form.decode(code) for code in codes]
    found: dict[float, int] = dict(zip(values, codes, strict=True))
    # Overflow rounds as if the grid had one more number.
    last = codes[-1]
    step = values[-1] - values[-2]
    over = {"fn": top - 1, "fnuz": top, "ieee": (1 << form.exponent) - 1 << form.fraction}[form.special]
    grid = [*zip(values, codes, strict=True), (values[-1] + step, over)]
    for (low, code), (high, following) in itertools.pairwise(grid):
        middle = float(Fraction(low) + (Fraction(high) - Fraction(low)) / 2)
        even = code if code % 2 == 0 else following
        # The pattern of overflow counts as even if the largest number is odd.
        found[middle] = even if code != last else (over if code % 2 else code)
        found[_next_float32(middle, up=False)] = code
        found[_next_float32(middle, up=True)] = following
    for large in (2 * values[-1], 1e30, 3e38):
        found.setdefault(float(torch.tensor(large).item()), over)
    tiny = float(torch.finfo(torch.float32).tiny)
    found.setdefault(tiny, bisect_left(values, tiny) if values[1] <= tiny else 0)
    return found


def _next_float32(value: float, *, up: bool) -> float:
    """Return the float32 number next to a positive one."""
    import numpy as np

    return float(np.nextafter(np.float32(value), np.float32(INF if up else 0.0)))
