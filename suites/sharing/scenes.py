"""Scenes for `processes.play`: the steps of a producer of shared tensors, and what it and its consumers observed."""

from __future__ import annotations

from typing import Any

import torch
from torch import multiprocessing

from suites.sharing.processes import Consumer, held, settles

MIB = 1 << 20


def values(device: str) -> Any:
    """Share tensors of several kinds. The consumer reads them, and then reads and writes later values."""
    base = torch.arange(24.0, device=device)
    given = {
        "whole": base,
        "view": base[4:16].reshape(3, 4).t(),
        "half": torch.tensor([1.5, -2.0], dtype=torch.float16, device=device),
        "flags": torch.tensor([True, False, True], device=device),
        "scalar": torch.tensor(7, device=device),
        "empty": torch.empty(0, 3, device=device),
    }
    consumer = Consumer(device, interpreter=True)
    seen = consumer.ask("take", given)
    base.fill_(5)
    later = consumer.ask("read", "view")
    consumer.ask("fill", "whole", 9.0)
    found = [base.tolist(), given["view"].tolist(), consumer.ask("storages"), consumer.ask("drop"), consumer.end()]
    return seen, later, found


def leaves(device: str) -> Any:
    """Share parameters and leaves, with their types and gradient flags, and try to share a tensor with a graph."""
    consumer = Consumer(device)
    parameter = torch.nn.Parameter(torch.ones(3, device=device))
    seen = consumer.ask("take", {"parameter": parameter})
    others = {
        "frozen": torch.nn.Parameter(torch.ones(2, device=device), requires_grad=False),
        "leaf": torch.ones(2, device=device, requires_grad=True),
        "plain": torch.ones(2, device=device),
    }
    consumer.ask("hold", others)
    kinds = consumer.ask("kinds")
    try:
        multiprocessing.reductions.reduce_tensor(parameter * 2)
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    consumer.ask("fill", "parameter", 4.0)
    return seen, kinds, refused, parameter.tolist(), consumer.end()


def many_of_one_storage(device: str) -> Any:
    """Share views of one storage in many messages. The consumer drops them, and then the producer does."""
    consumer = Consumer(device)
    before = held(device)
    base = torch.zeros(64, device=device)
    for number in range(64):
        consumer.tell("hold", {f"view {number}": base[number:]})
    answers = [consumer.answer() for _ in range(64)]
    storages = consumer.ask("storages")
    consumer.ask("fill", "view 32", 3.0)
    seen = [base.sum().item(), consumer.ask("read", "view 63")]
    for number in range(63):
        consumer.ask("drop", f"view {number}")
    seen.append(consumer.ask("read", "view 63"))
    left = consumer.ask("drop")
    del base
    return answers[-1], storages, seen, left, settles(device, before), consumer.end()


def one_after_another(device: str) -> Any:
    """Share one storage in many rounds, each after the consumer has dropped it. Then free it."""
    consumer = Consumer(device)
    before = held(device)
    base = torch.zeros(256, device=device)
    read = []
    for number in range(20):
        base.fill_(number)
        consumer.ask("hold", {"it": base[number:]})
        read.append(consumer.ask("read", "it")[0])
        consumer.ask("drop")
    del base
    return read, settles(device, before), consumer.end()


def producer_drops_first(device: str) -> Any:
    """Drop a tensor that the consumer holds, and create new tensors of its size."""
    consumer = Consumer(device)
    before = held(device)
    shared = torch.full((MIB,), 3, dtype=torch.uint8, device=device)
    consumer.ask("hold", {"it": shared})
    del shared
    others = [torch.full((MIB,), 8, dtype=torch.uint8, device=device) for _ in range(8)]
    kept = held(device) - before
    seen = sorted(set(consumer.ask("read", "it")))
    intact = all(bool((other == 8).all()) for other in others)
    del others
    consumer.ask("drop")
    return seen, intact, kept >= (9 * MIB if device != "cpu" else 0), settles(device, before), consumer.end()


