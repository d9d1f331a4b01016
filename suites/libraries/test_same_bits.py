"""Equal bits for equal inputs: across repetitions, streams and memory, where libraries promise it.

cuBLAS gives the same bits on one device with one stream, or with several if each has its own workspace, as in torch
(cuBLAS, 2.1.4). cuFFT and cuSOLVER do so for equal plans and inputs. Convolutions and scattered sums need deterministic
algorithms for this, and are in `numerics`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from suites.graphs.capturing import Api, apis, captured

from ..bfloat16 import BF16_PRODUCTS

Work = Callable[[torch.Tensor], torch.Tensor]

WORK: dict[str, Work] = {
    "mm_float32": lambda x: x @ x.t(),
    "mm_float64": lambda x: x.double() @ x.double().t(),
    "mm_float16": lambda x: x.half() @ x.half().t(),
    "mm_bfloat16": lambda x: x.bfloat16() @ x.bfloat16().t(),
    "mm_complex": lambda x: torch.view_as_real(torch.complex(x, -x) @ torch.complex(x.t(), x.t())),
    "mm_split": lambda x: x.view(4, -1) @ x.view(4, -1).t(),
    "bmm": lambda x: torch.bmm(x.view(8, -1, 64), x.view(8, -1, 64).mT),
    "linear": lambda x: F.linear(x, x[:50], x[0, :50]),
    "mv": lambda x: x @ x[0],
    "fft": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "rfft2": lambda x: torch.view_as_real(torch.fft.rfft2(x[:, :127])),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x[:64, :64] + x[:64, :64].t()),
    "svdvals": lambda x: torch.linalg.svdvals(x[:40, :60]),
    "solve": lambda x: torch.linalg.solve(x[:64, :64] + 20 * torch.eye(64, device=x.device), x[64:128, :3]),
    "qr": lambda x: torch.linalg.qr(x[:64, :32]).R,
    "cholesky": lambda x: torch.linalg.cholesky(x[:32] @ x[:32].t() + torch.eye(32, device=x.device)),
    "attention": lambda x: F.scaled_dot_product_attention(*x.view(3, 1, 4, -1, 32)),
    "sort": lambda x: x.flatten().sort(stable=True).indices,
    "topk": lambda x: x.topk(17).values,
    "softmax": lambda x: x.softmax(1),
}
MARKS = {"bfloat16": BF16_PRODUCTS, "float64": pytest.mark.types("float64")}
KIND = pytest.mark.parametrize(
    "work",
    [
        pytest.param(run, marks=[mark for word, mark in MARKS.items() if word in key], id=key)
        for key, run in WORK.items()
    ],
)


def given(device: torch.device) -> torch.Tensor:
    return torch.randn(192, 128).to(device)


@KIND
def test_repetitions_and_other_memory_give_the_same_bits(device: torch.device, work: Work) -> None:
    """Thirty repetitions, and copies of the inputs in other memory, give the bits of the first result."""
    x = given(device)
    first = work(x)

    for repeat in range(30):
        other = torch.randn(13 + 7 * repeat, 64, device=device)
        y = x.clone() if repeat % 2 else x
        assert torch.equal(work(y), first), f"repetition {repeat + 1} differs"
        del other


@pytest.mark.requires(accelerator=True)
@KIND
def test_streams_give_the_same_bits(device: torch.device, work: Work) -> None:
    """The same work on four concurrent streams, each with its own inputs, gives the bits of each alone."""
    inputs = [given(device) for _ in range(4)]
    alone = [work(x).cpu() for x in inputs]
    streams = [torch.Stream(device) for _ in inputs]
    torch.accelerator.synchronize(device)

    found: list[list[torch.Tensor]] = []
    for _ in range(5):
        row = []
        for stream, x in zip(streams, inputs, strict=True):
            with stream:
                row.append(work(x))
        found.append(row)
    torch.accelerator.synchronize(device)

    for row in found:
        for number, (result, expected) in enumerate(zip(row, alone, strict=True)):
            assert torch.equal(result.cpu(), expected), f"stream {number} differs"


#: Work whose library calls can be captured: no synchronization, no workspace at the first call.
CAPTURED = ("mm_float32", "mm_float16", "mm_complex", "mm_split", "bmm", "linear", "mv", "softmax")


@apis
@pytest.mark.parametrize("kind", CAPTURED)
def test_graph_replays_give_the_bits_of_eager_work(api: Api, device: torch.device, kind: str) -> None:
    """Replays of a graph give the bits of the same work without a graph, also for inputs written after the capture."""
    work, x = WORK[kind], given(device)
    found: list[torch.Tensor] = []
    graph = captured(api, device, lambda: found.append(work(x)))

    for _ in range(5):
        x.copy_(given(device))
        graph.replay()
        assert torch.equal(found[-1], work(x))
    graph.reset()


def test_other_inputs_give_other_bits(device: torch.device) -> None:
    """Control: one input that differs a little changes a product."""
    x = given(device)
    y = x.clone()
    y[3, 7] += 1e-3

    assert not torch.equal(x @ x.t(), y @ y.t())
