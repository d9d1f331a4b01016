"""Saved-tensor hooks under a captured pass: order, laziness, and saved tensors in other memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from suites.compiled import compare

from .models import gradients, rows

ROW = "test_compiled_autograd::TestCompiledAutograd::"


@pytest.mark.covers(f"{ROW}test_saved_tensor_unpack_hook_ordering")
def test_saved_tensors_hooks_unpack_when_needed(device: torch.device) -> None:
    """Saved tensors are unpacked once each, from the last function to the first.

    Each is unpacked only after the following function's gradient was computed.
    """
    diary: list[str] = []

    def work() -> Iterator[object]:
        diary.clear()

        def pack(tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
            number = sum(entry.startswith("pack ") for entry in diary)
            diary.append(f"pack {number}")
            return number, tensor

        def unpack(packed: tuple[int, torch.Tensor]) -> torch.Tensor:
            number, tensor = packed
            diary.append(f"unpack {number}")
            return tensor

        x = torch.randn(4).to(device).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            first = x.exp()
            second = first.sin()
            third = second.tanh()
        for number, tensor in enumerate((first, second, third)):
            tensor.register_hook(lambda _, number=number: diary.append(f"gradient {number}"))
        third.sum().backward()
        yield x.grad
        yield list(diary)

    assert compare(work, backend="eager", fullgraph=False).captures == 1
    assert [entry for entry in diary if entry.startswith("unpack")] == ["unpack 2", "unpack 1", "unpack 0"]
    assert diary.index("gradient 1") < diary.index("unpack 1")
    assert diary.index("gradient 0") < diary.index("unpack 0")


@pytest.mark.covers(f"{ROW}test_disk_offloading")
def test_saved_tensors_hooks_to_disk(device: torch.device, tmp_path: Path) -> None:
    """With hooks that save to files, the captured pass has the engine's gradients and reads every file."""
    read: list[str] = []

    def work() -> Iterator[object]:
        read.clear()
        written: list[str] = []

        def pack(tensor: torch.Tensor) -> str:
            path = tmp_path / f"{len(written)}.pt"
            torch.save(tensor, path)
            written.append(str(path))
            return str(path)

        @torch.compiler.disable
        def unpack(path: str) -> torch.Tensor:
            read.append(path)
            tensor: torch.Tensor = torch.load(path, weights_only=True)
            return tensor

        model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4)).to(device)
        x = rows(3, device).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            out = model(x).square().sum()
        out.backward()
        yield [x.grad, *gradients(model)]
        assert written
        yield sorted(set(written)) == sorted(set(read))

    assert compare(work, backend="eager", fullgraph=False).captures == 1
    assert read


@pytest.mark.requires(accelerator=True)
@pytest.mark.covers(f"{ROW}test_cpu_offloading")
@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
def test_save_on_cpu_brings_saved_tensors_back_to_the_device(device: torch.device, pinned: bool) -> None:
    """Under `save_on_cpu`, the captured pass moves saved tensors back to the device and has the engine's gradients."""

    def work() -> Iterator[object]:
        model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4)).to(device)
        x = rows(3, device).requires_grad_()
        with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
            out = model(x).square().sum()
        out.backward()
        yield [x.grad, *gradients(model)]

    assert compare(work, backend="eager", fullgraph=False).captures == 1


def test_saved_tensors_hooks_that_pack_to_bfloat16(device: torch.device) -> None:
    """The pass computes with the unpacked values.

    Packed as bfloat16, they give the engine's gradients with these hooks.
    """

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.bfloat16)

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        return packed.to(torch.float32)

    found: list[Any] = []

    def work() -> Iterator[object]:
        x = torch.randn(50).to(device).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            out = x.exp().sum()
        out.backward()
        yield x.grad
        found.append((x.detach(), x.grad))

    assert compare(work, backend="eager").captures == 1
    x, gradient = found[-1]
    assert not torch.equal(gradient, x.exp())
    torch.testing.assert_close(gradient, x.exp(), rtol=2**-8, atol=0)