def consumer_ends_first(device: str) -> Any:
    """End the consumer while it holds a tensor. The producer uses the tensor further, and drops it."""
    first, second = Consumer(device), Consumer(device)
    before = held(device)
    shared = torch.full((MIB,), 3, dtype=torch.uint8, device=device)
    first.ask("hold", {"it": shared})
    first.ask("drop")
    status = first.end()
    second.ask("hold", {"it": shared})
    second.ask("fill", "it", 4.0)
    seen = shared.unique().tolist()
    second.ask("drop")
    del shared
    return status, seen, settles(device, before), second.end()


def killed_consumer(device: str) -> Any:
    """Kill a consumer that holds a tensor, and share the same tensor with another one."""
    victim, other = Consumer(device), Consumer(device)
    shared = torch.full((MIB,), 3, dtype=torch.uint8, device=device)
    victim.ask("hold", {"it": shared})
    victim.kill()
    shared.fill_(6)
    other.ask("hold", {"it": shared, "new": torch.full((4,), 2.0, device=device)})
    seen = [sorted(set(other.ask("read", "it"))), other.ask("read", "new")]
    other.ask("fill", "it", 7.0)
    return victim.process.exitcode, seen, shared.unique().tolist(), other.end()


def sent_on(device: str) -> Any:
    """Have a consumer try to share a tensor that it received."""
    consumer = Consumer(device)
    consumer.ask("hold", {"it": torch.ones(4, device=device)})
    return consumer.ask("again", "it"), consumer.ask("read", "it"), consumer.end()


def two_consumers(device: str) -> Any:
    """Share one tensor with two consumers, which drop it at different times."""
    consumers = [Consumer(device), Consumer(device)]
    before = held(device)
    shared = torch.full((MIB,), 1, dtype=torch.uint8, device=device)
    for consumer in consumers:
        consumer.ask("hold", {"it": shared})
    consumers[0].ask("fill", "it", 5.0)
    consumers[0].ask("drop")
    del shared
    others = [torch.full((MIB,), 8, dtype=torch.uint8, device=device) for _ in range(4)]
    seen = sorted(set(consumers[1].ask("read", "it")))
    del others
    consumers[1].ask("drop")
    return seen, settles(device, before), [consumer.end() for consumer in consumers]


def two_devices(device: str) -> Any:
    """Share tensors of two devices in one message. The consumer fills both."""
    consumer = Consumer(device)
    given = {f"of {index}": torch.full((4,), index + 1.0, device=f"cuda:{index}") for index in range(2)}
    seen = consumer.ask("take", given)
    for name in given:
        consumer.ask("fill", name, 9.0 if name == "of 0" else 8.0)
    found = [each.tolist() for each in given.values()]
    before = [torch.cuda.memory_allocated(index) for index in range(2)]
    consumer.ask("drop")
    given.clear()
    freed = [settles(f"cuda:{index}", amount - 512) for index, amount in enumerate(before)]
    return seen, found, freed, consumer.end()


def event_orders(device: str) -> Any:
    """Return the sums that a consumer reads while the producer's stream is late: without an event, and with one."""
    from suites.streams.busy import calibrate, sleep_on

    consumer = Consumer(device)
    calibrate(torch.device(device))
    shared = torch.zeros(1024, device=device)
    consumer.ask("hold", {"it": shared})
    consumer.ask("read_after", "it", None)  # completes its first-use initialization
    stream = torch.cuda.Stream(device)
    rounds = []
    for number in range(1, 4):
        torch.cuda.synchronize(device)
        event = torch.cuda.Event(interprocess=True)
        sleep_on(stream, 1500)
        with torch.cuda.stream(stream):
            shared.fill_(number)
            event.record()
        early = consumer.ask("read_after", "it", None)
        rounds.append((early, consumer.ask("read_after", "it", event), event.query()))
    return rounds, consumer.end()
