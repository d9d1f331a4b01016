"""Where a release of torch computes something else than the reference: found by running, each with its reason.

The cases leave these types out, and `test_known.py` fails once an entry is no longer true.
"""

from __future__ import annotations

from dataclasses import dataclass

_POLES = (
    "polygamma near its poles reflects with sin(pi x) in the type of the input, whose rounding is as large as the sine"
)
_BESSEL = "the coefficients for |x| > 5 are good for 8 digits"


@dataclass(frozen=True, slots=True)
class Deviation:
    """The types for which an operator deviates on the CPU, and why."""

    types: tuple[str, ...]
    reason: str
    devices: tuple[str, ...] = ("cpu", "soft")


#: By operator.
VALUES = {
    "special.bessel_j0": Deviation(("float64",), _BESSEL),
    "special.bessel_j1": Deviation(("float64",), _BESSEL),
    "special.bessel_y0": Deviation(("float64",), _BESSEL),
    "special.bessel_y1": Deviation(("float64",), _BESSEL),
    **{
        f"{name}_n_{n}": Deviation(("float64", "int8", "int16"), _POLES)
        for name in ("polygamma.polygamma",)
        for n in range(5)
    },
    "special.polygamma.special_polygamma_n_0": Deviation(("float64", "int8", "int16"), _POLES),
    "special.airy_ai": Deviation(("float64",), "the approximations are good for 10 digits"),
    "cov": Deviation(("float64", "complex128"), "integer weights are divided in float32"),
    "matrix_exp": Deviation(("bfloat16", "float16"), "the polynomials of the CPU overflow in types of 16 bits"),
    "nn.functional.soft_margin_loss": Deviation(("float16",), "log(1 + exp(-x y)) overflows in the type of the input"),
}


def deviates(name: str, dtype: str, device: str) -> bool:
    """Return whether the values of an operator are known to deviate."""
    entry = VALUES.get(name)
    return entry is not None and dtype in entry.types and device in entry.devices


#: Derivatives that differ or are not unique, and the groups of types.
GRADIENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "logcumsumexp": (("float", "complex"), "subtracts running sums of exponentials, and loses half of the digits"),
    "linalg.qr": (("complex",), "the phases of Q are not unique"),
    "qr": (("complex",), "the phases of Q are not unique"),
    "nn.functional.hardsigmoid": (("float",), "1/6 is rounded to float32"),
}


#: Operators whose invalid inputs are refused in another way than the catalogue states, and why.
ERRORS: dict[str, str] = {}
#: Operators and types for which vectors of many lengths are outside of the domain.
LENGTHS: dict[str, Deviation] = {
    f"polygamma.polygamma_n_{n}": Deviation(("bool",), "the pole at 0 is an infinity of another sign")
    for n in range(1, 5)
}
#: Operators that give other values than NumPy at the ends of a type.
EXTREMES: dict[str, Deviation] = {}


def errors_differ(name: str, device: str) -> bool:
    """Return whether an operator's errors are known to differ."""
    return name in ERRORS and device in ("cpu", "soft")


def lengths_differ(name: str, dtype: str) -> bool:
    """Return whether an operator's values in `test_lengths` are known to differ for a type."""
    return name in LENGTHS and dtype in LENGTHS[name].types


def extremes_differ(name: str, dtype: str) -> bool:
    """Return whether an operator's values at the ends of a type are known to differ."""
    return name in EXTREMES and dtype in EXTREMES[name].types
