"""Reads the pages of the ledger: what processes have used of the simulated devices. The layout is that of
``csrc/include/simcuda_ledger.h``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.core import temp_folder

#: The variable with the folder of the pages, and the variable with a folder that keeps a link to each.
FOLDER, RECORD = "SIMCUDA_LEDGER", "SIMCUDA_RECORD"

_MAGIC = 0x3230756463206D69
_OBJECTS = ("stream", "event", "graph", "executable graph")
_HEAD = struct.Struct(f"<Q{len(_OBJECTS)}q")
_DEVICE = struct.Struct("<QQQQqII")  # used, peak, kernels, busy, since, running, context
_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of one program have used.

    - `processes`: those that have used a device. `kernels`: launched by all of them.
    - `peaks`: by device, the most bytes that one process used at one time.
    - `left`: by kind of object, how many were not destroyed at the end of their process.
    """

    processes: int
    kernels: int
    peaks: Mapping[int, int]
    left: Mapping[str, int]


@contextmanager
def recorded(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield a folder for `RECORD`, beside the ledger, and remove it at the end. Raise WriteError if it cannot be made.

    Folders that killed processes have left are removed.
    """
    parent = Path(environ.get(FOLDER) or "/dev/shm")
    temp_folder.remove_abandoned_temp_folders(parent)
    made = temp_folder.make_temp_folder(parent)
    try:
        yield made
    finally:
        temp_folder.remove_temp_folder(made)


def read_usage(folder: Path) -> Usage:
    """Return the sum of the pages in a folder. A file that is no page, or not complete, does not count."""
    processes = kernels = 0
    peaks: dict[int, int] = {}
    left = dict.fromkeys(_OBJECTS, 0)
    for path in folder.iterdir():
        page = path.read_bytes()
        if len(page) < _HEAD.size + _DEVICES * _DEVICE.size:
            continue
        magic, *objects = _HEAD.unpack_from(page)
        if magic != _MAGIC:
            continue
        devices = list(_DEVICE.iter_unpack(page[_HEAD.size : _HEAD.size + _DEVICES * _DEVICE.size]))
        used = {index: peak for index, (_, peak, *_) in enumerate(devices) if peak}
        processes += bool(used)
        kernels += sum(launched for _, _, launched, *_ in devices)
        peaks |= {index: max(peak, peaks.get(index, 0)) for index, peak in used.items()}
        left = {name: left[name] + number for name, number in zip(_OBJECTS, objects, strict=True)}
    return Usage(processes, kernels, dict(sorted(peaks.items())), left)
