"""Generator states: reading and restoring, for one generator, for all, and within a block."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from suites import children

from ._torch_private import accelerator_default_generator, generic_default_generator
from .forked import forked


@pytest.fixture(autouse=True)
def _states_restored(device: torch.device) -> Iterator[None]:
    """Restore the global generators after the case."""
    with forked(device):
        yield


def module(device: torch.device) -> Any:
    """Return the functions for the global state: torch's for the CPU, otherwise the device module's."""
    return torch if device.type == "cpu" else torch.get_device_module(device)


def test_set_rng_state_repeats_the_numbers(device: torch.device) -> None:
    """After `set_rng_state`, the device's generator repeats draws of every kind."""
    state = module(device).get_rng_state()
    expected = [torch.rand(9, device=device), torch.randn(1000, device=device), torch.randperm(50, device=device)]

    module(device).set_rng_state(state)

    assert torch.equal(torch.rand(9, device=device), expected[0])
    assert torch.equal(torch.randn(1000, device=device), expected[1])
    assert torch.equal(torch.randperm(50, device=device), expected[2])


def test_get_rng_state_is_bytes_on_the_cpu_and_a_copy(device: torch.device) -> None:
    """A state is a CPU byte tensor, changes with a draw, and is a copy."""
    state = module(device).get_rng_state()
    kept = state.clone()
    torch.rand(1, device=device)
    after = module(device).get_rng_state()

    assert (state.dtype, state.device.type) == (torch.uint8, "cpu")
    assert torch.equal(state, kept)
    assert not torch.equal(after, kept)


@pytest.mark.parametrize("draws", [1, 2, 7, 100])
def test_get_rng_state_differs_after_every_draw(device: torch.device, draws: int) -> None:
    """The state differs after every draw, and the first state restores all draws."""
    first = module(device).get_rng_state()
    seen = {bytes(first.tolist())}
    numbers = []
    for _ in range(draws):
        numbers.append(torch.rand(3, device=device).tolist())
        seen.add(bytes(module(device).get_rng_state().tolist()))

    module(device).set_rng_state(first)

    assert len(seen) == draws + 1
    assert [torch.rand(3, device=device).tolist() for _ in range(draws)] == numbers


@pytest.mark.parametrize(
    "state",
    [torch.zeros(3, dtype=torch.uint8), torch.zeros(5056), torch.empty(0, dtype=torch.uint8), "state"],
    ids=["short", "floats", "empty", "text"],
)
def test_set_rng_state_refuses_a_tensor_of_wrong_size_or_type(device: torch.device, state: Any) -> None:
    """A state of the wrong size or type raises, and the generator's state does not change."""
    before = module(device).get_rng_state()

    with pytest.raises((RuntimeError, TypeError, AttributeError, ValueError)):
        module(device).set_rng_state(state)

    assert torch.equal(module(device).get_rng_state(), before)


def test_fork_rng_restores_the_generators(device: torch.device) -> None:
    """Draws and seeds within `fork_rng` do not affect the outer generators of CPU and device, also after an exception.

    Within the block they continue from the outer state.
    """
    states = torch.get_rng_state(), module(device).get_rng_state()

    def block(*, seed: bool, fail: bool) -> None:
        with forked(device):
            assert torch.equal(torch.get_rng_state(), states[0])
            assert torch.equal(module(device).get_rng_state(), states[1])
            torch.rand(100), torch.rand(100, device=device)
            if seed:
                torch.manual_seed(77)
            if fail:
                raise LookupError

    for seed, fail in itertools.product((False, True), repeat=2):
        with pytest.raises(LookupError) if fail else nullcontext():
            block(seed=seed, fail=fail)
        assert torch.equal(torch.get_rng_state(), states[0])
        assert torch.equal(module(device).get_rng_state(), states[1])


def test_fork_rng_enabled_false_does_not_fork(device: torch.device) -> None:
    """Control: with `enabled=False`, draws within the block advance the generators."""
    before = module(device).get_rng_state()

    with torch.random.fork_rng(enabled=False):
        torch.rand(1, device=device)

    assert not torch.equal(module(device).get_rng_state(), before)


@pytest.mark.requires(accelerator=True)
def test_get_rng_state_of_cpu_and_device_are_independent(device: torch.device) -> None:
    """Draws on the device do not affect the CPU generator, and vice versa."""
    host, there = torch.get_rng_state(), module(device).get_rng_state()

    torch.rand(10, device=device)
    assert torch.equal(torch.get_rng_state(), host)
    assert not torch.equal(module(device).get_rng_state(), there)

    there = module(device).get_rng_state()
    torch.rand(10)
    assert torch.equal(module(device).get_rng_state(), there)
    assert not torch.equal(torch.get_rng_state(), host)


