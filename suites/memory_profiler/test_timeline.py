"""The timeline: when memory was allocated, written and freed, its size, and its category."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from suites.host_kernels import MSE_LOSS_WARNS

from . import scenes
from .recordings import Recording, record, recording
from .scenes import Scene
from .values import Action, Category, Event, Key, State

pytestmark = MSE_LOSS_WARNS

E2E = "test_memory_profiler::TestMemoryProfilerE2E"
NO_ID = pytest.mark.covers(
    f"{E2E}::test_memory_timeline_no_id",
    "test_memory_profiler::TestMemoryProfilerTimeline::test_memory_timeline_no_id",
)
FULL = pytest.mark.covers(f"{E2E}::test_memory_timeline")

SCENES = pytest.mark.parametrize(
    "scene", [scenes.chain, scenes.views_and_deletion, scenes.stacked, scenes.training], ids=lambda s: s.__name__
)

BLOCK = 512  # bytes: the block size of the caching allocator on CUDA


def taken(size: int, device: torch.device) -> int:
    """Return the bytes that the allocator uses for a tensor of `size` bytes; on the CPU exactly that many."""
    return size if device.type == "cpu" else -(-size // BLOCK) * BLOCK


def on(device: torch.device, found: Recording) -> list[Event]:
    """Return the timeline's entries for one device."""
    return [event for event in found.timeline if event.key.device == str(device)]


@NO_ID
def test_timeline_counts_memory_without_a_tensor(device: torch.device) -> None:
    """The timeline has memory that no operator used as a tensor, like memory that an operator did.

    The case covers memory that existed before and is only freed in the run, memory that is allocated and freed, and a
    tensor. On the CPU, the size of freed memory is known if it was allocated under a profiler. The sizes are whole
    blocks, so they apply to CUDA too.
    """
    with recording(device):
        held = [torch.empty(1024, device=device)]

    def work() -> None:
        held.clear()
        torch.empty(512, device=device)
        torch.empty(256, device=device).view(16, 16)

    reported = on(device, record(work, device))

    assert [(event.action, event.size) for event in reported] == [
        (Action.PREEXISTING, 4096),
        (Action.DESTROY, 4096),
        (Action.CREATE, 2048),
        (Action.DESTROY, 2048),
        (Action.CREATE, 1024),
        (Action.DESTROY, 1024),
    ]
    assert [event.key.tensor is None for event in reported] == [True] * 4 + [False] * 2
    assert reported[4].key == reported[5].key
    assert [event.time_ns == -1 for event in reported] == [True] + [False] * 5


@NO_ID
def test_timeline_on_the_cpu_omits_memory_of_unknown_size() -> None:
    """CPU memory that was allocated while no profiler was active, and is freed in the run, has no timeline entry."""
    held = [torch.empty(1 << 22)]  # so large that its address has not been used in any profile

    def work() -> None:
        held.clear()
        torch.empty(512)

    reported = record(work).timeline

    assert [(event.action, event.size) for event in reported] == [(Action.CREATE, 2048), (Action.DESTROY, 2048)]


@SCENES
def test_timeline_entries_are_in_order_and_balance(
    device: torch.device, scene: Callable[[torch.device], Scene]
) -> None:
    """Entries are in chronological order, with preexisting memory first.

    Each allocation exists before or is created once, is written and freed only afterwards, is freed at most once, and
    has a constant size. This is not checked for memory without a tensor, which has no identity.
    """
    reported = [event for event in record(scene(device).work, device).timeline if event.key.tensor is not None]

    assert [event.time_ns for event in reported] == sorted(event.time_ns for event in reported)
    assert all((event.time_ns == -1) == (event.action is Action.PREEXISTING) for event in reported)
    assert all(event.size > 0 for event in reported)
    alive: dict[Key, Event] = {}
    dead: set[Key] = set()
    for event in reported:
        assert event.key not in dead, f"{event} is after the free"
        if event.action in (Action.PREEXISTING, Action.CREATE):
            assert event.key not in alive, f"{event} is a duplicate"
            assert event.version == 0
            alive[event.key] = event
        else:
            assert event.size == alive[event.key].size
        if event.action is Action.DESTROY:
            del alive[event.key]
            dead.add(event.key)
    assert alive
    assert dead


