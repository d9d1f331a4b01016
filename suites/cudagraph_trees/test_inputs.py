"""Inputs that trees do not copy: parameters and marked tensors, outputs of other graphs, and what is changed in place.

A static input is read where it lies. If it moves, the graph is recorded again, without compiling again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from suites._torch_private_compiled import counter

from . import _torch_private as private
from . import operators, trees
from .kept import BROKEN, KEPT_BROKEN
from .trees import Counts, both_compilers, compiled, on_cuda, repeated, watched, whole_numbers, with_triton

ROW = "test_cudagraph_trees::CudaGraphTreeTests::"

pytestmark = [on_cuda, pytest.mark.timeout(trees.LIMIT)]


class Weighted(torch.nn.Module):
    """A product with a parameter, a sum with a buffer; whole numbers."""

    def __init__(self, device: torch.device, start: int = 0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(whole_numbers(8, 8, device=device, start=start))
        self.register_buffer("offset", whole_numbers(8, device=device, start=start + 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.offset


class Inlined(torch.nn.Module):
    """The same out of torch's modules, one inside the other."""

    def __init__(self, device: torch.device, start: int = 0) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.ReLU())
        self.norm = torch.nn.BatchNorm1d(8).eval()
        with torch.no_grad():
            self.inner[0].weight.copy_(whole_numbers(8, 8, device=device, start=start))
            self.norm.running_mean.fill_(start)  # type: ignore[union-attr, operator]
        self.to(device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) - self.norm.running_mean
        return out


MODULES: dict[str, Callable[..., torch.nn.Module]] = {
    "parameters": Weighted,
    "linear": lambda device, _: torch.nn.Linear(8, 8, bias=False, device=device),
    "inlined": Inlined,
}


def batch(device: torch.device) -> Callable[[int], list[torch.Tensor]]:
    return lambda number: [whole_numbers(4, 8, device=device, start=number)]


# Parameters and other static inputs


@with_triton
def test_static_input_weights_that_change_in_place_are_seen(device: torch.device) -> None:
    """Contract: a replay reads parameters where they lie, so what an optimiser writes there shows in the next replay
    without a recording."""
    module = Weighted(device)
    with watched() as watch, torch.no_grad():
        fast = compiled(module, trees.INDUCTOR)
        for number in range(5):
            (x,) = batch(device)(number)
            trees.assert_same(trees.values(fast(x)), [module(x)], f"call {number}")
            module.weight.add_(1)
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=3)


@with_triton
@pytest.mark.covers(f"{ROW}test_frozen_fn")
def test_freezing_makes_weights_constants_of_the_code(device: torch.device) -> None:
    """Contract: with `freezing`, what depends on weights alone is computed once, when the code is compiled, and replays
    read the result. So weights can no longer be updated: a change does not show there."""

    class Doubled(Weighted):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.weight * 2) + self.offset

    module = Doubled(device)
    with watched(freezing=True) as watch, torch.no_grad():
        fast = compiled(module, trees.INDUCTOR)
        at_first = module.weight * 2
        for number in range(5):
            (x,) = batch(device)(number)
            trees.assert_same(trees.values(fast(x)), [x @ at_first + module.offset], f"call {number}")
            module.weight.add_(1)
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=3)


