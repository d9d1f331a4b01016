"""torch's sample inputs of indexing operators, run as CUDA graphs and compared with eager runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from suites.reaching import reach

from . import trees
from .trees import CUDAGRAPHS, Counts, compiled, on_cuda, watched

pytestmark = pytest.mark.timeout(trees.LIMIT)

#: Operators of torch's sample table that gather, scatter and index, by name and variant.
INDEXING = (
    "__getitem__",
    "gather",
    "scatter",
    "scatter_add",
    "index_select",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "take",
    "take_along_dim",
    "put",
    "masked_fill",
    "masked_scatter",
    "select",
    "select_scatter",
    "slice",
    "slice_scatter",
    "diagonal_scatter",
)

#: The samples per operator: enough for every kind of index, few enough to compile each.
SAMPLES = 6


#: Operators that read a value given as a tensor back to the host (`item`), which no capture permits.
READING_VALUES = ("index_fill", "masked_fill")


def sample_table() -> dict[str, Any]:
    operators = reach("torch.testing._internal.common_methods_invocations.op_db")
    return {one.name: one for one in operators if not one.variant_test_name}


def moved(value: Any, device: torch.device) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to(device), value)


def samples(name: str, device: torch.device) -> list[tuple[Callable[..., Any], list[Any], dict[str, Any]]]:
    one = sample_table().get(name)
    if one is None:
        pytest.skip(f"torch {torch.__version__} has no samples of {name}")
    found = []
    listed = list(one.sample_inputs("cpu", torch.float32))
    if name in READING_VALUES:
        listed = [sample for sample in listed if not isinstance(sample.args[-1], torch.Tensor)]
    for sample in listed[:SAMPLES]:
        arguments = [moved(value, device) for value in (sample.input, *sample.args)]
        found.append((one.get_op(), arguments, {key: moved(value, device) for key, value in sample.kwargs.items()}))
    assert found, f"no samples of {name}"
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in INDEXING[::4] else pytest.mark.extended) for name in INDEXING]
)
@pytest.mark.covers("test_cudagraph_trees::TestCudagraphIndexingOps::test_cudagraph_indexing_ops")
def test_cudagraphs_backend_skips_indexing_without_a_gpu(name: str) -> None:
    """On the host, the backend "cudagraphs" skips each sample with that reason and gives the eager results."""
    with watched() as watch:
        for number, (operator, arguments, keywords) in enumerate(samples(name, torch.device("cpu"))):
            check(operator, arguments, keywords, f"{name}, sample {number}", calls=2)
            torch.compiler.reset()
        counts = watch.counts()
        assert (counts.warm_ups, counts.recordings, counts.replays) == (0, 0, 0)
        assert all("cpu device" in reason for reason in watch.reasons())
        assert watch.reasons()


@pytest.mark.parametrize("name", INDEXING)
@on_cuda
@pytest.mark.covers("test_cudagraph_trees::TestCudagraphIndexingOps::test_cudagraph_indexing_ops")
def test_cudagraphs_backend_records_indexing(name: str, device: torch.device) -> None:
    """Each sample gives the eager results when warmed up, recorded and replayed.

    Only samples that cannot be captured (with a mask as index) are skipped, with the reason.
    """
    skipped = 0
    with watched() as watch:
        for number, (operator, arguments, keywords) in enumerate(samples(name, device)):
            check(operator, arguments, keywords, f"{name}, sample {number}", calls=4)
            torch.compiler.reset()
            counts = watch.counts()
            skipped += counts.skips
            if not masked(arguments, keywords) or counts.skips == 0:
                assert counts == Counts(warm_ups=1, recordings=1, replays=2), f"{name}, sample {number}"
            else:
                assert counts == Counts(skips=1), f"{name}, sample {number}"
                assert "incompatible op" in watch.reasons()[-1]
        assert len(watch.reasons()) == skipped


#: The gradient of `masked_scatter` selects by a mask, which no graph can contain, but the backend records it.
@pytest.mark.parametrize("name", [name for name in INDEXING if name != "masked_scatter"])
@on_cuda
def test_cudagraphs_backend_gives_the_gradients_of_indexing(name: str, device: torch.device) -> None:
    """Each sample gives the eager gradients when warmed up, recorded and replayed, with other values each time."""
    with watched():
        warnings.filterwarnings("ignore", "The reduce argument of torch.scatter", UserWarning)
        for number, (operator, arguments, keywords) in enumerate(samples(name, device)):
            if "reduce" in keywords and name == "scatter":
                continue  # torch has no derivative
            fast = compiled(lambda *args, f=operator, k=keywords: f(*args, **k), CUDAGRAPHS, dynamic=False)
            for call in range(4):
                shifted = [shift(value, call) for value in arguments]
                wanted, found = (
                    gradients(function, trees.copied(shifted))
                    for function in (lambda *args, f=operator, k=keywords: f(*args, **k), fast)
                )
                assert wanted
                trees.assert_same(found, wanted, f"{name}, sample {number}, call {call}", within=1e-4)
            torch.compiler.reset()


def gradients(function: Callable[..., Any], arguments: list[Any]) -> list[Any]:
    """Return the gradients of a weighted sum of the results, for the floating-point arguments."""
    leaves = [one for one in torch.utils._pytree.tree_leaves(arguments) if is_real(one)]
    for leaf in leaves:
        leaf.requires_grad_()
    # An operator that works in place needs non-leaf tensors.
    results = function(*torch.utils._pytree.tree_map(lambda one: one * 1 if is_real(one) else one, arguments))
    total = sum(
        (result * torch.arange(1.0, result.numel() + 1, device=result.device).reshape(result.shape)).sum()
        for result in torch.utils._pytree.tree_leaves(results)
    )
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return trees.values([torch.zeros(1) if each is None else each.clone() for each in found])


def is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def masked(arguments: list[Any], keywords: dict[str, Any]) -> bool:
    """Return whether the arguments include a mask."""
    leaves = torch.utils._pytree.tree_leaves((arguments, keywords))
    return any(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in leaves)


def check(operator: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any], where: str, calls: int) -> None:
    """Call with different values each time: floating-point tensors are shifted, and indices stay the same.

    Several values may be accumulated into one element in any order, so a difference of a few units in the last place is
    accepted; a wrong index is not.
    """
    warnings.filterwarnings("ignore", "The reduce argument of torch.scatter", UserWarning)  # restored by `watched`
    fast = compiled(lambda *args: operator(*args, **keywords), CUDAGRAPHS, dynamic=False)
    for call in range(calls):
        shifted = [shift(value, call) for value in arguments]
        theirs, ours = trees.copied(shifted), trees.copied(shifted)
        wanted = trees.values(operator(*theirs, **keywords))
        found = trees.values(fast(*ours))
        trees.assert_same(found, wanted, f"{where}, call {call}", within=1e-4)


def shift(value: Any, by: int) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value + by
    return value
