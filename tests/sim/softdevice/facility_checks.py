"""Checks of the soft device's state and replays: generators, autocast, saved and copied tensors, graphs."""

from __future__ import annotations

import copy
import io
import os
import pickle
from typing import Any

import pytest
import torch

from tests.sim.softdevice import inside

MIB = 1 << 20


def soft() -> Any:
    """Return the device's module, which is untyped in torch."""
    return torch.get_device_module("soft")


def stats(device: int = 0) -> dict[str, int]:
    return dict(torch.accelerator.memory_stats(device))


# ---- generators ----


@inside.check(SOFT_DEVICE_COUNT="2")
def generators_have_seed_offset_and_state() -> None:
    generator = torch.Generator("soft:1")
    assert generator.device == torch.device("soft:1")
    assert generator.initial_seed() == torch.Generator("soft:1").initial_seed()
    generator.manual_seed(7)
    assert generator.initial_seed() == 7
    state = generator.get_state()
    assert state.tolist() == [7, 0, 0, 0, 0, 0, 0, 0] + [0] * 8
    first = torch.rand(5, device="soft:1", generator=generator)
    assert generator.get_offset() == 4
    second = torch.rand(5, device="soft:1", generator=generator)
    clone = generator.clone_state()
    generator.set_state(state)
    assert torch.equal(torch.rand(5, device="soft:1", generator=generator), first)
    generator.set_offset(4)
    assert torch.equal(torch.rand(5, device="soft:1", generator=generator), second)
    assert torch.equal(
        torch.rand(5, device="soft:1", generator=generator), torch.rand(5, device="soft:1", generator=clone)
    )
    assert not torch.equal(first, second)
    with pytest.raises(RuntimeError, match="multiple of 4, got 3"):
        generator.set_offset(3)
    with pytest.raises(RuntimeError, match="16 bytes, got 5"):
        generator.set_state(torch.zeros(5, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match=r"(?i)generator"):
        torch.rand(2, device="soft:0", generator=generator)


@inside.check(SOFT_DEVICE_COUNT="2")
def default_generators_follow_torchs_seeding() -> None:
    torch.manual_seed(11)
    assert soft().initial_seed() == 11
    one = torch.rand(4, device="soft"), torch.rand(4, device="soft:1")
    torch.manual_seed(11)
    assert torch.equal(torch.rand(4, device="soft"), one[0])
    assert torch.equal(torch.rand(4, device="soft:1"), one[1])
    states = soft().get_rng_state_all()
    expected = torch.rand(4, device="soft")
    soft().set_rng_state_all(states)
    assert torch.equal(torch.rand(4, device="soft"), expected)
    with torch.random.fork_rng(devices=[0, 1], device_type="soft"):
        torch.rand(4, device="soft")
    after = soft().get_rng_state(0)
    soft().set_rng_state(after)
    soft().seed_all()
    assert soft().initial_seed() != 11
    assert soft().initial_seed() == soft().get_rng_state("soft:1").view(torch.int64)[0].item()
    soft().manual_seed(-1)
    assert soft().initial_seed() == 2**64 - 1
    soft().set_rng_state(states[0], "soft:0")
    with pytest.raises(TypeError, match="expected a uint8 tensor on the cpu"):
        soft().set_rng_state(torch.zeros(16))


@inside.check(SOFT_DEVICE_COUNT="2")
def forked_generators_come_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4, device="soft")
    torch.manual_seed(5)
    with torch.random.fork_rng(devices=[0], device_type="soft"):
        torch.rand(100, device="soft")
    assert torch.equal(torch.rand(4, device="soft"), expected)


# ---- autocast ----


@inside.check(SOFT_DEVICE_COUNT="2")
def autocast_follows_cudas_lists() -> None:
    single = torch.ones(4, 4, device="soft")
    half = torch.ones(4, 4, device="soft", dtype=torch.float16)
    double = torch.ones(4, 4, device="soft", dtype=torch.float64)
    with torch.autocast("soft"):
        assert torch.is_autocast_enabled("soft")
        assert torch.mm(single, single).dtype == torch.float16
        assert torch.nn.functional.linear(single, single).dtype == torch.float16
        assert torch.mm(double, double).dtype == torch.float64
        assert half.exp().dtype == torch.float32
        assert half.sum().dtype == torch.float32
        assert half.sum(dtype=torch.float16).dtype == torch.float16
        assert half.softmax(0).dtype == torch.float32
        assert half.norm().dtype == torch.float32
        assert torch.cat([single, half]).dtype == torch.float32
        assert torch.stack([half, half]).dtype == torch.float16
        assert torch.addcmul(half, single, half).dtype == torch.float32
        assert (half + half).dtype == torch.float16
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            torch.nn.functional.binary_cross_entropy(half, half)
        with torch.autocast("soft", enabled=False):
            assert torch.mm(single, single).dtype == torch.float32
    with torch.autocast("soft", dtype=torch.bfloat16):
        assert torch.mm(single, single).dtype == torch.bfloat16
    assert torch.mm(single, single).dtype == torch.float32


@inside.check(SOFT_DEVICE_COUNT="2")
def autocast_casts_a_weight_once_and_trains_it() -> None:
    weight = torch.ones(4, 4, device="soft", requires_grad=True)
    values = torch.ones(4, 4, device="soft")
    with torch.autocast("soft"):
        held = torch.accelerator.memory_stats()["allocation.all.allocated"]
        first = torch.mm(values, weight)
        once = torch.accelerator.memory_stats()["allocation.all.allocated"] - held
        second = torch.mm(values, weight)
        twice = torch.accelerator.memory_stats()["allocation.all.allocated"] - held - once
        assert twice < once
        loss = (first + second).float().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert weight.grad.tolist() == [[8.0] * 4] * 4


