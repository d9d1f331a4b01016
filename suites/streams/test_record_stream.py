"""`Tensor.record_stream`: memory in use on another stream is not reused too early, and not kept forever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .busy import NOT_SHOWN, POISON, Dropped, calibrate, ever, sleep_on

pytestmark = pytest.mark.requires(accelerator=True)

# Large enough for a separate segment in the caching allocator, which then reuses it as a whole.
ELEMENTS = 3 << 20


def drop_while_in_use(
    device: torch.device,
    make: Callable[[torch.device], torch.Stream],
    guard: Callable[[torch.Tensor, torch.Stream], None],
) -> Dropped:
    """Drop a tensor of one stream before another, sleeping stream reads it, and allocate the same size.

    `guard` is called before the drop. If the dropped block is reused, it is overwritten with poison long before the
    sleeping stream reads it.
    """
    torch.accelerator.empty_cache()
    calibrate(device)
    owner, user = make(device), make(device)
    result = torch.empty(ELEMENTS, dtype=torch.int32, device=device)
    with owner:
        block = torch.full((ELEMENTS,), 7, dtype=torch.int32, device=device)
    torch.accelerator.synchronize(device)

    sleep_on(user)
    with user:
        result.copy_(block)
    guard(block, user)
    address = block.data_ptr()
    del block
    with owner:
        next_block = torch.full((ELEMENTS,), POISON, dtype=torch.int32, device=device)
    reused_at_once = next_block.data_ptr() == address

    torch.accelerator.synchronize(device)
    intact = bool((result == 7).all())
    with owner:
        last_block = torch.empty(ELEMENTS, dtype=torch.int32, device=device)
    return Dropped(reused_at_once, intact, last_block.data_ptr() == address)


def record_nothing(_tensor: torch.Tensor, _stream: torch.Stream) -> None:
    """Do not guard the tensor: the control."""


def record_whole(tensor: torch.Tensor, stream: torch.Stream) -> None:
    tensor.record_stream(stream)


def record_shifted_view(tensor: torch.Tensor, stream: torch.Stream) -> None:
    view = tensor[5:]
    assert view.storage_offset() > 0
    view.record_stream(stream)


@pytest.fixture
def _native_allocator(device: torch.device) -> None:
    backend = torch.cuda.get_allocator_backend() if device.type == "cuda" else "native"
    if backend != "native":
        pytest.skip(f"the case needs the caching allocator, but {backend!r} is in use")


CUDA = pytest.mark.requires(device="cuda")
WHOLE = pytest.param(
    record_whole,
    torch.cuda.Stream,
    id="whole",
    marks=[CUDA, pytest.mark.covers("test_cuda::TestCuda::test_record_stream")],
)
VIEW = pytest.param(
    record_shifted_view,
    torch.cuda.Stream,
    id="shifted_view",
    marks=[CUDA, pytest.mark.covers("test_cuda::TestCuda::test_record_stream_on_shifted_view")],
)
GENERIC_WHOLE = pytest.param(record_whole, torch.Stream, id="generic-whole")
GENERIC_VIEW = pytest.param(record_shifted_view, torch.Stream, id="generic-shifted_view")
CASES = pytest.mark.parametrize(("guard", "make"), [WHOLE, VIEW, GENERIC_WHOLE, GENERIC_VIEW])


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
@pytest.mark.usefixtures("_native_allocator")
@CASES
def test_record_stream_keeps_a_block_until_the_stream_is_done(
    device: torch.device,
    guard: Callable[[torch.Tensor, torch.Stream], None],
    make: Callable[[torch.device], torch.Stream],
) -> None:
    """A block recorded on a stream, through any view of it, is not reused until the stream's pending work is complete.

    As a control, without the record, the block must be observed to be reused immediately, and the stream to read
    poison.
    """

    def goes_wrong_unguarded() -> bool:
        trial = drop_while_in_use(device, make, record_nothing)
        return trial.reused_at_once and not trial.intact

    assert ever(goes_wrong_unguarded), NOT_SHOWN

    trial = drop_while_in_use(device, make, guard)

    assert not trial.reused_at_once
    assert trial.intact


@pytest.mark.requires(asynchronous=True)
@pytest.mark.usefixtures("_native_allocator")
@CASES
def test_record_stream_block_is_reused_once_the_stream_is_done(
    device: torch.device,
    guard: Callable[[torch.Tensor, torch.Stream], None],
    make: Callable[[torch.device], torch.Stream],
) -> None:
    """After the recorded stream completes, the next allocation of its size on its own stream reuses the block."""
    assert drop_while_in_use(device, make, guard).reused_when_done
