"""`cudagraph_policy`: a user-defined object that decides how compiled graphs become CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from . import _torch_private as private
from . import operators, trees
from .trees import Counts, repeated, watched, whole_numbers, with_triton

ROW = "test_cudagraph_trees::TestCUDAGraphPolicy::test_"

pytestmark = [pytest.mark.requires(torch=">=2.12"), pytest.mark.timeout(trees.LIMIT)]

cpp = pytest.mark.requires(cpp_compiler=True)


def in_parts(x: torch.Tensor) -> torch.Tensor:
    return operators.unsafe_twice(x @ x) @ x


def in_one(x: torch.Tensor) -> torch.Tensor:
    return (x @ x) * 2 + 1


def recording_policy(wraps: bool = True) -> Any:
    """Return a policy that follows torch's default and records its calls in `asked`.

    With `wraps=False`, it declines to wrap.
    """
    base: Any = private.utilities("CUDAGraphPolicy")

    class Recording(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.asked: list[str] = []

        def cudagraphify(self, model: Callable[..., Any], *arguments: Any, **keywords: Any) -> Callable[..., Any]:
            self.asked.append("cudagraphify")
            wrapped: Callable[..., Any] = super().cudagraphify(model, *arguments, **keywords)
            return wrapped

        def should_wrap(self, compiled_graph: object) -> bool:
            assert compiled_graph is not None
            self.asked.append("should_wrap")
            return wraps

        def wrap_output(self, output_code: Any) -> Any:
            self.asked.append("wrap_output")
            return super().wrap_output(output_code)

    return Recording()


def run(
    work: Callable[..., Any], device: torch.device, policy: Any, calls: int = 4, **settings: Any
) -> tuple[Counts, trees.Watch]:
    made = repeated(lambda n: [whole_numbers(8, 8, device=device, start=n) % 4], calls)
    with watched(cudagraph_policy=policy, **settings) as watch:
        return trees.compare(work, made, trees.INDUCTOR, watch), watch


def test_cudagraph_policy_by_default_wraps_every_graph() -> None:
    """The base class wraps every graph and returns the compiled code unchanged."""
    policy = private.utilities("CUDAGraphPolicy")()
    code = object()
    assert policy.should_wrap(code) is True
    assert policy.wrap_output(code) is code


@cpp
@pytest.mark.covers(f"{ROW}wrap_output_called")
def test_cudagraph_policy_wrap_output_is_called_on_the_cpu_too() -> None:
    """`wrap_output` receives the compiled code once per graph on any device; CPU graphs do not reach `cudagraphify`."""
    policy = recording_policy()
    counts, _ = run(in_one, torch.device("cpu"), policy, calls=3)
    assert counts == Counts(skips=1)
    assert policy.asked.count("wrap_output") == 1
    assert "cudagraphify" not in policy.asked


@cpp
def test_cudagraph_policy_wrap_output_may_replace_what_is_called() -> None:
    """A policy that wraps the compiled code sees each call of it."""
    base: Any = private.utilities("CUDAGraphPolicy")
    called: list[int] = []

    class Counting(base):  # type: ignore[misc]
        def wrap_output(self, output_code: Any) -> Any:
            inner = output_code.current_callable

            def counted(inputs: Any) -> Any:
                called.append(len(inputs))
                return inner(inputs)

            output_code.current_callable = counted
            return output_code

    run(in_one, torch.device("cpu"), Counting(), calls=3)
    assert called == [1, 1, 1]


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partition"])
@with_triton
@pytest.mark.covers(f"{ROW}policy_cudagraphify_called", f"{ROW}wrap_output_called")
def test_cudagraph_policy_cudagraphify_is_called_once_per_graph(partition: bool, device: torch.device) -> None:
    """`cudagraphify` is called once per graph, and its result runs.

    With torch's default, the result warms up, records and replays.
    """
    policy = recording_policy()
    counts, _ = run(in_one, device, policy, graph_partition=partition)
    assert counts == Counts(1, 1, 2)
    assert policy.asked.count("cudagraphify") == 1
    assert policy.asked.count("wrap_output") == 1


@with_triton
@pytest.mark.covers(f"{ROW}policy_cudagraphify_partition")
def test_cudagraph_policy_is_given_a_partitioned_graph_as_a_whole(device: torch.device) -> None:
    """With a policy, a graph that would be partitioned is passed to it as a whole.

    This policy uses no CUDA graphs, because parts of the graph cannot be captured.
    """
    base: Any = private.utilities("CUDAGraphPolicy")
    given: list[Callable[..., Any]] = []

    class Plain(base):  # type: ignore[misc]
        def cudagraphify(self, model: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
            given.append(model)
            return model

    counts, _ = run(in_parts, device, Plain(), graph_partition=True)
    assert counts == Counts()
    assert len(given) == 1


@pytest.mark.parametrize(
    ("work", "partition"),
    [
        pytest.param(in_one, False, id="whole", marks=pytest.mark.covers(f"{ROW}default_policy_matches_builtin")),
        pytest.param(
            in_one, True, id="partition", marks=pytest.mark.covers(f"{ROW}default_policy_matches_builtin_partition")
        ),
    ],
)
@with_triton
def test_cudagraph_policy_by_default_does_as_torch_does(
    work: Callable[..., Any], partition: bool, device: torch.device
) -> None:
    """The base class as policy gives the same warm-ups, recordings, replays and results as no policy."""
    policies = [private.utilities("CUDAGraphPolicy")(), None]
    first, second = (run(work, device, policy, graph_partition=partition)[0] for policy in policies)
    assert first == second == Counts(1, 1, 2)


@pytest.mark.parametrize("outer", [False, True], ids=["alone", "with_outer_hook"])
@with_triton
@pytest.mark.covers(f"{ROW}should_wrap_false_skips_cudagraph", f"{ROW}should_wrap_false_with_wrap_output")
def test_cudagraph_policy_should_wrap_can_return_false(outer: bool, device: torch.device) -> None:
    """If `should_wrap` returns False, nothing is recorded and the graph counts as skipped.

    `wrap_output` is still called.
    """
    policy = recording_policy(wraps=False)
    counts, _ = run(in_one, device, policy)
    assert counts == Counts(skips=1)
    assert "cudagraphify" not in policy.asked
    if outer:
        assert policy.asked.count("wrap_output") == 1
