"""The decision code behind trees, which needs no GPU: skips and their reasons, generations, references, metadata."""

from __future__ import annotations

import gc
import logging
import re
from typing import Any

import pytest
import torch

from suites.reaching import reach

from . import _torch_private as private
from .trees import watched

ROW = "test_cudagraph_trees::CudaGraphTreeTests::"


#: Fields of a function to record that exist since torch 2.15: what happens when an input of the trees moves.
RECORDED_AGAIN = {"cudagraph_managed_input_rerecord_limit": 1, "cudagraph_managed_input_rerecord_action": "copy"}

#: Since torch 2.14, an output of a part can be several outputs of the graph; before, it was one or none.
SEVERAL_OUTPUTS = torch.__version__ >= (2, 14)


def placeholder(name: str, line: str | None = None, change: str | None = None) -> Any:
    return private.utilities("PlaceholderInfo")(name, line, [], change)


def device_nodes(*devices: str) -> dict[torch.device, torch.fx.Node]:
    """Return one node per device, with a source line that names the device."""
    graph = torch.fx.Graph()
    nodes = {}
    for number, name in enumerate(devices):
        node = graph.placeholder(f"on_{number}")
        user = graph.call_function(torch.neg, (node,))
        user.meta["stack_trace"] = f"line of {name}"
        nodes[torch.device(name)] = node
    return nodes


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partition"])
@pytest.mark.parametrize(
    ("devices", "whole", "split"),
    [
        pytest.param(["cuda:0"], None, None, id="one_gpu"),
        pytest.param(["cuda:0", "meta"], None, None, id="one_gpu_and_meta"),
        pytest.param(["cuda:0", "cpu"], "cpu device (on_1)", None, id="gpu_and_host"),
        pytest.param(["cpu", "cuda:0"], "cpu device (on_0)", None, id="host_and_gpu"),
        pytest.param(["meta", "cuda:0"], None, None, id="meta_and_one_gpu"),
        pytest.param(["cuda:0", "cuda:1", "cpu"], "cpu device (on_2)", "multiple devices", id="two_gpus_and_host"),
        pytest.param(["cpu"], "cpu device (on_0)", "multiple devices", id="host"),
        pytest.param(["cuda:0", "cuda:1"], "multiple devices", "multiple devices", id="two_gpus"),
        pytest.param(["xpu:0"], "multiple devices", "multiple devices", id="another_kind"),
    ],
)
@pytest.mark.covers(f"{ROW}test_multiple_devices_msg", f"{ROW}test_graph_partition_multiple_devices_msg")
def test_check_multiple_devices_or_any_cpu_nodes(
    devices: list[str], whole: str | None, split: str | None, partition: bool
) -> None:
    """A graph on one GPU can be recorded, and `meta` tensors do not prevent it.

    A CPU node prevents the recording of a whole graph, with its line as the reason, but not of a partitioned one; two
    GPUs always prevent it.
    """
    check = private.utilities("check_multiple_devices_or_any_cpu_nodes")
    with private.config({"triton.cudagraphs": True, "graph_partition": partition}):
        reason = check(device_nodes(*devices))
    expected = split if partition else whole
    if expected is None:
        assert reason is None
    else:
        assert reason.startswith("skipping cudagraphs due to")
        assert expected in reason
        assert ("line of cpu" in reason) == ("cpu device" in expected)


