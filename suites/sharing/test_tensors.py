"""Tensors that are sent through a queue to another process: they share memory, which lives until its last use."""

from __future__ import annotations

import signal

import pytest
import torch

from . import scenes
from .processes import play

#: The software device has no shared memory.
pytestmark = [
    pytest.mark.requires(any=[{"device": "cuda"}, {"accelerator": False}]),
    pytest.mark.own_process,
    pytest.mark.timeout(300),
]


def test_queue_gives_the_same_memory_to_another_process(device: torch.device) -> None:
    """A tensor keeps its device, type, shape, strides and values in another process, and shares its memory.

    Each side sees what the other one writes, through views too. Tensors of one storage also share one storage there.
    """
    seen, later, (base, view, storages, left, status) = play(scenes.values, device)

    place = [device.type, device.index]
    assert seen == [
        [*place, "torch.float32", [24], [float(i) for i in range(24)]],
        [*place, "torch.float32", [4, 3], [[4.0 + i, 8.0 + i, 12.0 + i] for i in range(4)]],
        [*place, "torch.float16", [2], [1.5, -2.0]],
        [*place, "torch.bool", [3], [1.0, 0.0, 1.0]],
        [*place, "torch.int64", [], 7.0],
        [*place, "torch.float32", [0, 3], []],
    ]
    assert later == [[5.0] * 3] * 4
    assert base == [9.0] * 24
    assert view == [[9.0] * 3] * 4
    assert storages == 5
    assert (left, status) == (0, 0)


def test_queue_takes_a_leaf_and_refuses_a_tensor_with_a_graph(device: torch.device) -> None:
    """A leaf is shared with its type and its `requires_grad`. A tensor with a graph is refused.

    The error names the remedy.
    """
    seen, kinds, refused, values, status = play(scenes.leaves, device)

    assert seen == [[device.type, device.index, "torch.float32", [3], [1.0] * 3]]
    assert kinds == [
        ["Parameter", True, True],
        ["Parameter", False, True],
        ["Tensor", True, True],
        ["Tensor", False, True],
    ]
    assert "non-leaf" in refused
    assert "detach" in refused
    assert values == [4.0] * 3
    assert status == 0


def test_many_views_of_one_storage_are_freed_once_all_are_dropped(device: torch.device) -> None:
    """64 messages with views of one storage create one storage in the consumer, which lives while any view does.

    When both processes have dropped all views, the producer's memory is freed.
    """
    last, storages, (total, before, after), left, freed, status = play(scenes.many_of_one_storage, device)

    assert last == 64
    assert storages == 1
    assert total == 3.0 * 32
    assert before == after == [3.0]
    assert (left, freed, status) == (0, True, 0)


def test_storage_that_is_shared_again_and_again_is_freed(device: torch.device) -> None:
    """A storage that is shared, read and dropped 20 times has the current values each time, and is freed at the end."""
    read, freed, status = play(scenes.one_after_another, device)

    assert read == [float(number) for number in range(20)]
    assert (freed, status) == (True, 0)


def test_memory_that_the_producer_drops_lives_while_the_consumer_has_it(device: torch.device) -> None:
    """A tensor that the producer drops keeps its values in the consumer, and no new tensor gets its memory.

    After the consumer has dropped it, the producer's memory is freed.
    """
    seen, intact, kept, freed, status = play(scenes.producer_drops_first, device)

    assert seen == [3.0]
    assert intact
    assert kept
    assert (freed, status) == (True, 0)


def test_memory_is_freed_after_one_consumer_ended_and_another_dropped_it(device: torch.device) -> None:
    """If a consumer ends while it holds a tensor, the producer can share the tensor again and free it."""
    status, seen, freed, second = play(scenes.consumer_ends_first, device)

    assert status == 0
    assert seen == [4]
    assert (freed, second) == (True, 0)


def test_two_consumers_of_one_tensor_hold_it_apart(device: torch.device) -> None:
    """After one consumer and the producer have dropped a tensor, the other consumer still reads its values."""
    seen, freed, statuses = play(scenes.two_consumers, device)

    assert seen == [5.0]
    assert (freed, statuses) == (True, [0, 0])


def test_killed_consumer_does_no_harm_to_the_producer(device: torch.device) -> None:
    """After a consumer that holds a tensor is killed, the producer can use the tensor and share it again."""
    status, seen, values, other = play(scenes.killed_consumer, device)

    assert status == -signal.SIGKILL
    assert seen == [[6.0], [2.0] * 4]
    assert values == [7]
    assert other == 0


@pytest.mark.requires(device="cuda")
def test_tensor_of_another_process_is_not_sent_on(device: torch.device) -> None:
    """A consumer that shares a received tensor gets an error, which recommends a clone; the tensor is unchanged."""
    answer, values, status = play(scenes.sent_on, device)

    assert answer.startswith("RuntimeError: ")
    assert "clon" in answer
    assert (values, status) == ([1.0] * 4, 0)


@pytest.mark.requires(device="cuda", devices=2)
def test_one_message_has_tensors_of_two_devices(device: torch.device) -> None:
    """Tensors of two devices arrive on their devices with their values, and the memory of each device is freed."""
    seen, found, freed, status = play(scenes.two_devices, device)

    assert [row[:2] + row[-1:] for row in seen] == [["cuda", 0, [1.0] * 4], ["cuda", 1, [2.0] * 4]]
    assert found == [[9.0] * 4, [8.0] * 4]
    assert freed == [True, True]
    assert status == 0


@pytest.mark.requires(device="cuda")
def test_interprocess_event_orders_streams_of_two_processes(device: torch.device) -> None:
    """A stream of the consumer that waits for an interprocess event of the producer reads what was written before it.

    Without the wait, it reads too early, because the producer's stream sleeps before it writes.
    """
    rounds, status = play(scenes.event_orders, device)

    assert any(early != number * 1024.0 for number, (early, _, _) in enumerate(rounds, 1)), "nothing was read too early"
    assert [late for _, late, _ in rounds] == [number * 1024.0 for number in range(1, 4)]
    assert all(done for _, _, done in rounds)
    assert status == 0