# ---- saving, copying, pickling ----


@inside.check(SOFT_DEVICE_COUNT="2")
def tensors_are_saved_loaded_and_mapped() -> None:
    values = torch.arange(6, dtype=torch.float32, device="soft:1")

    def loaded(**options: Any) -> torch.Tensor:
        file = io.BytesIO()
        torch.save({"values": values}, file)
        file.seek(0)
        result = torch.load(file, **options)["values"]
        assert isinstance(result, torch.Tensor)
        return result

    assert loaded().device == torch.device("soft:1")
    assert loaded(map_location="cpu").device.type == "cpu"
    assert loaded(map_location="soft:0").device == torch.device("soft:0")
    assert loaded(map_location={"soft:1": "soft:0"}).device == torch.device("soft:0")
    assert loaded().tolist() == loaded(map_location="cpu").tolist() == values.tolist()
    with pytest.raises(RuntimeError, match=r"device_count\(\) is 2"):
        loaded(map_location="soft:9")
    file = io.BytesIO()
    torch.save(values.untyped_storage(), file)
    file.seek(0)
    storage = torch.load(file, weights_only=False).untyped()
    assert storage.device == torch.device("soft:1")
    assert bytes(storage.cpu().tolist()) == values.cpu().numpy().tobytes()


@inside.check(SOFT_DEVICE_COUNT="2")
def tensors_are_pickled_and_copied_deeply() -> None:
    values = torch.arange(6, dtype=torch.float32, device="soft", requires_grad=True)
    twin = copy.deepcopy(values)
    assert twin.device == values.device
    assert twin.requires_grad
    assert twin.data_ptr() != values.data_ptr()
    assert torch.equal(twin, values)
    again = pickle.loads(pickle.dumps(values))
    assert again.device == values.device
    assert torch.equal(again, values)
    module = torch.nn.Linear(3, 2).to("soft")
    assert {parameter.device.type for parameter in copy.deepcopy(module).parameters()} == {"soft"}
    assert values.is_soft  # type: ignore[attr-defined]
    assert torch.zeros(2).soft(1).device == torch.device("soft:1")  # type: ignore[attr-defined]
    assert next(torch.nn.Linear(2, 2).soft().parameters()).is_soft  # type: ignore[operator]


# ---- graphs ----


@inside.check(SOFT_DEVICE_COUNT="2")
def graphs_capture_and_replay() -> None:
    assert soft().supports_graphs() == hasattr(torch.accelerator, "Graph")
    source = torch.ones(4, device="soft")
    total = torch.zeros(4, device="soft")
    graph = torch.accelerator.Graph()
    stream = torch.Stream("soft")
    torch.accelerator.synchronize()
    with stream, graph:
        assert stream.is_capturing()
        assert soft().is_current_stream_capturing()
        total += source * 2
    assert not stream.is_capturing()
    torch.accelerator.synchronize()
    assert total.tolist() == [0.0] * 4  # captured, not run
    graph.replay()
    source.fill_(5)
    graph.replay()
    torch.accelerator.synchronize()
    assert total.tolist() == [12.0] * 4
    assert graph.pool() != (0, 0)
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with stream, graph:
        total -= 1
    graph.replay()
    torch.accelerator.synchronize()
    assert total.tolist() == [11.0] * 4


@inside.check(SOFT_DEVICE_COUNT="2")
def graphs_draw_new_numbers_at_each_replay() -> None:
    torch.manual_seed(1)
    values = torch.empty(4, device="soft")
    expected = [torch.rand(4, device="soft") for _ in range(3)]
    torch.manual_seed(1)
    graph = torch.accelerator.Graph()
    torch.accelerator.synchronize()
    with torch.Stream("soft"), graph:
        values.uniform_()
    drawn = []
    for _ in range(3):
        graph.replay()
        drawn.append(values.clone())
    torch.manual_seed(1)
    graph.replay()
    assert [one.tolist() for one in drawn] == [one.tolist() for one in expected]
    assert values.tolist() == expected[0].tolist()


@inside.check(SOFT_DEVICE_COUNT="2")
def graphs_that_are_misused_say_so() -> None:
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match=r"without a capture_begin"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match="default stream"):
        graph.capture_begin()
    stream = torch.Stream("soft")
    values = torch.zeros(3, device="soft")
    torch.accelerator.synchronize()
    with stream:
        graph.capture_begin()
        values += 1
        with pytest.raises(torch.AcceleratorError):
            torch.accelerator.synchronize()
        with pytest.raises(torch.AcceleratorError):
            graph.capture_end()
        graph.reset()
        graph.capture_begin()
        values += 1
        graph.capture_end()
    graph.replay()
    torch.accelerator.synchronize()
    assert values.tolist() == [1.0] * 3
    kept = torch.accelerator.Graph(keep_graph=True)
    kept.enable_debug_mode()
    with stream, kept:
        values += 1
    path = f"/proc/self/fd/{os.memfd_create('dump')}"
    kept.debug_dump(path)
    with open(path) as file:
        assert file.read().startswith("digraph")
    with pytest.raises(RuntimeError, match="enable_debug_mode"):
        graph.debug_dump(path)
    kept.replay()
    torch.accelerator.synchronize()
    assert values.tolist() == [2.0] * 3