@pytest.mark.parametrize("with_trees", [True, False], ids=["trees", "one_by_one"])
@pytest.mark.parametrize(
    ("changed", "static", "recorded", "counted", "counted_without"),
    [
        pytest.param((), (), (), (), (), id="nothing"),
        pytest.param((0,), (), (), (0,), (0,), id="the_programs"),
        pytest.param((0, 2), (2,), (), (0,), (0, 2), id="one_is_static"),
        pytest.param((0, 2), (0,), (), (2,), (0, 2), id="first_is_static"),
        pytest.param((1, 2), (2,), (1,), (), (1, 2), id="static_and_recorded"),
        pytest.param((0, 1, 2), (), (1,), (0, 2), (0, 1, 2), id="one_is_recorded"),
        pytest.param((0, 1, 2), (), (0,), (1, 2), (0, 1, 2), id="first_is_recorded"),
    ],
)
@pytest.mark.covers(f"{ROW}test_mutation_on_inp", f"{ROW}test_mutation_cudagraph_managed_tensors")
def test_check_for_mutation_says_which_changes_can_be_recorded(
    changed: tuple[int, ...],
    static: tuple[int, ...],
    recorded: tuple[int, ...],
    counted: tuple[int, ...],
    counted_without: tuple[int, ...],
    with_trees: bool,
) -> None:
    """With trees, mutations of static inputs and of the trees' own outputs can be recorded, and all others are counted.

    Without trees, every mutation counts. The reason has the line of the first one.
    """
    inputs = [torch.ones(1) for _ in range(3)]
    own = [inputs[index] for index in recorded]
    function = private.filled(
        "WrappedFunction",
        RECORDED_AGAIN,
        model=lambda found: found,
        static_input_idxs=static,
        id=private.utilities("FunctionID")(1),
        constants=(),
        placeholders=[placeholder(f"arg{i}", None, f"line {i}") for i in range(3)],
        mutated_input_idxs=changed,
    )
    with private.config({"triton.cudagraph_trees": with_trees}):
        reason = private.utilities("check_for_mutation")(function, inputs, lambda t: any(t is one for one in own))
    expected = counted if with_trees else counted_without
    if not expected:
        assert reason is None
    else:
        assert f"mutated inputs ({len(expected)} instances)" in reason
        assert re.findall(r"line \d", reason) == [f"line {expected[0]}"]


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize(("of_input", "found"), [(True, True), (False, False)], ids=["of_an_input", "of_a_view"])
@pytest.mark.covers(f"{ROW}test_input_storage_mutation_skips_cudagraphs")
def test_set_of_an_input_is_a_reason_to_skip(of_input: bool, found: bool) -> None:
    """`set_` on an input is a reason to skip, with its line; on a tensor derived from an input it is not."""
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    target = x if of_input else graph.call_function(torch.ops.aten.alias.default, (x,))
    changed = graph.call_function(torch.ops.aten.set_.source_Tensor, (target, y))
    changed.meta["stack_trace"] = "line of set_"
    graph.output((changed,))
    information = private.utilities("get_input_storage_mutation_info")(torch.fx.GraphModule({}, graph))
    reason = private.utilities("get_input_storage_mutation_reason")(information)
    assert (reason is not None) is found
    if found:
        assert "input storage mutation (1 instances)" in reason
        assert "line of set_" in reason


@pytest.mark.parametrize(("limit", "known", "warns"), [(None, 50, False), (3, 2, False), (3, 3, True), (1, 1, True)])
@pytest.mark.covers(f"{ROW}test_warn_once_if_dynamic_shape_limit_reached")
def test_cudagraph_dynamic_shape_warn_limit_is_one_more_than_the_limit(
    limit: int | None, known: int, warns: bool
) -> None:
    """The warning comes at one more size than the limit, with the number of sizes and a remedy.

    Without a limit, there is no warning.
    """
    cache = {(size,): None for size in range(known)}
    settings = {"triton.cudagraph_dynamic_shape_warn_limit": limit}
    with private.config(settings), private.messages(logging.WARNING) as heard:
        assert private.utilities("maybe_warning_due_to_dynamic_shape")(cache, (known,)) is warns
    assert len(heard) == int(warns)
    if warns:
        assert f"{known + 1} distinct sizes" in heard[0]
        assert "cudagraph_skip_dynamic_graphs" in heard[0]


@pytest.mark.parametrize(
    ("listed", "key", "recorded"),
    [(None, 5, True), ((4, 5), 5, True), ((4, 5), 6, False), (((4, 5),), (4, 5), True), (((4, 5),), (5, 4), False)],
)
@pytest.mark.covers(f"{ROW}test_cudagraph_capture_sizes", f"{ROW}test_cudagraph_capture_sizes2")
def test_cudagraph_capture_sizes_says_which_sizes_are_recorded(listed: object, key: object, recorded: bool) -> None:
    """Without a list of capture sizes, every size is recorded; with a list, only the listed ones."""
    decide = reach("torch._inductor.cudagraph_trees.is_cudagraph_capture_sizes")
    with private.config({"triton.cudagraph_capture_sizes": listed}):
        assert decide(key) is recorded