@with_triton
@pytest.mark.covers(
    f"{ROW}test_constant_output",
    f"{ROW}test_alias_of_parameter",
    f"{ROW}test_aliased_static_parameter",
    f"{ROW}test_aliasing_static_ref",
    f"{ROW}test_aliasing_static_ref_no_graph_partition",
)
@pytest.mark.parametrize("partition", [True, False], ids=["partition", "whole"])
def test_outputs_that_alias_parameters_share_their_memory(partition: bool, device: torch.device) -> None:
    """Contract: a parameter, a view of it and a view of a view may be outputs: each is the memory of the parameter,
    whatever is replayed, and later graphs may take them."""
    parameter = torch.nn.Parameter(whole_numbers(8, 4, device=device))

    def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return parameter, parameter[2:6], parameter.t()[1:], parameter + x

    with watched(graph_partition=partition), torch.no_grad():
        fast, below = compiled(work, trees.INDUCTOR), compiled(lambda y: y * 2 + 1, trees.INDUCTOR)
        memory = parameter.untyped_storage().data_ptr()
        for number in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(8, 4, device=device, start=number)
            found, wanted = fast(x), work(x)
            trees.assert_same(trees.values(found), trees.values(wanted), f"call {number}")
            assert [one.untyped_storage().data_ptr() == memory for one in found] == [True, True, True, False]
            trees.assert_same(trees.values(below(found[1])), [wanted[1] * 2 + 1], f"call {number}, below")
            parameter.add_(1)
            del found, wanted


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="trees"),
        pytest.param({"triton__cudagraph_trees": False}, id="one_by_one"),
        pytest.param({"triton__cudagraphs": False}, id="no_graphs"),
    ],
)
@with_triton
@pytest.mark.covers(
    f"{ROW}test_unaligned_static_input_trees",
    f"{ROW}test_unaligned_static_input_non_trees",
    f"{ROW}test_unaligned_static_input_no_cudagraphs",
    f"{ROW}test_unaligned_static_parameter",
)
def test_inputs_at_unaligned_addresses(settings: dict[str, Any], device: torch.device) -> None:
    """Contract: kernels for aligned memory may be given tensors that are not: inputs and parameters that begin four
    bytes behind a boundary give the results of eager runs, in every mode."""
    storage = whole_numbers(65, device=device)
    parameter = torch.nn.Parameter(storage[1:33].detach())

    assert parameter.data_ptr() % 16 != 0

    def work(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + parameter

    options: dict[str, Any] = {} if settings else {"mode": "reduce-overhead"}
    with watched(**({"triton__cudagraphs": True} | settings)) as watch, torch.no_grad():
        fast = torch.compile(work, **options)
        for number in range(5):
            aligned = whole_numbers(33, device=device, start=number)
            x = aligned[1:]
            assert x.data_ptr() % 16 != 0
            trees.assert_same(trees.values(fast(x)), [work(x)], f"call {number}, odd")
            trees.assert_same(trees.values(fast(x.clone())), [work(x)], f"call {number}, aligned")
        assert watch.counts() == (Counts() if settings else Counts(warm_ups=1, recordings=1, replays=8))


@with_triton
@pytest.mark.covers(f"{ROW}test_opaque_value_input_cudagraph")
@pytest.mark.requires(torch=">=2.12")
def test_inputs_of_opaque_objects_that_only_operators_look_into(device: torch.device) -> None:
    """Contract: an object that is no tensor may be an input of a recorded function; it is not copied as one. Replays
    are right for other tensors and other objects of the same value; one of another value is compiled and recorded for
    itself, and the first is still replayed."""
    scales = {factor: operators.Scale(factor) for factor in (2.0, 3.0)}

    def work(x: torch.Tensor, scale: operators.Scale) -> torch.Tensor:
        result: torch.Tensor = operators.scaled(x + 1, scale) * 2
        return result

    with watched() as watch, torch.no_grad():
        fast = compiled(work, trees.INDUCTOR)
        for factor in (2.0, 3.0, 2.0):
            for number in range(3):
                x = whole_numbers(8, device=device, start=number)
                scale = operators.Scale(factor) if number == 2 else scales[factor]
                trees.assert_same(trees.values(fast(x, scale)), [(x + 1) * factor * 2], f"factor {factor}, {number}")
        assert watch.counts() == Counts(warm_ups=2, recordings=2, replays=5)


# What is recorded again because a static input has moved


@pytest.mark.parametrize("name", MODULES)
@with_triton
@pytest.mark.covers(
    f"{ROW}test_multi_dispatch_single_compile_param_inputs",
    f"{ROW}test_multi_dispatch_single_compile_builtin_module",
    f"{ROW}test_multi_dispatch_single_compile_builtin_module_buffers",
    f"{ROW}test_multi_dispatch_custom_module",
    f"{ROW}test_multi_dispatch_custom_module_buffer",
    f"{ROW}test_rerecord_if_static_input_address_changed",
)
def test_recordings_of_modules_of_one_class_share_the_code(name: str, device: torch.device) -> None:
    """Contract: two modules with the same code have one compiled graph and a recording each, since their parameters
    lie elsewhere; called in turn, each gives its own results, and nothing is recorded again."""
    made = [MODULES[name](device, start) for start in (0, 4)]
    with torch.no_grad():
        for number, module in enumerate(made):
            for parameter in module.parameters():
                parameter.copy_(whole_numbers(*parameter.shape, device=device, start=number * 3))
    with watched() as watch, torch.no_grad():
        before = counter("stats", "unique_graphs")
        fast = [compiled(module, trees.INDUCTOR) for module in made]
        for number in range(8):
            (x,) = batch(device)(number)
            which = number % 2
            trees.assert_same(trees.values(fast[which](x)), [made[which](x)], f"call {number}")
        counts = watch.counts()
        assert counter("stats", "unique_graphs") - before == 1
    assert counts.recordings == 2
    assert counts.warm_ups <= 2
    assert counts.warm_ups + counts.recordings + counts.replays == 8
    assert counts.skips == 0


@with_triton
@pytest.mark.covers(f"{ROW}test_rerecord_if_static_input_address_changed", f"{ROW}test_rerecording_logs_reason")
def test_static_input_that_moved_is_recorded_again_and_logged(device: torch.device) -> None:
    """Contract: after a parameter has moved to other memory the call is recorded again, for this once, and the log for
    debugging says that a static input's address changed."""
    module = Weighted(device)
    with watched(debug=True) as watch, torch.no_grad():
        fast = compiled(module, trees.INDUCTOR)
        for number in range(3):
            (x,) = batch(device)(number)
            trees.assert_same(trees.values(fast(x)), [module(x)], f"call {number}")
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=1)
        old = module.weight.data
        module.weight.data = old + 2
        for number in range(3):
            (x,) = batch(device)(number)
            trees.assert_same(trees.values(fast(x)), [module(x)], f"call {number} after the move")
        counts = watch.counts()
        assert (counts.recordings, counts.replays) == (1, 2)
        assert any(
            "Re-recording" in message and "static input data pointer changed" in message for message in watch.messages()
        )


