"""Inputs of operators: those of torch's catalogue, created on the host with a fixed seed, and moved to the device."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from . import nested, types

#: The maximum number of samples per operator. Some operators have thousands.
MOST = 64


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of torch's CPU, NumPy and Python in the block, and restore their states afterwards."""
    states = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.random.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def _fits(name: str, sample: Any) -> bool:
    """Return whether the inputs of a sample determine its results (no random draws), and the device has its types."""
    named = sample.kwargs
    if (lacking := types.lacking()) and lacking.intersection(
        each.dtype if isinstance(each, torch.Tensor) else each
        for each in nested.leaves(arguments(sample))
        if isinstance(each, torch.dtype | torch.Tensor)
    ):
        return False
    bins = sample.args[0] if sample.args and name == "histogramdd" else ()
    if isinstance(bins, list | tuple) and any(isinstance(each, torch.Tensor) and _falls(each) for each in bins):
        return False  # edges of a histogram that are not in order
    tensors = [each for each in nested.leaves(arguments(sample)) if isinstance(each, torch.Tensor)]
    if any(each.device.type != "cpu" for each in tensors):
        return False  # those of `to` are on CUDA if there is CUDA
    if name == "arange" and named.get("dtype") == torch.int64 and _has_fractions(sample):
        return False  # `test_deviations.py` has them
    if name in ("native_batch_norm", "_native_batch_norm_legit"):
        # Outside of training, the CPU returns no statistics, and CUDA returns its arguments. Statistics of 16-bit types
        # have the type of an argument that the caller may omit.
        trains = not any(each is False for each in sample.args)
        return trains and (sample.input.dtype.itemsize != 2 or len(tensors) > 1)
    drops = any(named.get(key) for key in ("dropout_p", "dropout"))
    return not drops or named.get("training", True) is False


def _has_fractions(sample: Any) -> bool:
    """Return whether a number among the arguments of a sample is no whole number."""
    numbers = (each for each in nested.leaves(arguments(sample)) if isinstance(each, int | float))
    return any(each != int(each) for each in numbers)


def _falls(edges: torch.Tensor) -> bool:
    return edges.dim() == 1 and edges.dtype.is_floating_point and bool((edges[1:] < edges[:-1]).any())


def _prepared(info: Any, sample: Any) -> Any:
    """Add the random numbers that an operator would draw itself, if it accepts them as an argument."""
    if info.name.startswith("nn.functional.fractional_max_pool") and "_random_samples" not in sample.kwargs:
        count = int(info.name[-2])
        shape = sample.input.shape
        lead = (shape[0], shape[1]) if len(shape) == count + 2 else (1, shape[0])
        values = np.random.random((*lead, count))
        sample.kwargs["_random_samples"] = torch.from_numpy(values).to(sample.input.dtype)
    if info.name == "tensor_split":
        for each in sample.args:
            if isinstance(each, torch.Tensor):
                each.stays_on_host = True  # its sections are read by the host
    if info.name == "nn.functional.multi_head_attention_forward":
        sample.args = (*sample.args[:9], 0.0, *sample.args[10:])  # without dropout
    return sample