@pytest.mark.covers(f"{ROW}test_cudagraph_capture_sizes", f"{ROW}test_cudagraph_capture_sizes1")
def test_cudagraph_capture_sizes_not_listed_run_without_graphs() -> None:
    """A function for trees that is called with an unlisted size runs its code directly, which works without a GPU."""
    cudagraphify = reach("torch._inductor.cudagraph_trees.cudagraphify_impl")
    run = cudagraphify(
        lambda inputs: [inputs[1] * inputs[0]],
        [3, torch.ones(3)],
        (),
        device_index=0,
        is_backward=False,
        is_inference=True,
    )
    with private.config({"triton.cudagraph_capture_sizes": (8,)}):
        for size in (3, 5, 3):
            assert torch.equal(run([size, torch.ones(size)])[0], torch.full((size,), float(size)))


@pytest.mark.covers(f"{ROW}test_mark_step", f"{ROW}test_forward_generation")
def test_cudagraph_mark_step_begin_starts_a_generation() -> None:
    """A mark begins a generation that calls of compiled functions do not end.

    Until a program marks its first step, each call of a compiled function begins one. The reset of the trees, which
    `torch.compiler.reset` performs where CUDA is present, ends the marking. The case uses an eager function in the
    place of any backend.
    """
    with watched():
        fast = torch.compile(lambda x: x + 1, backend="eager")
        x = torch.ones(2)
        fast(x)
        first = private.generation()
        fast(x)
        assert private.generation() != first

        torch.compiler.cudagraph_mark_step_begin()
        marked = private.generation()
        fast(x)
        fast(x)
        assert private.generation() == marked
        torch.compiler.cudagraph_mark_step_begin()
        assert private.generation() not in (marked, first)
        private.trees().reset_cudagraph_trees()
        fast(x)
        unmarked = private.generation()
        fast(x)
        assert private.generation() != unmarked


@pytest.mark.covers(f"{ROW}test_aliased_storage_single_weakref")
def test_storageweakrefwrapper_lives_as_long_as_the_storage() -> None:
    """The reference by which trees watch an output does not keep memory alive.

    It returns the storage while any tensor on it lives, including views, and None afterwards; it keeps the address.
    """
    tensor = torch.ones(64)
    address, storage = tensor.untyped_storage().data_ptr(), tensor.untyped_storage()._cdata
    reference = private.storage_reference(tensor)
    view = tensor[8:16]

    assert reference() == storage
    assert reference.data_ptr() == address
    del tensor
    assert reference() == storage
    assert not reference.expired()
    del view
    gc.collect()
    assert reference.expired()
    assert reference() is None
    assert reference.data_ptr() == address


@pytest.mark.covers(f"{ROW}test_checkpointing_resets_persistent_refs")
def test_storageweakrefwrapper_beside_a_cached_tensor() -> None:
    """For an output that torch caches, the reference expires when only torch holds the tensor.

    Each replay returns the same Python object for such an output. This check is opt-in and can be removed.
    """
    cached = torch.ones(8)
    storage = cached.untyped_storage()
    only_torch = False
    reference = private.storage_reference(cached, extra_ref_check=lambda: only_torch)

    assert not reference.expired()
    only_torch = True
    assert reference.expired()  # torch holds two: the tensor and the storage object
    reference.remove_extra_reference()
    assert not reference.expired()
    del cached, storage
    gc.collect()
    assert reference.expired()


@pytest.mark.requires(cuda=">=12")  # a build for CUDA; no GPU is needed
@pytest.mark.covers(f"{ROW}test_storage_access_error")
def test_tensor_with_an_access_error_raises(device: torch.device) -> None:
    """A tensor with an access error message raises it at each use of its memory.

    Other tensors on the storage do not.
    """
    tensor = torch.ones(4, device=device)
    other = tensor.view(2, 2)
    reach("torch._C._set_storage_access_error_msg")(tensor, "gone with the replay")

    for use in (lambda: tensor.untyped_storage(), lambda: tensor + 1):
        with pytest.raises(RuntimeError, match="gone with the replay"):
            use()
    assert tensor.shape == (4,)
    assert other.sum().item() == 4


