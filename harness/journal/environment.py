"""environment.json: the facts about machine, software and command that are needed to compare results.

`Places` finds those of a case: its host, devices and suite.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from harness import __version__
from harness.backends.table import labels
from harness.core.atomic import write_atomically
from harness.core.caseid import shard_index
from harness.core.errors import HarnessError
from harness.core.file_kind import FileKind
from harness.core.secrets import SECRET_NAME, mask_command, mask_secrets
from harness.core.text import escape_invalid_xml
from harness.devices import software
from harness.devices.capabilities import format_capability
from harness.devices.device import Inventory
from harness.journal.events import MergedShard, RunStarted
from harness.journal.verdicts import Verdict

FILE_NAME = "environment.json"
SCHEMA = 1

_DISTRIBUTIONS = ("torch", "triton", "numpy", "pytest", "pytest-xdist", "nvidia-ml-py", "junitparser", "pydantic")
_GIT_TIMEOUT = 10.0  # seconds; git needs several seconds for a work tree on a slow network file system

# Do not record the whole environment: it contains secrets. The variables below change the results of cases.
_RECORDED = re.compile(
    r"(CUDA|TORCH|TORCHDYNAMO|TORCHINDUCTOR|TRITON|PYTORCH|NVIDIA|MKL|SOFT|SIMCUDA)_.*|OMP_NUM_THREADS"
)


class EnvironmentFileError(HarnessError):
    """The environment file of a run cannot be read."""


#: The file of a run has a few KiB.
KIND = FileKind("environment file", f"give a run directory with {FILE_NAME}", EnvironmentFileError, 16 << 20)


def collect_environment(
    inventory: Inventory,
    *,
    argv: Sequence[str],
    seed: int,
    isolation: str,
    rootdir: Path,
    environ: Mapping[str, str] | None = None,
    software_device: Mapping[str, str] | None = None,
    under: str | None = None,
) -> dict[str, Any]:
    """Collect the facts as JSON values. Memory is in bytes; unknown values are None. `environ` defaults to
    ``os.environ``.

    `software_device`: compiler, key and file of the software device's library, for a run on it. `under`: the name of
    the wrapper in which each test is called.

    Does not import torch and does not initialise CUDA. Runs git twice in `rootdir`. A missing tool or package raises
    nothing.
    """
    cuda = software.torch_cuda_version().value
    return {
        "schema": SCHEMA,
        "host": escape_invalid_xml(platform.node()),
        "os": _os(),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "memory": psutil.virtual_memory().total,
        "devices": [asdict(device) for device in inventory.devices],
        "hidden_devices": [asdict(device) for device in inventory.hidden],
        "driver": inventory.driver,
        "cuda_driver": inventory.cuda_driver,
        "nvml_error": inventory.nvml_error,
        "notes": list(inventory.notes),
        "software_device": None
        if software_device is None
        else {n: escape_invalid_xml(t) for n, t in software_device.items()},
        "versions": {
            "harness": __version__,
            "python": platform.python_version(),
            "cuda": None if cuda is None else format_capability("cuda", cuda),
            **{name: software.installed_version(name) for name in _DISTRIBUTIONS},
        },
        "python": escape_invalid_xml(sys.executable),
        "command": [escape_invalid_xml(word) for word in mask_command(argv)],
        "seed": seed,
        "isolation": isolation,
        "under": under,
        "rootdir": escape_invalid_xml(str(rootdir)),
        "git": git_state(rootdir),
        "environment": recorded_variables(os.environ if environ is None else environ),
    }


def write_environment(run_dir: Path, facts: Mapping[str, Any]) -> Path:
    """Write `facts`, as `collect_environment` returns them, to ``run_dir/environment.json``. Raise WriteError."""
    return write_atomically(run_dir / FILE_NAME, (json.dumps(facts, indent=2, allow_nan=False) + "\n").encode("ascii"))


def read_environment(run_dir: Path) -> dict[str, Any] | None:
    """Return the facts of a run; None if it has no such file. Raise EnvironmentFileError for a file of another kind."""
    path = run_dir / FILE_NAME
    data = KIND.read_if_exists(path)
    if data is None:
        return None
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise EnvironmentFileError(f"{str(path)!r} is not the environment file of a run: expected a JSON object")
    return facts


def devices_of(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the devices in the facts of a run. Malformed entries are left out."""
    devices = facts.get("devices")
    return [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []


def mapping(value: object) -> Mapping[Any, Any]:
    """Return a JSON object; an empty one in place of another value."""
    return value if isinstance(value, dict) else {}


def recorded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the recorded variables by name. If a name looks like a secret, the value is not recorded.

    In the other values, `mask_secrets` cuts what looks like a secret.
    """
    return {
        escape_invalid_xml(name): "(set, not recorded)"
        if SECRET_NAME.search(name)
        else escape_invalid_xml(mask_secrets(value))
        for name, value in sorted(environ.items())
        if _RECORDED.fullmatch(name)
    }


def git_state(folder: Path) -> dict[str, Any]:
    """Return the `commit` checked out in `folder` and whether tracked files are `dirty`. If unknown: None and a
    `reason`.

    For the suites of a wheel, this is the commit that the wheel was built from.
    """
    if (built := _wheel_state(folder)) is not None:
        return built
    try:
        commit = _git(folder, "rev-parse", "--verify", "HEAD^{commit}")
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except OSError as error:
        reason = f"git could not be started ({error.strerror})"
    except subprocess.TimeoutExpired:
        reason = f"git did not finish within {_GIT_TIMEOUT:.0f} s"
    except subprocess.CalledProcessError as error:
        words = mask_secrets(escape_invalid_xml(error.stderr.decode(errors="replace"))).strip()
        reason = f"git ended with status {error.returncode}: {words}"
    else:
        return {"commit": commit, "dirty": bool(changes), "reason": None}
    return {"commit": None, "dirty": None, "reason": reason}


def _wheel_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit that the wheel with this folder was built from; None if it has none (see setup.py)."""
    try:
        built = json.loads((folder / "commit.json").read_bytes())
        commit, dirty = built["commit"], built["dirty"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not (isinstance(commit, str) and isinstance(dirty, bool)):
        return None
    return {"commit": escape_invalid_xml(commit), "dirty": dirty, "reason": "from commit.json"}


def _git(folder: Path, *arguments: str) -> str:
    # A git hook that starts the run sets variables such as GIT_DIR, which would redirect git to another repository.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    done = subprocess.run(
        ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environ,
        timeout=_GIT_TIMEOUT,
        check=True,
    )
    return done.stdout.decode(errors="replace").strip()


def _os() -> dict[str, str | None]:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:  # an image without os-release
        name = None
    return {"name": name, "kernel": platform.release(), "machine": platform.machine()}


class Place(NamedTuple):
    """The place of a case. If `devices` is empty, the case used none of several devices of the run.

    `shard`: the text of the shard that ran it; empty unless the run was merged.
    """

    suite: str
    host: str
    devices: tuple[str, ...]
    shard: str = ""


class Places:
    """The places of a run. `facts`: the facts of environment.json; None without the file."""

    def __init__(
        self, runs: Sequence[RunStarted], shards: Sequence[MergedShard], facts: Mapping[str, Any] | None
    ) -> None:
        self._runs = runs
        self._times = [run.t for run in runs]
        self._shards = {shard.shard: shard for shard in shards}
        self._count = max((int(text.rpartition("/")[2]) for text in self._shards if _is_shard(text)), default=0)
        self._recorded = facts or {}

    def of(self, verdict: Verdict) -> Place:
        """Return the place of a case.

        It is that of the deciding attempt, else of the latest attempt, else the planned place.
        """
        if self._shards:
            text = f"{shard_index(verdict.case, self._count)}/{self._count}" if self._count else ""
            line = self._shards.get(text)
            return self._place(verdict, text, line)
        return self._place(verdict, "", self._run_of(verdict))

    def _place(self, verdict: Verdict, shard: str, where: MergedShard | RunStarted | None) -> Place:
        if where is None:
            return Place(verdict.suite, "", verdict.devices, shard)
        only = where.devices if len(where.devices) == 1 else ()
        return Place(verdict.suite, where.host, verdict.devices or only, shard)

    def _run_of(self, verdict: Verdict) -> RunStarted | None:
        """Return the part of the run that the case belongs to. A resumed run may continue on another host."""
        if len(self._runs) < 2:
            return self._runs[0] if self._runs else None
        attempt = verdict.decided or next(reversed(verdict.finishes), None)
        if attempt is None:
            return self._runs[-1]
        return self._runs[max(0, bisect_right(self._times, attempt.t) - 1)]

    def facts(self, place: Place) -> dict[str, str]:
        """Return the known facts of a place, by name. Unknown facts are left out."""
        recorded = self._environment(place)
        run = self._runs[-1] if self._runs else None
        identity = run.identity if run is not None else {}
        versions = mapping(recorded.get("versions"))
        facts = {
            "device": self.device(place),
            "uuid": " ".join(uuid for uuid in place.devices if uuid != "cpu"),
            "driver": recorded.get("driver") or identity.get("driver"),
            "cuda": versions.get("cuda"),
            "cuda_driver": recorded.get("cuda_driver"),
            "torch": versions.get("torch") or identity.get("torch"),
        }
        return {name: str(value) for name, value in facts.items() if value and value != "none"}

    def device(self, place: Place) -> str:
        """Return a text for the devices of a place: their label if they are not GPUs, else the known names."""
        rows = {str(row.get("uuid")): str(row.get("name")) for row in devices_of(self._environment(place))}
        return labels(place.devices) or ", ".join(dict.fromkeys(rows.get(uuid, uuid) for uuid in place.devices))

    def _environment(self, place: Place) -> Mapping[str, Any]:
        recorded = self._recorded
        shards = recorded.get("shards")
        if isinstance(shards, dict):
            return mapping(shards.get(place.shard))
        # The file describes the last part of a run.
        return recorded if not place.host or recorded.get("host") in (None, place.host) else {}


def _is_shard(text: str) -> bool:
    index, slash, count = text.partition("/")
    return bool(slash) and index.isdecimal() and count.isdecimal() and int(count) > 0
