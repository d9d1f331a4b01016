"""Other ways to call an operator, and other layouts of its inputs, give the same values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from . import _torch_private, case, comparison, known, nested, oracles, samples, sizes, tolerances, types
from .catalogue import by_operator
from .comparison import WrongValueError
from .references import running

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecated and experimental features warn


def _some(name: str, device: torch.device, count: int) -> list[tuple[Any, Any]]:
    """Return the operator and samples of its main types."""
    info = _torch_private.operator(name)
    group = types.first_group(types.supported(info, device), name)
    return [(info, sample) for info, sample, _ in case.spread(name, group, device, count)]


def _with_a_matrix(name: str, device: torch.device, count: int) -> Iterator[tuple[Any, Any]]:
    """Yield the operator and samples of its main types, including a two-dimensional one if torch has any.

    Kernels treat a transposed matrix separately.
    """
    first = _some(name, device, count)
    yield from first
    if not any(_is_matrix(info, sample, device) for info, sample in first):
        yield from [each for each in _some(name, device, 10 * count) if _is_matrix(*each, device)][:1]


def _is_matrix(info: Any, sample: Any, device: torch.device) -> bool:
    """Return whether the result of a sample is a matrix of several rows and columns."""
    found = comparison.tensors(oracles.call(info)(samples.move(samples.arguments(sample), device)))
    return bool(found) and found[0].dim() == 2 and min(found[0].shape) > 1


def _close(name: str, found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """Raise WrongValueError unless tensors are equal except for rounding: strides may select another kernel."""
    expected = running.on_reference(comparison.on_host(wanted))
    comparison.check_tensor(found, expected, tolerances.bound(name, wanted.dtype), lambda: 0.0, what)


def _garbage(like: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a tensor of the same type and shape with other values, in one of `TARGETS`."""
    if layout == "together" or not like.dim():
        return torch.empty_like(like, memory_format=torch.contiguous_format).fill_(1)
    if layout == "columns":
        return _columns(torch.empty_like(like, memory_format=torch.contiguous_format).fill_(1))
    wider = torch.empty((*like.shape[:-1], like.shape[-1] * 2), dtype=like.dtype, device=like.device).fill_(1)
    return wider[..., ::2]


#: The layout of a result's elements: contiguous, with gaps, and column-major.
TARGETS = ("together", "apart", "columns")


_NOT_ON_CUDA = dict.fromkeys(known.OUT_WITHOUT_CUDA, pytest.mark.requires(not_={"device": "cuda"}))


@by_operator("out", extended=True, needs=_NOT_ON_CUDA)
def test_out(name: str, device: torch.device, request: pytest.FixtureRequest) -> None:
    """`out=` gets the values that the operator returns, also with other strides, and is resized if it is empty."""
    if name in known.OUT:
        known.waive(request, known.OUT[name], device, everywhere=name in known.OUT_EVERYWHERE)
    for info, sample in _with_a_matrix(name, device, 4):
        given = samples.arguments(sample)
        expected = comparison.tensors(oracles.call(info)(samples.move(given, device)))
        for layout in TARGETS:
            outs = [_garbage(each, layout) for each in expected]
            _with_out(name, info, samples.move(given, device), outs, expected)
        empty = [torch.empty(0, dtype=each.dtype, device=device) for each in expected]
        _with_out(name, info, samples.move(given, device), empty, expected)