@pytest.mark.requires(accelerator=True)
def test_generators_are_independent(device: torch.device) -> None:
    """A separate generator does not affect the device's default one or another; interleaved draws are independent."""
    alone = [torch.Generator(device=device).manual_seed(seed) for seed in (1, 2)]
    expected = [[torch.rand(7, device=device, generator=generator) for _ in range(5)] for generator in alone]
    before = module(device).get_rng_state()

    mixed = [torch.Generator(device=device).manual_seed(seed) for seed in (1, 2)]
    got: list[list[torch.Tensor]] = [[], []]
    for _ in range(5):
        for number, generator in enumerate(mixed):
            got[number].append(torch.rand(7, device=device, generator=generator))

    assert all(torch.equal(a, b) for number in range(2) for a, b in zip(got[number], expected[number], strict=True))
    assert torch.equal(module(device).get_rng_state(), before)


@pytest.mark.requires(accelerator=True, devices=2)
def test_get_rng_state_all_and_set_rng_state_all_restore_all_devices(device: torch.device) -> None:
    """`get_rng_state_all` has one state per device, and `set_rng_state_all` restores all; devices are independent."""
    other = torch.device(device.type, 1)
    torch.rand(3, device=device)  # gives the two different states
    states = module(device).get_rng_state_all()
    assert not torch.equal(*states[:2])
    assert all(torch.equal(states[each.index], module(device).get_rng_state(each)) for each in (device, other))
    expected = [torch.rand(10, device=each) for each in (device, other)]
    assert len(states) == torch.accelerator.device_count()
    assert torch.equal(states[1], module(device).get_rng_state_all()[1]) is False

    module(device).set_rng_state_all(states)
    assert torch.equal(torch.rand(10, device=device), expected[0])
    assert torch.equal(module(device).get_rng_state(other), states[1])
    moved = module(device).get_rng_state(device)
    assert torch.equal(torch.rand(10, device=other), expected[1])
    assert torch.equal(module(device).get_rng_state(device), moved)


@pytest.mark.requires(accelerator=True, devices=2)
def test_fork_rng_of_one_device_leaves_the_other_out(device: torch.device) -> None:
    """`fork_rng` of chosen devices restores those and the CPU only."""
    both = (device, torch.device(device.type, 1))

    for forked_one, other in (both, both[::-1]):
        host = torch.get_rng_state()
        before = [module(device).get_rng_state(each) for each in (forked_one, other)]
        with torch.random.fork_rng(devices=[forked_one.index], device_type=device.type):
            torch.rand(3), torch.rand(3, device=forked_one), torch.rand(3, device=other)
        assert torch.equal(torch.get_rng_state(), host)
        assert torch.equal(module(device).get_rng_state(forked_one), before[0])
        assert not torch.equal(module(device).get_rng_state(other), before[1])


@pytest.mark.requires(device="cuda")
@pytest.mark.covers("test_cuda::TestCuda::test_accelerator_default_generator")
def test_default_generators_are_drawn_from(device: torch.device) -> None:
    """The device's entry in `default_generators` is the generator that operations use by default."""
    generator = accelerator_default_generator(device)
    assert generator.device == device
    assert torch.equal(generator.get_state(), module(device).get_rng_state())

    state = generator.get_state()
    expected = torch.rand(20, device=device)
    assert not torch.equal(generator.get_state(), state)
    generator.set_state(state)

    assert torch.equal(torch.rand(20, device=device, generator=generator), expected)


@pytest.mark.requires(device="cuda", torch=">=2.14")  # the first release with that API
@pytest.mark.covers("test_cuda::TestCuda::test_accelerator_default_generator")
def test_accelerator_default_generator_is_the_devices(device: torch.device) -> None:
    """The accelerator-generic default generator is that of the current CUDA device."""
    generator = generic_default_generator()

    assert generator.device == device
    before = generator.get_state()
    torch.rand(1, device=device)
    assert not torch.equal(generator.get_state(), before)


@pytest.mark.requires(any=[{"device": "cuda"}, {"accelerator_graphs": True}])
def test_graphsafe_get_state_is_shared_and_clone_state_is_not(device: torch.device) -> None:
    """`graphsafe_get_state` returns a generator that shares its state, so that a draw from either advances both.

    `graphsafe_set_state` shares the state with a third generator; `clone_state` returns a separate one.
    """
    generator = torch.Generator(device=device).manual_seed(3)
    shared, apart = generator.graphsafe_get_state(), generator.clone_state()
    third = torch.Generator(device=device).manual_seed(99)
    third.graphsafe_set_state(shared)
    start = generator.get_state()

    for drawing in (shared, generator, third):
        before = generator.get_state()
        torch.rand(5, device=device, generator=drawing)
        assert not torch.equal(generator.get_state(), before)
        assert all(torch.equal(each.get_state(), generator.get_state()) for each in (shared, third))
        assert torch.equal(apart.get_state(), start)
    before = generator.get_state()
    torch.rand(5, device=device, generator=apart)
    assert torch.equal(generator.get_state(), before)


