"""`torch.accelerator.Graph`: captured work, and the effect of each replay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.requires(accelerator_graphs=True)

ELEMENTS = 1 << 12


def captured(device: torch.device, work: Callable[[], object], **options: object) -> torch.accelerator.Graph:
    """Return a graph of `work`, after one run on the capture stream that completes first-use initialization."""
    stream = torch.Stream(device)
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        work()
    torch.accelerator.synchronize(device)
    graph = torch.accelerator.Graph(**options)
    with stream, graph:
        work()
    torch.accelerator.synchronize(device)
    return graph


def test_capture_runs_nothing_and_replay_does(device: torch.device) -> None:
    """A capture does not run the work, and each replay runs it once."""
    x = torch.zeros(ELEMENTS, device=device)
    graph = captured(device, lambda: x.add_(1))
    assert (x == 1).all()  # from the rehearsal

    for times in range(2, 6):
        graph.replay()
        torch.accelerator.synchronize(device)
        assert (x == times).all()


def test_replay_runs_every_node_in_order(device: torch.device) -> None:
    """A replay runs all captured work in order.

    The forty steps do not commute and each changes the result, so omitting or swapping any changes it.
    """
    x = torch.zeros(ELEMENTS, dtype=torch.int64, device=device)

    def work() -> None:
        x.fill_(1)
        for step in range(1, 21):
            x.mul_(3)
            x.add_(step)

    graph = captured(device, work)
    expected = 1
    for step in range(1, 21):
        expected = expected * 3 + step

    for _ in range(3):
        x.fill_(-1)
        graph.replay()
        torch.accelerator.synchronize(device)
        assert (x == expected).all()


def test_replay_reads_the_current_values_of_its_inputs(device: torch.device) -> None:
    """A replay reads its inputs at the captured addresses, so new values there give new results."""
    source, result = (torch.zeros(ELEMENTS, dtype=torch.int64, device=device) for _ in range(2))
    graph = captured(device, lambda: result.copy_(source * 2 + 1))

    for value in (5, -3, 1000):
        source.fill_(value)
        graph.replay()
        torch.accelerator.synchronize(device)
        assert (result == 2 * value + 1).all()


def test_replay_is_in_the_order_of_its_stream(device: torch.device) -> None:
    """A replay is ordered with earlier and later work on its stream, without synchronization."""
    source, result = (torch.zeros(ELEMENTS, dtype=torch.int64, device=device) for _ in range(2))
    graph = captured(device, lambda: result.copy_(source + 1))
    results = []

    for value in range(10):
        source.fill_(value)
        graph.replay()
        results.append(result.clone())
    torch.accelerator.synchronize(device)

    assert [value for value, one in enumerate(results) if not bool((one == value + 1).all())] == []


def test_wait_stream_joins_a_stream_to_the_capture(device: torch.device) -> None:
    """A stream that waits for an event of the capturing stream joins the capture.

    Replays keep the order of both.
    """
    x, y = (torch.zeros(ELEMENTS, dtype=torch.int64, device=device) for _ in range(2))
    side = torch.Stream(device)

    def work() -> None:
        main = torch.accelerator.current_stream(device)
        x.add_(1)
        side.wait_stream(main)
        with side:
            y.copy_(x * 10)
        main.wait_stream(side)
        y.add_(1)

    graph = captured(device, work)
    for times in range(2, 5):
        graph.replay()
        torch.accelerator.synchronize(device)
        assert (x == times).all()
        assert (y == times * 10 + 1).all()


def test_capture_with_an_unjoined_stream_is_an_error(device: torch.device) -> None:
    """A capture raises at its end if a joined stream was not waited for, and the device still works."""
    x = torch.zeros(ELEMENTS, device=device)
    stream, side = torch.Stream(device), torch.Stream(device)
    graph = torch.accelerator.Graph()

    def leave_unjoined() -> None:
        with stream, graph:
            x.add_(1)
            side.wait_stream(stream)
            with side:
                x.add_(1)

    with pytest.raises(RuntimeError, match=r"(?i)join"):
        leave_unjoined()

    torch.accelerator.synchronize(device)
    assert torch.ones(4, device=device).sum().item() == 4


def test_synchronize_in_a_capture_is_an_error(device: torch.device) -> None:
    """A synchronize during capture raises and invalidates the capture."""
    x = torch.ones(ELEMENTS, device=device)
    stream = torch.Stream(device)
    graph = torch.accelerator.Graph()

    def read_inside() -> None:
        with stream, graph:
            x.sum().item()

    with pytest.raises(RuntimeError, match=r"(?i)captur"):
        read_inside()
    with pytest.raises(RuntimeError, match=r"(?i)without a preceding successful capture"):
        graph.replay()

    torch.accelerator.synchronize(device)
    assert x.sum().item() == ELEMENTS


def test_replay_draws_new_random_numbers(device: torch.device) -> None:
    """Each replay draws new random numbers from the generator, and the same seed gives the same sequence."""
    x = torch.zeros(ELEMENTS, device=device)
    graph = captured(device, lambda: x.uniform_())
    sequences = []

    for _ in range(2):
        torch.manual_seed(5)
        drawn = []
        for _ in range(3):
            graph.replay()
            drawn.append(x.clone())
        torch.accelerator.synchronize(device)
        sequences.append(drawn)

    for one, again in zip(*sequences, strict=True):
        assert torch.equal(one, again)
    assert not torch.equal(sequences[0][0], sequences[0][1])
    assert not torch.equal(sequences[0][1], sequences[0][2])
    assert not torch.equal(sequences[0][0], sequences[0][2])


def test_graph_keeps_its_memory(device: torch.device) -> None:
    """Memory allocated during capture belongs to the graph: later allocations and replays do not overlap."""
    source = torch.arange(ELEMENTS, device=device)
    outputs: list[torch.Tensor] = []

    def work() -> None:
        outputs[:] = [(source + 1) * 2]

    graph = captured(device, work)
    others = [torch.full((ELEMENTS,), -1, device=device, dtype=torch.int64) for _ in range(50)]
    graph.replay()
    torch.accelerator.synchronize(device)

    assert torch.equal(outputs[0].cpu(), (torch.arange(ELEMENTS) + 1) * 2)
    assert all((other == -1).all() for other in others)


def test_graph_reset_and_captured_again(device: torch.device) -> None:
    """After `reset`, a graph can capture and replay other work."""
    x = torch.zeros(ELEMENTS, device=device)
    stream = torch.Stream(device)
    graph = captured(device, lambda: x.add_(1))

    graph.reset()
    with stream, graph:
        x.sub_(5)
    graph.replay()
    torch.accelerator.synchronize(device)

    assert (x == -4).all()


def test_graphs_can_share_a_pool(device: torch.device) -> None:
    """A graph captured with another graph's pool shares it, and both are correct when replayed in capture order."""
    source = torch.zeros(ELEMENTS, dtype=torch.int64, device=device)
    result = torch.zeros(ELEMENTS, dtype=torch.int64, device=device)
    first = captured(device, lambda: result.copy_(source + 1))
    second = captured(device, lambda: result.mul_(10).add_(source), pool=first.pool())
    assert second.pool() == first.pool()

    source.fill_(4)
    first.replay()
    second.replay()
    torch.accelerator.synchronize(device)

    assert (result == 54).all()


def test_keep_graph_is_instantiated_when_asked_to(device: torch.device) -> None:
    """With `keep_graph`, the graph is instantiated explicitly or by the first replay."""
    x = torch.zeros(ELEMENTS, device=device)
    by_hand = captured(device, lambda: x.add_(1), keep_graph=True)
    by_replay = captured(device, lambda: x.add_(10), keep_graph=True)
    x.zero_()

    by_hand.instantiate()
    by_hand.replay()
    by_replay.replay()
    torch.accelerator.synchronize(device)

    assert (x == 11).all()