def samples(
    info: Any, dtype: torch.dtype, count: int, *, gradient: bool = False, seed: int = 7, first: int = 0
) -> list[Any]:
    """Return up to `count` samples, spread over those of the catalogue; their tensors are on the host.

    `first`: the number of samples of the same spread to leave out, because another type has them.
    """
    with seeded(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Not `info.sample_inputs`, which inspects the stack for the name of the test.
        made = itertools.islice(info.sample_inputs_func(info, "cpu", dtype, gradient), MOST)
        found = [_prepared(info, each) for each in made if _fits(info.name, each)]
    # By the golden ratio: equal steps would select the same argument of a nested list again and again.
    full = [each for each in found if not _is_empty(each)]
    places = range(first, first + count)
    chosen = sorted({int(place * 0.6180339887 * len(full)) % len(full) for place in places}) if full else []
    more = [each for each in range(len(full)) if each not in chosen]
    chosen = sorted([*chosen, *more[: count - len(chosen)]])
    if not gradient:
        chosen = with_each_rank(chosen, [_rank(each) for each in full])
    empty = [each for each in found if _is_empty(each)]
    if empty and len(chosen) >= 3:
        return [*(full[each] for each in chosen[:-1]), empty[0]]
    return [full[each] for each in chosen] or empty[:count]


def with_each_rank(chosen: list[int], ranks: list[int]) -> list[int]:
    """Return as many places with as many different numbers of dimensions as exist: each number has its own kernels.

    `chosen`: places. `ranks`: the number of dimensions at each place. The last place of a number that occurs more than
    once is replaced by the first place of a missing number.
    """
    kept = list(chosen)
    for rank in sorted({*ranks} - {ranks[place] for place in kept}):
        had = [ranks[place] for place in kept]
        repeated = [number for number, each in enumerate(had) if had.count(each) > 1]
        if not repeated:
            break
        kept[repeated[-1]] = ranks.index(rank)
    return sorted(kept)


def _rank(sample: Any) -> int:
    """Return the number of dimensions of the first tensor of a sample; -1 without a tensor."""
    tensors = (each for each in nested.leaves(arguments(sample)) if isinstance(each, torch.Tensor))
    return next((each.dim() for each in tensors), -1)


def _is_empty(sample: Any) -> bool:
    """Return whether a tensor of the sample has no elements."""
    return any(isinstance(each, torch.Tensor) and not each.numel() for each in nested.leaves(arguments(sample)))


def move(value: Any, device: torch.device) -> Any:
    """Return a structure with its tensors on the device; strides and storage are as on the host."""

    def to(each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            return _moved(each, device)
        if isinstance(each, torch.device) and device.type != "cpu":
            return device
        if isinstance(each, str) and each == "cpu":
            return str(device)
        return each

    return nested.mapped(to, value)


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type == "cpu" or getattr(tensor, "stays_on_host", False):
        return copied(tensor)
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage(), 0, (count,), (1,)).to(device)
    made = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return made.detach().requires_grad_(tensor.requires_grad)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor on the host with the same strides, offset and storage size."""
    if tensor.layout != torch.strided:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    if tensor.is_conj() or tensor.is_neg():
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    storage = tensor.untyped_storage().clone()
    made = torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return made.requires_grad_(tensor.requires_grad)


def arguments(sample: Any) -> tuple[Any, Any, Any]:
    """Return input, positional and named arguments of a sample."""
    return sample.input, tuple(sample.args), dict(sample.kwargs)


def leaves(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a structure that require a gradient."""
    return [each for each in nested.leaves(value) if isinstance(each, torch.Tensor) and each.requires_grad]


def has_dimensions(each: Any) -> bool:
    """Return whether a value is a tensor with strides."""
    return isinstance(each, torch.Tensor) and each.layout == torch.strided and each.dim() > 0


def is_image(each: Any) -> bool:
    """Return whether a value is a tensor whose channels may be last in memory."""
    return has_dimensions(each) and each.dim() in (4, 5)


def of_each_argument(found: Iterable[Any], counts: Callable[[Any], bool] = has_dimensions) -> dict[int | str, Any]:
    """Return a sample for each argument that is an array in some sample: that in which its smallest one is largest.

    The key is the position of the argument, 0 for the input, or its name. `counts`: which arrays count.
    """
    chosen: dict[int | str, Any] = {}
    most: dict[int | str, int] = {}
    for sample in found:
        first, others, named = arguments(sample)
        for key, value in [*enumerate((first, *others)), *named.items()]:
            least = min((each.numel() for each in nested.leaves(value) if counts(each)), default=0)
            if least > most.get(key, 1):
                chosen[key], most[key] = sample, least
    return chosen


def with_changed(given: Any, key: int | str, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the arguments of a call with each array of one of them changed. `key`: as in `of_each_argument`."""

    def changed(value: Any) -> Any:
        return nested.mapped(lambda each: change(each) if has_dimensions(each) else each, value)

    first, others, named = given
    if isinstance(key, str):
        return first, others, {**named, key: changed(named[key])}
    first, *others = [changed(each) if place == key else each for place, each in enumerate((first, *others))]
    return first, tuple(others), named