@FULL
@SCENES
def test_timeline_increment_version_is_a_write_of_the_data_flow(
    device: torch.device, scene: Callable[[torch.device], Scene]
) -> None:
    """Each write in the data flow is one new version in the timeline, in the same order, and vice versa."""
    found = record(scene(device).work, device)

    flow = [(key, v) for node in found.nodes for key, v in node.makes if v > 0]
    reported = [(e.key, e.version + 1) for e in found.timeline if e.action is Action.INCREMENT_VERSION]
    assert flow
    assert reported == flow
    newest = dict(sorted(found.categories, key=lambda state: state.version))
    ends = [e for e in found.timeline if e.action is Action.DESTROY and e.key.tensor is not None]
    assert all(event.version == newest[event.key] for event in ends)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.float32, (16, 32)),
        (torch.float64, (5,)),
        (torch.uint8, (3, 7)),
        (torch.complex64, (9,)),
        (torch.uint8, (1,)),
    ],
    ids=["float32", "float64", "uint8", "complex64", "one_byte"],
)
def test_timeline_sizes_are_those_of_tensors(device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Memory allocated in the run has its tensor's size plus the allocator's rounding.

    The size of a preexisting tensor, seen through a transposed view, is computed from shape and strides.
    """
    before = torch.ones(shape, dtype=dtype, device=device)
    view = before.t() if before.dim() == 2 else before

    def work() -> torch.Tensor:
        made = view.clone()
        made.view_as(made)
        return made

    found = record(work, device)

    assert [(event.key, event.action, event.size) for event in on(device, found)] == [
        (found.key(before), Action.PREEXISTING, before.nbytes),
        (found.key(found.result), Action.CREATE, taken(before.nbytes, device)),
    ]


def test_timeline_sizes_of_allocations_count_more_than_strides(device: torch.device) -> None:
    """Memory that is allocated in the run has the size of its allocation, even if the strides have gaps."""

    def work() -> torch.Tensor:
        made = torch.empty_strided((2, 2), (4, 1), device=device)
        made.view_as(made)
        return made

    found = record(work, device)
    assert [(event.action, event.size) for event in on(device, found)] == [(Action.CREATE, taken(24, device))]


def test_timeline_has_tensors_that_only_a_list_or_a_module_holds(device: torch.device) -> None:
    """A preexisting tensor has its size also if an operator gets it only in a list, or no operator gets it.

    A module is known from its call, and an optimizer from its step.
    """
    first, second = torch.ones(3, device=device), torch.ones(5, device=device)
    layer = torch.nn.Linear(7, 2, device=device)
    layer.unused = torch.nn.Parameter(torch.ones(11, device=device))
    layer.unused.grad = torch.ones_like(layer.unused)
    given = torch.ones(1, 7, device=device)
    other = torch.nn.Parameter(torch.ones(13, device=device))
    optimizer = torch.optim.SGD([other, layer.weight])

    def work() -> object:
        made = torch.cat([first, second]), layer(given)
        made[1].sum().backward()
        optimizer.step()
        return made

    found = record(work, device)
    sizes = {event.key: event.size for event in on(device, found) if event.action is Action.PREEXISTING}
    for tensor in (first, second, layer.unused, layer.unused.grad, other):
        assert sizes[found.key(tensor)] == tensor.nbytes


@FULL
def test_timeline_of_a_training_step_adds_up(device: torch.device) -> None:
    """In a training step, parameters and optimizer state exist throughout, and gradients only grow.

    The only activations that remain are those that the program keeps; temporaries and autograd details are all freed.
    """
    found = record(scenes.training(device).work, device)

    left = found.result
    moments = [sizes for _, sizes in found.sizes(device)]
    full = {
        Category.PARAMETER: [t.nbytes for name, t in left.items() if f"{name}.grad" in left],
        Category.OPTIMIZER_STATE: [t.nbytes for name, t in left.items() if name.endswith(".momentum")],
    }
    for category, sizes in full.items():
        assert len(sizes) == 5
        assert {moment[category] for moment in moments} == {sum(sizes)}, category
    gradients = [moment.get(Category.GRADIENT, 0) for moment in moments]
    assert gradients == sorted(gradients)
    grown = sum(taken(t.nbytes, device) for name, t in left.items() if name.endswith(".grad"))
    assert (gradients[0], gradients[-1]) == (0, grown)
    for category in (Category.TEMPORARY, Category.AUTOGRAD_DETAIL):
        assert moments[-1].get(category, 0) == 0
    activations = [moment.get(Category.ACTIVATION, 0) for moment in moments]
    assert max(activations) > activations[-1] >= taken(left["loss"].nbytes, device) > activations[0] == 0
    assert all(size >= 0 for moment in moments for size in moment.values())


@FULL
def test_timeline_ends_with_the_live_tensors(device: torch.device) -> None:
    """The allocations that the timeline does not free are exactly the memory of the live tensors."""
    scene = scenes.views_and_deletion(device)
    found = record(scene.work, device)

    alive = {event.key for event in on(device, found) if event.action is not Action.DESTROY}
    alive -= {event.key for event in found.timeline if event.action is Action.DESTROY}
    assert alive == {found.key(tensor) for tensor in (scene.given | found.result).values()}


@pytest.mark.requires(accelerator=True)
@FULL
@pytest.mark.parametrize("scene", [scenes.product_in_place, scenes.pass_back, scenes.stacked], ids=lambda s: s.__name__)
def test_timeline_on_an_accelerator_is_that_of_the_cpu_in_whole_blocks(
    device: torch.device, scene: Callable[[torch.device], Scene]
) -> None:
    """If operators only allocate results, an accelerator's timeline has the CPU's actions, versions and categories.

    Only the sizes of new allocations are rounded to whole blocks.
    """
    cpu = torch.device("cpu")
    there, on_cpu = record(scene(device).work, device), record(scene(cpu).work, cpu)

    def reported(found: Recording, where: torch.device) -> list[tuple[Action, int, Category | None, int]]:
        before = {event.key for event in found.timeline if event.action is Action.PREEXISTING}
        return [
            (
                event.action,
                event.version,
                found.categories.get(State(event.key, event.version)),
                event.size if event.key in before else taken(event.size, device),
            )
            for event in on(where, found)
        ]

    assert reported(there, device) == reported(on_cpu, cpu)


@pytest.mark.requires(accelerator=True)
@NO_ID
def test_timeline_distinguishes_cpu_and_device(device: torch.device) -> None:
    """A copy to the device has a device allocation, and its source a host allocation, each with its size."""

    def work() -> torch.Tensor:
        return torch.ones(512).to(device).neg_()

    found = record(work, device)

    host = [(event.action, event.size) for event in found.timeline if event.key.device == "cpu"]
    assert host == [(Action.CREATE, 2048), (Action.DESTROY, 2048)]
    assert [(event.action, event.size) for event in on(device, found)] == [
        (Action.CREATE, 2048),
        (Action.INCREMENT_VERSION, 2048),
    ]