@with_triton
@pytest.mark.covers(f"{ROW}test_no_rerecord_with_mark_static_address")
def test_mark_static_address_input_is_not_copied(device: torch.device) -> None:
    """Contract: an input marked with `torch._dynamo.mark_static_address` is not copied for a replay but read where it
    lies, and its content may change there."""
    marked = whole_numbers(8, 8, device=device)
    torch._dynamo.mark_static_address(marked)
    with watched() as watch:
        fast = compiled(lambda x, y: x @ y, trees.INDUCTOR)
        for number in range(5):
            x = whole_numbers(4, 8, device=device, start=number)
            marked.add_(number)
            trees.assert_same(trees.values(fast(x, marked)), [x @ marked], f"call {number}")
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=3)
        marked.data = marked.data + 2  # elsewhere: what reads it where it lies is recorded for the new place
        for number in range(3):
            x = whole_numbers(4, 8, device=device, start=number)
            trees.assert_same(trees.values(fast(x, marked)), [x @ marked], f"call {number} after the move")
        assert watch.counts() == Counts(recordings=1, replays=2)


@with_triton
@pytest.mark.covers(f"{ROW}test_multi_dispatch_parent_node", f"{ROW}test_multi_dispatch_child_node")
@pytest.mark.parametrize("moving", ["parent", "child"])
def test_static_input_that_moved_in_a_path_of_two_graphs(moving: str, device: torch.device) -> None:
    """Contract: in a path of two graphs, whichever has other parameters is recorded again where it stands; the other
    is replayed if what it reads is where it was, and results are right in every order."""
    first, second = ([Weighted(device, start), Weighted(device, start + 3)] for start in (0, 7))
    with watched() as watch, torch.no_grad():
        one = compiled(lambda module, x: module(x) % 7, trees.INDUCTOR)
        two = compiled(lambda module, x: module(x) - 1, trees.INDUCTOR)
        for step in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            which = step // 2 % 2
            a, b = first[which if moving == "parent" else 0], second[which if moving == "child" else 0]
            x = whole_numbers(4, 8, device=device, start=step)
            y = one(a, x)
            z = two(b, y)
            trees.assert_same(trees.values([y, z]), [a(x) % 7, b(a(x) % 7) - 1], f"step {step}")
            del y, z
        counts = watch.counts()
        paths = private.descendants(device)
    # A child stands below the parent's recording: another parent has a child of its own, another child the old parent.
    assert paths == ([1, 1] if moving == "parent" else [2])
    recordings = 4 if moving == "parent" else 3
    assert counts == Counts(warm_ups=2, recordings=recordings, replays=22 - recordings)