@pytest.mark.requires(device="cuda")
def test_get_offset_counts_what_was_drawn(device: torch.device) -> None:
    """A Philox generator's offset starts at 0, is a multiple of 4, and grows with each draw.

    After the offset is set back, draws repeat.
    """
    generator = torch.Generator(device=device).manual_seed(3)
    offsets = [generator.get_offset()]
    for _ in range(4):
        drawn = torch.rand(1000, device=device, generator=generator)
        offsets.append(generator.get_offset())

    assert offsets[0] == 0
    assert all(a < b and b % 4 == 0 for a, b in itertools.pairwise(offsets))
    generator.set_offset(offsets[-2])
    assert torch.equal(torch.rand(1000, device=device, generator=generator), drawn)


@pytest.mark.requires(torch=">=2.13")
def test_thread_safe_generator_is_none_outside_of_a_worker_thread() -> None:
    """`thread_safe_generator` is None in the main thread and in another one, so draws use the default generator."""
    found: list[object] = [torch.random.thread_safe_generator()]
    thread = threading.Thread(target=lambda: found.append(torch.random.thread_safe_generator()))
    thread.start()
    thread.join()
    assert found == [None, None]
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, generator=torch.random.thread_safe_generator()), wanted)


def test_fork_rng_of_the_meta_device_forks_nothing() -> None:
    """`fork_rng(device_type="meta")` leaves all generators as they are, including the CPU's."""
    before = torch.get_rng_state()
    try:
        torch.manual_seed(5)
        wanted = [torch.rand(()).item() for _ in range(2)]
        torch.manual_seed(5)
        with torch.random.fork_rng(device_type="meta"):
            first = torch.rand(()).item()
        assert [first, torch.rand(()).item()] == wanted
    finally:
        torch.set_rng_state(before)


@pytest.mark.requires(accelerator=True, devices=2)
@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_fork_rng_of_several_devices_restores_each(device: torch.device, fails: bool) -> None:
    """`fork_rng` of two devices, in either order, restores both generators and the CPU's, also after an exception."""
    both = [device.index or 0, 1]
    places = [torch.device("cpu"), *(torch.device(device.type, each) for each in both)]
    for devices in (both, both[::-1]):
        before = [torch.get_rng_state(), *(module(device).get_rng_state(each) for each in both)]
        with (
            pytest.raises(LookupError) if fails else nullcontext(),
            torch.random.fork_rng(devices=devices, device_type=device.type),
        ):
            for each in places:
                torch.rand(5, device=each)
            if fails:
                raise LookupError
        after = [torch.get_rng_state(), *(module(device).get_rng_state(each) for each in both)]
        assert all(map(torch.equal, after, before))


def test_fork_rng_without_devices_forks_all_of_the_accelerator(device: torch.device) -> None:
    """Without `devices`, `fork_rng` restores the CPU and each device of the accelerator, if there is any."""
    host, devices = torch.get_rng_state(), []
    if device.type != "cpu":
        devices = [torch.device(device.type, number) for number in range(module(device).device_count())]
    states = [module(device).get_rng_state(each) for each in devices]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*available devices, and you have used fork_rng")
        with torch.random.fork_rng():
            for each in ("cpu", *devices):
                torch.rand(3, device=each)
    assert torch.equal(torch.get_rng_state(), host)
    for each, state in zip(devices, states, strict=True):
        assert torch.equal(module(device).get_rng_state(each), state)


WARNED = """
import warnings
import torch

def warned(**options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.random.fork_rng(**options):
            torch.rand(3, device=DEVICE)
    return [str(each.message) for each in caught if "available devices" in str(each.message)]

count = torch.get_device_module(DEVICE).device_count()
print(len(warned(devices=[0])), len(warned(devices=range(count))))
found = warned()
print(count, len(found), len(warned()))
print(*found)
"""


@pytest.mark.requires(accelerator=True)
@pytest.mark.own_process
def test_fork_rng_without_devices_of_one_device_does_not_warn(device: torch.device) -> None:
    """`fork_rng` without `devices` does not warn if there is one device."""
    if torch.get_device_module(device).device_count() > 1:
        pytest.skip("there are several devices")
    assert children.fork(WARNED, device).lines()[:2] == ["0 0", "1 0 0"]


@pytest.mark.requires(accelerator=True, devices=2)
@pytest.mark.own_process
def test_fork_rng_without_devices_warns_once_of_several(device: torch.device) -> None:
    """The first `fork_rng` without `devices` in a process with several devices warns, and names the argument.

    A list or a range of devices does not warn.
    """
    named, first, text = children.fork(WARNED, device).lines()
    assert (named, first) == ("0 0", "2 1 0")
    assert "2 available devices, and you have used fork_rng without" in text
    assert "'devices' keyword argument" in text
