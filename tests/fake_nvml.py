"""A fake ``libnvidia-ml.so.1`` for tests on machines without GPUs: the real pynvml loads it in a separate process.

That process's environment describes the machine (`environment`). The state of its GPUs is in a file that the fake reads
at each call (`State`), so a test can change it while the process runs:

    state = State(tmp_path / "gpus")
    environ = environment(folder, gpus=2, state=state)
    …start a process with `environ`…
    state.set(0, ecc_uncorrected=1, temperature=91)  # GPU 0 from now on
    state.set(1, lost=1)                             # or lost_from=20: from its 20th query on
    state.set(1, nvmlDeviceGetTemperature=999)       # the status that one call returns; 997: it does not return
    state.xid(0, 79)                                 # an event, to each process that watches GPU 0 now

The top of the C file describes the words and their numbers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).with_name("devices") / "fake_nvml" / "fake_nvml.c"


def build(folder: Path) -> Path:
    """Compile the fake into `folder` and return `folder`. Raise CalledProcessError if it does not compile."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("the tests compile a fake nvml, and need cc, gcc or clang on the path")
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE)], check=True, timeout=120)
    return folder


class State:
    """The state of a fake's GPUs, in the file `path`. Each change replaces the file atomically for all readers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._words: dict[tuple[int, str], int] = {}
        self._xids: list[str] = []
        self._write()

    def set(self, gpu: int, **words: int) -> None:
        """Change the words of GPU number `gpu`; words that are not named keep their values."""
        self._words.update({(gpu, word): number for word, number in words.items()})
        self._write()

    def xid(self, gpu: int, number: int, instance: int | None = None) -> None:
        """Report an Xid of a GPU, or of the GPU instance in one of its slots."""
        self._xids.append(f"{gpu} xid {number}" + ("" if instance is None else f" {instance}"))
        self._write()

    def _write(self) -> None:
        lines = [f"{gpu} {word} {number}" for (gpu, word), number in self._words.items()] + self._xids
        whole = self.path.with_name(f"{self.path.name}.new")
        whole.write_text("".join(f"{line}\n" for line in lines))
        whole.replace(self.path)


def environment(
    folder: Path,
    *,
    gpus: int = 8,
    mig: Iterable[int] = (),
    lost: Iterable[int] = (),
    gone: Iterable[int] = (),
    no_ecc: Iterable[int] = (),
    other: Iterable[int] = (),
    no_events: Iterable[int] = (),
    state: State | None = None,
    **more: str,
) -> dict[str, str]:
    """Return the environment for a new process that sees `gpus` GPUs: this one's, without a device mask.

    The iterables are indices: with MIG mode on, lost, lost before they can be named, without ECC, of another model, and
    without events. `state` has their state. `more` are further variables, which the top of the C file describes. The
    loader reads its path when a process starts, so changing ``os.environ`` has no effect.
    """
    lists = {"MIG": mig, "LOST": lost, "GONE": gone, "NO_ECC": no_ecc, "OTHER": other, "NO_EVENTS": no_events}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "FAKE_NVML_"))}
    path = os.pathsep.join(filter(None, [str(folder), inherited.get("LD_LIBRARY_PATH")]))
    return {
        **inherited,
        "LD_LIBRARY_PATH": path,
        "FAKE_NVML_GPUS": str(gpus),
        **({} if state is None else {"FAKE_NVML_STATE": str(state.path)}),
        **{f"FAKE_NVML_{name}": ",".join(map(str, indices)) for name, indices in lists.items()},
        **more,
    }