@with_triton
@pytest.mark.covers(
    f"{ROW}test_not_fallback_to_eager_if_have_not_recompiling_too_many_times",
    f"{ROW}test_param_ptr_churn_does_not_count_toward_rerecord_limit",
)
@pytest.mark.requires(torch=">=2.13")
def test_static_inputs_that_move_do_not_use_up_the_rerecord_limit(device: torch.device) -> None:
    """Contract: recordings because parameters moved do not count as unexpected: far beyond the limit, calls are still
    recorded and replayed, not given up."""
    module = Weighted(device)
    with watched(triton__cudagraph_unexpected_rerecord_limit=1) as watch, torch.no_grad():
        fast = compiled(module, trees.INDUCTOR)
        kept = []
        for number in range(8):
            (x,) = batch(device)(number)
            kept.append(module.weight.data)
            module.weight.data = module.weight.data.clone()
            trees.assert_same(trees.values(fast(x)), [module(x)], f"call {number}")
        assert watch.counts() == Counts(warm_ups=1, recordings=7)
        for number in range(3):  # it stays where it is
            (x,) = batch(device)(number)
            trees.assert_same(trees.values(fast(x)), [module(x)], f"call {number} at the last place")
        assert watch.counts() == Counts(replays=3)


# Inputs that the function changes in place


@both_compilers
@pytest.mark.covers(f"{ROW}test_mutation_on_inp")
def test_mutated_input_of_the_program_is_skipped(compiler: str, device: torch.device) -> None:
    """Contract: a function that changes a tensor of the program's own cannot be replayed on a copy: it is skipped,
    once, with the reason and the line; the change is made once a call."""

    def work(x: torch.Tensor) -> torch.Tensor:
        x.add_(2)
        return x * 3

    keep = {"cudagraph_backend_keep_input_mutation": True, "cudagraph_backend_support_input_mutation": True}
    with private.dynamo_config(**keep), watched(triton__cudagraph_support_input_mutation=True) as watch:
        calls = repeated(lambda n: [whole_numbers(8, device=device, start=n)], 4)
        counts = trees.compare(work, calls, compiler, watch)
        assert counts == Counts(skips=1)
        (reason,) = watch.reasons()
        assert "mutated inputs (1 instances)" in reason
        assert "add_(2)" in reason


@with_triton
@pytest.mark.covers(f"{ROW}test_mutation_on_inp", f"{ROW}test_tensor_constant_mutation")
def test_mutated_buffer_is_recorded(device: torch.device) -> None:
    """Contract: buffers and parameters may be changed by the function: warm-up, recording and each replay change them
    once, as an eager call does."""

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(8, device=device))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(x)
            return self.calls * 2

    module, eager = Counting(), Counting()
    with watched() as watch:
        fast = compiled(module, trees.INDUCTOR)
        for number in range(6):
            x = whole_numbers(8, device=device, start=number)
            trees.assert_same(trees.values(fast(x)), [eager(x)], f"call {number}")
            assert torch.equal(module.calls, eager.calls)  # type: ignore[arg-type]
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=4)


