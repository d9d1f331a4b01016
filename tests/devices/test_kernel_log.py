"""Lines about GPUs in the kernel's log: read from files in the format of /dev/kmsg."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.devices import kernel_log

_XID = "NVRM: Xid (PCI:0000:01:00): 79, pid=123, GPU has fallen off the bus."
_LOG = f"""\
6,1,1000000,-;usb 1-1: new device
3,2,2000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module
3,3,7500000,-;{_XID}
 SUBSYSTEM=pci
 DEVICE=+pci:0000:01:00.0
4,4,8000000,c;nvidia-nvlink: link 3 down
6,5,9000000,-;Out of memory: Killed process 7 (python)
6,6,9500000,-;eth0: link is up
no record at all
3,7,soon,-;NVRM: a time that is none
"""


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (0.0, [2.0, 7.5, 8.0, 9.0]),
        (7.5, [7.5, 8.0, 9.0]),
        (8.5, [9.0]),
        (99.0, []),
    ],
)
def test_lines_about_gpus_since_a_moment(tmp_path: Path, moment: float, expected: list[float]) -> None:
    path = tmp_path / "kmsg"
    path.write_text(_LOG)
    found = kernel_log.gpu_log_lines_since(moment, path)
    assert [float(line[1:].partition("]")[0]) for line in found] == expected
    if moment == 7.5:
        assert found[0] == f"[{7.5:12.6f}] {_XID}"


def test_a_log_longer_than_a_reading_and_without_a_last_line_end(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("\n".join(f"3,{number},{number}000000,-;NVRM: line {number} {'x' * 90}" for number in range(500)))
    found = kernel_log.gpu_log_lines_since(100.0, path)
    assert [line.split("] ")[1].split()[2] for line in found] == [str(number) for number in range(100, 500)]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"3,1,1,-;NVRM: \xff\n")
    assert kernel_log.gpu_log_lines_since(0.0, path) == ["[    0.000001] NVRM: \ufffd"]


def test_without_a_log(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kernel_log.gpu_log_lines_since(0.0, tmp_path / "kmsg")
