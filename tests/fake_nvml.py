"""A fake ``libnvidia-ml.so.1`` for tests on machines without GPUs: the real pynvml loads it in a process of its own.

What a machine is stands in that process's environment (`environment`). How its GPUs fare stands in a file that the fake
reads at every call (`State`), so that a test can have it change while the process runs:

    state = State(tmp_path / "gpus")
    environ = environment(folder, gpus=2, state=state)
    …start a process with `environ`…
    state.set(0, ecc_uncorrected=1, temperature=91)  # GPU 0 from now on
    state.set(1, lost=1)                             # or lost_from=20: from the 20th question about it on
    state.set(1, nvmlDeviceGetTemperature=999)       # the status that one call returns; 997: it does not return
    state.xid(0, 79)                                 # an event, to every process that watches GPU 0 now

The words, and what their numbers mean, stand at the top of the C file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).with_name("devices") / "fake_nvml" / "fake_nvml.c"


def build(folder: Path) -> Path:
    """Compile the fake into `folder` and return `folder`. Raises CalledProcessError when the compiler refuses it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("the tests compile a fake nvml, and need cc, gcc or clang on the path")
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE)], check=True, timeout=120)
    return folder


class State:
    """How the GPUs of a fake fare, in the file `path`. Every change replaces the file at once, for all its readers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._words: dict[tuple[int, str], int] = {}
        self._xids: list[str] = []
        self._write()

    def set(self, gpu: int, **words: int) -> None:
        """Change what the words say of GPU number `gpu`; what was said before and is not named stays."""
        self._words.update({(gpu, word): number for word, number in words.items()})
        self._write()

    def xid(self, gpu: int, number: int, instance: int | None = None) -> None:
        """Have an Xid happen to a GPU, or to the GPU instance in one of its slots."""
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
    """The environment for a new process that is to see `gpus` GPUs: this one's, without a mask of its devices.

    The iterables are indices: with MIG mode on, lost, lost before they can be named, without ECC, of another model, and
    without events. `state` says how they fare. `more` are further variables; what they can be stands at the top of the
    C file. The loader reads its path when a process starts, so changing ``os.environ`` does nothing.
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