@both_compilers
@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.covers(
    f"{ROW}test_mutation_cudagraph_managed_tensors",
    f"{ROW}test_mutation_cudagraph_managed_tensors_config",
    f"{ROW}test_mutation_cudagraph_managed_tensor_warn",
    f"{ROW}test_mutation_cudagraph_managed_tensor_warn_only_once",
)
def test_mutated_output_of_another_graph(supported: bool, compiler: str, device: torch.device) -> None:
    """Contract: the output of a graph, changed in place by the next, is memory of the trees: recorded where that is
    supported, skipped once where the setting says no. The same function is skipped for a tensor of the program's, with
    one message however often it is called."""

    def change(x: torch.Tensor) -> torch.Tensor:
        x.add_(2)
        return x * 5

    keep = {"cudagraph_backend_keep_input_mutation": True, "cudagraph_backend_support_input_mutation": supported}
    with private.dynamo_config(**keep), watched(triton__cudagraph_support_input_mutation=supported) as watch:
        make, fast = compiled(lambda x: x + 1, compiler), compiled(change, compiler)
        for step in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(8, device=device, start=step)
            y = make(x)
            z = fast(y)
            trees.assert_same(trees.values([y, z]), [x + 3, (x + 3) * 5], f"step {step}")
            del y, z
        counts = watch.counts()
        assert (counts.recordings, counts.skips) == ((2, 0) if supported else (1, 1))
        for step in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            mine = whole_numbers(8, device=device, start=step)
            trees.assert_same(trees.values(fast(mine)), [(whole_numbers(8, device=device, start=step) + 2) * 5], "mine")
            assert torch.equal(mine, whole_numbers(8, device=device, start=step) + 2)
        assert watch.counts().skips == (1 if supported else 0)
        assert len(watch.reasons()) == 1


@both_compilers
@pytest.mark.covers(f"{ROW}test_mutation_reinplaced")
def test_mutated_out_argument_is_skipped(compiler: str, device: torch.device) -> None:
    """Contract: writing into an `out` argument changes an input of the program's, also where the compiler makes the
    operation in-place by itself: skipped with that reason, and right."""

    def work(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.logical_xor(x, y, out=out)

    keep = {"cudagraph_backend_keep_input_mutation": True, "cudagraph_backend_support_input_mutation": True}
    with private.dynamo_config(**keep), watched() as watch:
        shape = (1, 2, 1, 4, 3, 2)
        calls = repeated(
            lambda n: [
                whole_numbers(*shape, device=device, start=n),
                whole_numbers(*shape, device=device, start=2 * n) % 3,
                torch.zeros(shape, device=device, dtype=torch.bool),
            ],
            4,
        )
        counts = trees.compare(work, calls, compiler, watch)
        assert (counts.recordings, counts.replays) == (0, 0)
        assert any("mutated inputs" in reason for reason in watch.reasons())


@with_triton
@pytest.mark.covers(f"{ROW}test_input_storage_mutation_skips_cudagraphs")
@pytest.mark.requires(torch=">=2.13")
@pytest.mark.keeps(BROKEN, **KEPT_BROKEN)  # by `set_`
def test_set_of_an_input_gives_other_memory_in_each_call(device: torch.device) -> None:
    """Contract: a function that gives an input other memory (`set_`) gives it in each call, with that call's values,
    whatever of it is recorded."""

    def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.set_(y * 2)  # type: ignore[call-overload]
        return x + 1

    with watched():
        fast = compiled(work, trees.INDUCTOR)
        for number in range(4):
            x, y = torch.zeros(8, device=device), whole_numbers(8, device=device, start=number)
            found = trees.values(fast(x, y))
            trees.assert_same([*found, x.clone()], [y * 2 + 1, y * 2], f"call {number}")