@pytest.mark.requires(cuda=">=12")
@pytest.mark.covers(f"{ROW}test_clear_storage_data_ptr_access_error")
def test_storage_with_an_access_error_raises_until_cleared() -> None:
    """A storage with an access error message raises it at each access by any tensor, until it is cleared."""
    tensor = torch.arange(4.0)
    view = tensor[1:]
    key = tensor.untyped_storage()._cdata
    reach("torch._C._set_storage_data_ptr_access_error_msg")(key, "gone with the pool")
    for one in (tensor, view):
        with pytest.raises(RuntimeError, match="gone with the pool"):
            one.data_ptr()
    reach("torch._C._clear_storage_data_ptr_access_error_msg")(key)
    assert torch.equal(view + tensor[0], torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.covers(f"{ROW}test_rerecording_logs_reason")
def test_staticinputidxmismatch_names_the_input() -> None:
    """The message names the checked inputs whose address changed, with both addresses and their line, and no others."""
    utilities = private.utilities
    inputs = [torch.ones(2) for _ in range(3)]
    addresses = [inputs[0].data_ptr(), 4096, 8192]
    text = utilities("log_data_ptr_mismatch")(
        [placeholder(f"arg{i}", f"line {i}") for i in range(3)],
        inputs,
        addresses,
        [0, 1],
        utilities("CheckInvariantStatus").StaticInputIdxMismatch,
    )
    assert text.startswith("static input data pointer changed")
    assert "arg1" in text
    assert f"from 4096 to {inputs[1].data_ptr()}" in text
    assert "line 1" in text
    assert "arg0" not in text
    assert "arg2" not in text


@pytest.mark.covers(f"{ROW}test_graph_partition")
def test_cudagraph_metadata_of_a_partition() -> None:
    """The metadata of a partition renumbers its inputs, outputs and constants.

    It keeps the graph's information on them (static, mutated, lines, and user-visible since torch 2.14); values made
    inside the graph have none of it.
    """
    utilities = private.utilities
    graph = private.filled(
        "CudagraphMetadata",
        {"user_visible_output_idxs": {1}},
        placeholders=[placeholder("a"), placeholder("b"), placeholder("c")],
        static_input_idxs={0, 2},
        mutated_input_idxs={1},
        stack_traces=["first line", "second line"],
        constants={"k": torch.ones(1), "l": torch.full((1,), 2.0)},
    )
    part_map = reach("torch._inductor.utils.GraphPartitionMap")(
        id=3,
        input_index_mapping=[2, None, 1],
        output_index_mapping=[[], [1]] if SEVERAL_OUTPUTS else [None, 1],
        constant_names=["l"],
    )
    part = utilities("get_partition_cudagraph_metadata")(part_map, graph)

    assert [one.name for one in part.placeholders][::2] == ["c", "b"]
    assert part.placeholders[1].name not in ("a", "b", "c")
    assert set(part.static_input_idxs) == {0}
    assert set(part.mutated_input_idxs) == {2}
    assert part.stack_traces == [None, "second line"]
    assert list(part.constants) == ["l"]
    assert part.constants["l"] is graph.constants["l"]
    if SEVERAL_OUTPUTS:
        assert set(part.user_visible_output_idxs) == {1}


@pytest.mark.requires(not_={"device": "cuda"})
@pytest.mark.covers(f"{ROW}test_cleanup")
def test_reset_cudagraph_trees_where_nothing_was_recorded() -> None:
    """If no GPU is in use, there is no manager, a lookup creates none, and a reset does nothing."""
    with watched():
        pass
    assert private.manager(torch.device("cuda", 0)) is None
    private.trees().reset_cudagraph_trees()
    assert private.manager(torch.device("cuda", 0)) is None
