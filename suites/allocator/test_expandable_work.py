"""Expandable segments and queued work: pages are unmapped once no queued work uses them."""

from __future__ import annotations

import pytest
import torch

from .answers import ask

pytestmark = [
    pytest.mark.requires(device="cuda", expandable_segments=True, devices=2),
    pytest.mark.timeout(300),
]

CONF = "expandable_segments:True"
#: Sleeps, writes to a tensor, drops it, and runs `{release}`, which unmaps the free pages. The last line reports
#: whether the writes were pending at that time, whether pages were released, and the error of the device.
SCRIPT = """
torch.zeros(1, device="cuda:1")
stream = {stream}
with torch.cuda.stream(stream):
    for _ in range(2):
        x = new(64 * MIB)
        torch.cuda._sleep(1)
        x.fill_(1)
    torch.cuda.synchronize(0)
    torch.cuda._sleep(400_000_000)
    for _ in range(4):
        x.fill_(1)
    pending = not stream.query()
    del x
reserved = counter("reserved_bytes")
{release}
given_back = reserved - counter("reserved_bytes")
tell([pending, given_back >= 20 * MIB, failure(lambda: torch.cuda.synchronize(0)).partition(":")[0]])
"""
DEFAULT, SIDE = "torch.cuda.default_stream(0)", "torch.cuda.Stream(0)"
EMPTY = "with torch.cuda.device({}):\n    torch.cuda.empty_cache()"


WRONG_DEVICE = pytest.mark.xfail(
    raises=AssertionError,
    reason="torch 2.11 to 2.14 wait for the default stream of the current device"
    " (https://github.com/pytorch/pytorch/issues/196258)",
)


@pytest.mark.parametrize(
    ("stream", "current"),
    [
        pytest.param(DEFAULT, 0, id="default_stream-same_device"),
        pytest.param(DEFAULT, 1, id="default_stream-other_device", marks=WRONG_DEVICE),
        pytest.param(SIDE, 0, id="side_stream-same_device"),
        pytest.param(SIDE, 1, id="side_stream-other_device"),
    ],
)
@pytest.mark.own_process
def test_expandable_segments_empty_cache_waits_for_work_on_free_pages(
    device: torch.device, stream: str, current: int
) -> None:
    """`empty_cache` unmaps free pages only when the work queued on them is done, whichever device is current.

    `cuMemUnmap` does not wait, unlike `cudaFree` (CUDA Driver API, "Virtual Memory Management"), so torch must.
    """
    script = SCRIPT.format(stream=stream, release=EMPTY.format(current))

    assert ask(script, device, CONF) == [True, True, ""]
