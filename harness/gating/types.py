"""The types of tensors that a device lacks by declaration, and the cases that need them. Pure functions.

A hardware file declares them as ``without_types``. A case needs the types among its parameters, and those of its marks
``types``. Such a case is gated if the device lacks one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.core.errors import HarnessError
from harness.gating.requirements import Mark, Unmet

#: The name of such a gate in reports, in the place of a capability.
TYPES = "types"
#: The variable with the types that the device of an executor lacks, separated by commas. Cases that loop over several
#: types skip these.
VARIABLE = "HARNESS_WITHOUT_TYPES"
#: The names of torch.dtype in torch 2.11 to 2.15, without quantized ones and packed bits.
KNOWN = (
    *("float64", "float32", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("complex128", "complex64", "complex32"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
)


def parameter_types(item: object) -> tuple[str, ...]:
    """Return the names of the types among the parameters of a pytest item: each ``torch.dtype``, and each name of one.

    A stand-in for an item that another process has collected has these names as an attribute.
    """
    described: tuple[str, ...] | None = getattr(item, "parameter_types", None)
    if described is not None:
        return described
    parameters: Mapping[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    return tuple(dict.fromkeys(name for value in parameters.values() if (name := _name(value))))


def types_needed(parameters: Iterable[str], marks: Iterable[Mark]) -> list[str]:
    """Return the names of the types that a case needs: those of its parameters, and of its marks ``types``.

    Raise HarnessError for a mark that names no type.
    """
    names = list(parameters)
    for mark in marks:
        if not mark.args or mark.kwargs:
            raise HarnessError("types() takes the names of one or more types, such as types('float64')")
        for name in mark.args:
            if name not in KNOWN:
                raise HarnessError(f"types({name!r}): expected names among {', '.join(KNOWN)}")
            names.append(name)
    return list(dict.fromkeys(names))


def first_lacking(needed: Iterable[str], without: Sequence[str], hardware: str) -> Unmet | None:
    """Return why a case that needs these types is gated on hardware that lacks some. None if the hardware has all."""
    name = next((name for name in needed if name in without), None)
    if name is None:
        return None
    return Unmet(TYPES, name, f"a device without it, as hardware {hardware} declares", (TYPES,))


def _name(value: object) -> str:
    text = str(value).removeprefix("torch.") if type(value).__name__ == "dtype" else value
    return text if isinstance(text, str) and text in KNOWN else ""
