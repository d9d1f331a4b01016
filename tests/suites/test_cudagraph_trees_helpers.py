"""The helper of the suite for trees: it counts, compares, listens and restores, without a GPU."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from suites.cudagraph_trees import _torch_private as private
from suites.cudagraph_trees import trees
from suites.cudagraph_trees.splits import SPLITS
from suites.cudagraph_trees.trees import CUDAGRAPHS, Counts, Watch

ONE = torch.ones(3)


@pytest.mark.parametrize(
    ("found", "flat"),
    [
        pytest.param(ONE, [ONE], id="a_tensor"),
        pytest.param((ONE, [ONE, 3], None), [ONE, ONE, 3, None], id="nested"),
        pytest.param("text", ["text"], id="a_value"),
    ],
)
def test_values_are_flat_and_copied(found: object, flat: list[object]) -> None:
    values = trees.values(found)

    trees.assert_same(values, flat, "here")
    assert all(value is not ONE for value in values)


@pytest.mark.parametrize(
    ("found", "wanted", "complaint"),
    [
        pytest.param([ONE], [ONE, ONE], "here: 1 values, not 2", id="fewer"),
        pytest.param([ONE * 2], [ONE], "here: value 0: ", id="another_value"),
        pytest.param([ONE.double()], [ONE], "here: value 0: ", id="another_type"),
        pytest.param([ONE, torch.ones(4)], [ONE, ONE], "here: value 1: ", id="another_shape"),
        pytest.param([3], [ONE], "here: value 0 is 3, not a tensor", id="no_tensor"),
        pytest.param([3], [4], "here: value 0 is 3, not 4", id="another_number"),
    ],
)
def test_what_differs_is_named(found: list[object], wanted: list[object], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        trees.assert_same(found, wanted, "here")


def test_a_difference_within_the_bound_is_none() -> None:
    trees.assert_same([ONE + 1e-4], [ONE], "here", within=1e-3)


def changing(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.clone()


@pytest.mark.parametrize(
    ("work", "eager", "complaint"),
    [
        pytest.param(lambda x: x + 1, lambda x: x + 1, None, id="equal"),
        pytest.param(lambda x: x + 2, lambda x: x + 1, "call 0: value 0", id="another_result"),
        pytest.param(changing, lambda x: x + 1, "arguments of call 0: value 0", id="another_change"),
    ],
)
def test_compiled_calls_are_compared_with_eager_ones(
    work: Callable[[torch.Tensor], torch.Tensor],
    eager: Callable[[torch.Tensor], torch.Tensor],
    complaint: str | None,
) -> None:
    calls = trees.repeated(lambda number: [torch.full((3,), float(number))], 3)
    with trees.watched() as watch:
        if complaint is None:
            assert trees.compare(work, calls, CUDAGRAPHS, watch, eager=eager) == Counts(skips=1)
            assert "cpu device" in watch.reasons()[0]
        else:
            with pytest.raises(AssertionError, match=complaint):
                trees.compare(work, calls, CUDAGRAPHS, watch, eager=eager)


def test_a_watch_tells_what_happened_since_it_was_asked() -> None:
    watch = Watch([])
    for kind in ("_warm_ups", "_recordings", "_replays", "_replays"):
        watch.saw(kind)

    assert watch.counts() == Counts(1, 1, 2, 0)
    assert watch.counts() == Counts()


def test_reasons_are_messages_of_skips() -> None:
    watch = Watch(["skipping cudagraphs due to x", "Recording cudagraph tree", "something due to y"])

    assert watch.reasons() == ["skipping cudagraphs due to x"]


def test_the_managers_methods_are_counted_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = private.manager_class()
    called: list[object] = []
    monkeypatch.setattr(manager, "execute_node", lambda *arguments: called.append(arguments))
    before = manager.execute_node

    with trees.watched() as watch:
        manager.execute_node("self", "node", [])
        assert watch.counts() == Counts(replays=1)

    assert called == [("self", "node", [])]
    assert manager.execute_node is before


def test_loggers_are_as_they_were() -> None:
    logger: logging.Logger = private.utilities("cudagraphs_log")
    before = logger.level, logger.propagate, logger.handlers[:]

    with private.messages(logging.DEBUG) as heard:
        logger.debug("a %s", "message")
    with private.messages(logging.WARNING) as only_warnings:
        logger.debug("another")
        logger.warning("a warning")

    assert heard == ["a message"]
    assert only_warnings == ["a warning"]
    assert (logger.level, logger.propagate, logger.handlers) == before


def test_generated_modules_are_as_they_were() -> None:
    name = "torch._inductor.runtime.compile_tasks.of_this_test"
    module = ModuleType(name)
    sys.modules[name] = module
    try:
        with private.generated_modules_stay():
            sys.modules[name] = ModuleType(name)
        assert sys.modules[name] is module
    finally:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        (lambda: private.config({"triton.no_such": 1}), "triton.no_such"),
        (lambda: private.dynamo_config(no_such=1), "no_such"),
    ],
)
def test_what_torch_lacks_skips_the_case(missing: Callable[[], object], names: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=names):
        missing()


def test_every_split_is_named_and_covers_a_row() -> None:
    assert len(SPLITS) > 30
    for name, split in SPLITS.items():
        assert split.work.__name__ == name
        assert split.rows
        assert split.parts is None or split.sizes == 1, f"{name}: parts are counted for one size"
