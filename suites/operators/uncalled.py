"""Why no case calls an overload of aten that has a kernel of its own. Patterns as in `fnmatch`; the first that fits."""

from __future__ import annotations

from fnmatch import fnmatchcase

_TEST = "torch's own tests of its dispatcher"
_MIOPEN = "only a build of torch for AMD can run it"
_QUANTIZED = "quantized tensors, which torch has deprecated"
_BELOW = "called below the dispatch that is recorded, by {}"

REASONS = {
    "aten::_foobar": _TEST,
    "aten::_test_*": _TEST,
    "aten::*miopen*": _MIOPEN,
    "aten::quantized_*": _QUANTIZED,
    "aten::_empty_*quantized": _QUANTIZED,
    "aten::_make_per_*": _QUANTIZED,
    "aten::quantize_per_tensor*": _QUANTIZED,
    "aten::quantize_per_channel": _QUANTIZED,
    "aten::dequantize*": _QUANTIZED,
}


def reason(overload: str) -> str:
    """Return why no case calls the overload; empty if there is no reason."""
    return next((text for pattern, text in REASONS.items() if fnmatchcase(overload, pattern)), "")