def _with_out(name: str, info: Any, given: Any, outs: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    try:
        result = info.op(given[0], *given[1], **given[2], out=outs[0] if len(outs) == 1 else tuple(outs))
    except RuntimeError as error:
        strides = [out.stride() for out in outs]
        raise WrongValueError(f"{name}: out= with the strides {strides} is refused: {error}") from error
    for got, out, wanted in zip(comparison.tensors(result), outs, expected, strict=True):
        if got.data_ptr() != out.data_ptr():
            raise WrongValueError(f"{name}: out= is not what is returned")
        _close(name, out, wanted, f"{name}: out=")


@by_operator("out", extended=True, without=known.NOT_FLOATS_ALONE, needs=_NOT_ON_CUDA)
def test_out_of_a_wrong_type_is_refused(name: str, device: torch.device, request: pytest.FixtureRequest) -> None:
    """`out=` of integers is refused with RuntimeError or TypeError for results that are floats."""
    if name in known.OUT_OF_ANY_TYPE:
        known.waive(request, known.OUT_OF_ANY_TYPE[name], device)
    tried = False
    for info, sample in _some(name, device, 2):
        given = samples.arguments(sample)
        expected = comparison.tensors(oracles.call(info)(samples.move(given, device)))
        if not all(each.dtype.is_floating_point or each.dtype.is_complex for each in expected):
            continue
        outs = [torch.zeros(each.shape, dtype=torch.int64, device=device) for each in expected]
        moved = samples.move(given, device)
        tried = True
        with pytest.raises((RuntimeError, TypeError)):
            info.op(moved[0], *moved[1], **moved[2], out=outs[0] if len(outs) == 1 else tuple(outs))
    if not tried:
        pytest.skip(f"no sample of {name} has results of floats")


#: The first argument gets the shape of the result, whatever its strides are.
_CHANGES_THE_SHAPE = frozenset({"unsqueeze"})


@by_operator("inplace", without=("as_strided.partial_views",))  # its result depends on the strides of its argument
def test_inplace(name: str, device: torch.device) -> None:
    """The in-place variant writes the operator's result into its first argument, for any strides.

    The argument keeps its type, so a truth value becomes 0 or 1.
    """
    tried = False
    types.skip_if_lacking(name)
    for info, sample in _some(name, device, 4):
        given = samples.arguments(sample)
        expected = comparison.tensors(oracles.call(info)(samples.move(given, device)))[0]
        if not isinstance(given[0], torch.Tensor):
            continue
        if expected.dtype == torch.bool:
            expected = expected.to(given[0].dtype)
        if expected.dtype != given[0].dtype or (expected.shape != given[0].shape and name not in _CHANGES_THE_SHAPE):
            continue
        tried = True
        x, args, named = samples.move(given, device)
        shaped = [(x, expected)]
        if type(info).__name__ == "UnaryUfuncInfo" and x.numel() >= 2 * 2 * 2:  # elementwise
            shaped.append((_in_four_dimensions(x), _in_four_dimensions(expected)))
        for begin, wanted in shaped:
            for layout in TARGETS:
                target = _garbage(begin, layout).copy_(begin)
                result = info.inplace_variant(target, *args, **named)
                if result is not target:
                    raise WrongValueError(f"{name}: the variant in place does not return its argument")
                _close(name, target, wanted, f"{name}: in place, {begin.dim()} dimensions")
    if not tried:
        pytest.skip(f"no sample of {name} has a result like its first argument")


def _in_four_dimensions(x: torch.Tensor) -> torch.Tensor:
    """Return the first elements of a tensor as one of the shape (2, 2, 2, n)."""
    count = x.numel() // (2 * 2 * 2)
    return x.reshape(-1)[: 2 * 2 * 2 * count].reshape(2, 2, 2, count)


def _spaced(x: torch.Tensor) -> torch.Tensor:
    wider = torch.empty((*x.shape[:-1], x.shape[-1] * 2 + 1), dtype=x.dtype, device=x.device)
    view = wider[..., 1::2]
    return view.copy_(x)


def _columns(x: torch.Tensor) -> torch.Tensor:
    return (
        torch.empty(tuple(reversed(x.shape)), dtype=x.dtype, device=x.device)
        .permute(*reversed(range(x.dim())))
        .copy_(x)
    )


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    formats_ = {4: torch.channels_last, 5: torch.channels_last_3d}
    return torch.empty(
        x.shape, dtype=x.dtype, device=x.device, memory_format=formats_.get(x.dim(), torch.contiguous_format)
    ).copy_(x)


LAYOUTS = {"spaced": _spaced, "columns": _columns, "channels_last": _channels_last}


#: Operators with an argument that has less than two elements in each sample, and the reason.
_ONE_ELEMENT = {
    "item": "it takes one element",
    "nn.functional.unfold": "its samples are empty; `test_options.py` has its windows",
}


@by_operator("layouts", without=("torch._scaled_mm_v2",))  # it takes scales in rows
def test_gaps(name: str, device: torch.device, request: pytest.FixtureRequest) -> None:
    """Values do not change if the elements of an argument are apart in memory, or its channels are last.

    Each argument is changed alone. `test_values` compares the values of arguments without gaps.
    """
    if name in known.LAYOUTS:
        known.waive(request, known.LAYOUTS[name], device, everywhere=True, raises=(RuntimeError,))
    found = [each for _, each in _some(name, device, 2 * samples.MOST)]
    if not any(map(samples.has_dimensions, nested.leaves([samples.arguments(each) for each in found]))):
        pytest.skip(f"{name} takes no tensor with dimensions")
    apart = samples.of_each_argument(found)
    assert apart or name in _ONE_ELEMENT, f"no sample of {name} has a tensor of two elements"
    images = samples.of_each_argument([*found, *sizes.SIZES.get(name, list)()], samples.is_image)
    function = oracles.call(_torch_private.operator(name))
    for what, layout, of_each in (("gaps", _spaced, apart), ("the channels last", _channels_last, images)):
        for key, sample in of_each.items():
            expected = comparison.tensors(function(samples.move(samples.arguments(sample), device)))
            result = function(samples.with_changed(samples.move(samples.arguments(sample), device), key, layout))
            if not expected or oracles.kind(name) != oracles.NUMPY:
                oracles.judge(name, function, sample, result)
                continue
            for one, two in zip(comparison.tensors(result), expected, strict=True):
                _close(name, one, two, f"{name}: argument {key} with {what}")


@by_operator("layouts", extended=True, needs={"torch._scaled_mm_v2": pytest.mark.requires(not_={"device": "cuda"})})
def test_layouts(name: str, device: torch.device, request: pytest.FixtureRequest) -> None:
    """Strides do not change values: inputs have gaps, are column-major, or have the channels last."""
    if name in known.LAYOUTS:
        known.waive(request, known.LAYOUTS[name], device, everywhere=True, raises=(RuntimeError,))
    for info, sample in _some(name, device, 3):
        for layout in LAYOUTS.values():

            def change(each: Any, layout: Any = layout) -> Any:
                return layout(each) if samples.has_dimensions(each) else each

            given = nested.mapped(change, samples.move(samples.arguments(sample), device))
            oracles.judge(name, oracles.call(info), sample, oracles.call(info)(given))


#: Operators that add in an order that a GPU does not fix (torch, `use_deterministic_algorithms`).
_UNORDERED = frozenset(
    {"index_add", "scatter_add", "scatter_reduce.sum", "scatter_reduce.mean", "index_put", "put", "histc",
    "bincount", "cumsum",
     "nn.functional.ctc_loss", "nn.functional.embedding_bag", "_unsafe_masked_index_put_accumulate",
     "index_reduce.mean",
     "index_reduce.prod", "scatter_reduce.prod", "nn.functional.nll_loss", "nn.functional.cross_entropy"}
)  # fmt: skip


@by_operator("repeated", extended=True, needs=dict.fromkeys(_UNORDERED, pytest.mark.requires(not_={"device": "cuda"})))
def test_repeated(name: str, device: torch.device) -> None:
    """The same inputs give the same bits twice (torch, reproducibility), unless a GPU adds in any order."""
    for info, sample in _some(name, device, 2):
        given = samples.arguments(sample)
        one, two = (comparison.tensors(oracles.call(info)(samples.move(given, device))) for _ in range(2))
        for first, second in zip(one, two, strict=True):
            if first.layout == torch.strided and comparison.bits(first) != comparison.bits(second):
                raise WrongValueError(f"{name}: other bits for the same inputs")


@by_operator("errors", extended=True, without=known.ACCEPT_NUMBERS)
def test_errors(name: str, device: torch.device) -> None:
    """Invalid inputs in torch's catalogue are refused with the documented type of error, or with NotImplemented."""
    info = _torch_private.operator(name)
    for each in info.error_inputs(str(device)):
        sample = each.sample_input
        try:
            result = info.op(sample.input, *sample.args, **sample.kwargs)
        except each.error_type:
            continue
        # Python raises TypeError where an operand returns NotImplemented.
        assert result is NotImplemented, f"{name}: accepts {sample}, expected {each.error_type.__name__}"
