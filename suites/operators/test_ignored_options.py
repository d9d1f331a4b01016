"""Each option counts: a call without it has another result.

The reference runs the Python code of `torch.nn.functional`, so it cannot see that this code ignores an option, alone or
with another one.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from . import _torch_private, comparison, nested, samples, types
from .catalogue import COSTLY, by_operator, entries
from .comparison import WrongValueError
from .test_option_pairs import PAIRS

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    # The Python code is the same for all devices, and a call without `ignore_index` ends the use of a GPU.
    pytest.mark.requires(not_={"accelerator": True}),
]

_NO_SAMPLE = "no sample has values for which it matters"
#: Options by operator that change no result of a sample, alone or with others, and the reason.
SAME: dict[tuple[str, str], str] = {
    ("nn.functional.batch_norm", "momentum"): "it changes the running statistics only",
    ("nn.functional.batch_norm", "training"): "the sample is empty",
    ("nn.functional.instance_norm", "momentum"): "it changes the running statistics only",
    ("nn.functional.interpolate.area", "recompute_scale_factor"): "the windows follow from the sizes",
    ("nn.functional.linear_cross_entropy", "reduction"): "the sum of a single row is its loss",
    ("nn.functional.linear_cross_entropy.chunked", "options"): "they decide how the loss is computed",
    ("nn.functional.linear_cross_entropy.chunked_none", "options"): "they decide how the loss is computed",
    ("nn.functional.linear_cross_entropy.chunked_none", "reduction"): "the sum of a single row is its loss",
    ("nn.functional.triplet_margin_with_distance_loss", "distance_function"): "it is the default, in other words",
    **{
        (f"nn.functional.max_unpool{n}d.grad", option): "`output_size`, or its default, decides the result"
        for n, options in ((1, ("stride", "padding", "output_size")), (2, ("stride",)), (3, ("padding",)))
        for option in options
    },
    ("nn.functional.ctc_loss", "zero_infinity"): _NO_SAMPLE,
    ("nn.functional.gaussian_nll_loss", "eps"): _NO_SAMPLE,
    **{(f"masked.{name}", option): _NO_SAMPLE for name in ("std", "var") for option in ("unbiased", "dim")},
}
#: Options that say what a result is, and that samples set to what it would be anyway.
_OF_THE_RESULT = frozenset({"device", "dtype", "layout"})

#: A group of calls in which an option must count: its name, and what else the calls have in common.
Group = tuple[str, str]


def _options(signature: inspect.Signature, bound: inspect.BoundArguments) -> list[str]:
    """Return the names of the arguments of a call that are not what they are without it."""
    found = []
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        given = isinstance(value, torch.Tensor) or value != parameter.default
        if parameter.default is not parameter.empty and given and name not in _OF_THE_RESULT:
            found.append(name)
    return found


def _groups(options: list[str], option: str, given: Any) -> Iterator[Group]:
    yield option, ""
    yield option, f"of {', '.join(str(each.dtype) for each in nested.leaves(given) if isinstance(each, torch.Tensor))}"
    for other in options:
        if other != option:
            yield option, f"with {other}"


def _results(function: Callable[..., Any], given: Any, device: torch.device, without: str = "") -> Any:
    """Return the tensors that a call returns, or the error that it raises."""
    first, args, named = samples.move(given, device)
    bound = inspect.signature(function).bind(first, *args, **named)
    bound.arguments.pop(without, None)
    torch.manual_seed(0)
    try:
        return comparison.tensors(function(*bound.args, **bound.kwargs))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return error


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, Exception) or isinstance(two, Exception):
        return False
    return len(one) == len(two) and all(
        a.dtype == b.dtype and a.shape == b.shape and comparison.bits(a) == comparison.bits(b)
        for a, b in zip(one, two, strict=True)
    )


#: Functions in C++, behind another signature, or without a sample with an option.
_WITHOUT = (
    "cosine_similarity", "adaptive_avg_pool1d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear", "bilinear", "prelu",
    "silu.complex", "logsigmoid", "softshrink", "hardshrink", "gelu", "one_hot", "softplus", "pdist",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "relu", "hardswish", "leaky_relu",
    "fractional_max_pool2d", "fractional_max_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "elu", "celu",
    "rrelu", "selu", "scaled_dot_product_attention", "silu", "hardsigmoid", "mish", "softsign", "tanhshrink",
    "threshold", "relu6", "dropout", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout.with_train",
    "feature_alpha_dropout.without_train", "multi_head_attention_forward", "pairwise_distance", "embedding",
    "embedding_bag",
)  # fmt: skip
_NAMES = {each.name for each in entries() if each.name.startswith(("nn.functional.", "masked."))}
_NAMES -= {*COSTLY, "masked.normalize", *(f"nn.functional.{each}" for each in _WITHOUT)}


@by_operator("values", without={each.name for each in entries()} - _NAMES)
def test_option_changes_a_result(name: str, device: torch.device) -> None:
    """Of the calls with an option, alone, with each other option, and for each types of tensors, one depends on it."""
    info = _torch_private.operator(name)
    if torch.float32 not in types.supported(info, device):
        pytest.skip(f"{name} takes no float32 on {device.type}")
    signature = inspect.signature(info.op)
    counts: dict[Group, bool] = defaultdict(bool)
    for each in [*samples.samples(info, torch.float32, samples.MOST), *PAIRS.get(name, list)()]:
        given = samples.arguments(each)
        options = _options(signature, signature.bind(given[0], *given[1], **given[2]))
        found = _results(info.op, given, device) if options else None
        if isinstance(found, Exception):
            continue
        for option in options:
            changes = not _same(found, _results(info.op, given, device, without=option))
            for group in _groups(options, option, given):
                counts[group] |= changes
    assert counts, f"no sample of {name} has an option: add it to _WITHOUT"
    ignored = [group for group, counted in counts.items() if not counted]
    known = {option for operator, option in SAME if operator == name}
    if wrong := [f"{option} {more}".strip() for option, more in ignored if option not in known]:
        raise WrongValueError(f"{name}: these options change no result: {'; '.join(wrong)}")
    if needless := known - {option for option, _ in ignored}:
        raise WrongValueError(f"{name}: SAME has options that change a result: {', '.join(sorted(needless))}")
