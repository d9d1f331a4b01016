"""Builds the library of the software device at its first use, and caches it.

``python -m harness.softdevice.build`` builds it by hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from harness.softdevice import toolchain
from harness.softdevice.toolchain import BuildError, Toolchain

CSRC = Path(__file__).with_name("csrc")
#: The name of the module in the library; Python calls its function ``PyInit__softdevice``.
MODULE = "_softdevice"

_FOLDERS = ("aten", "core")  # the files that take longest to compile come first
_APPLICATION = "gpu-conformance-harness"
_LOCK_LIMIT = 3600.0  # seconds; a build takes minutes on a small machine, and several may wait for it
_MEMORY_OF_ONE = 1 << 30  # bytes that the compiler needs for one file with torch's headers
_KEPT = 30 * 24 * 3600.0  # seconds that an unused entry stays in the cache
_MOST_ERRORS = 5
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

Progress = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a build: the key of the library, and the key of the object of each source, relative to `root`."""

    root: Path
    key: str
    objects: Mapping[Path, str]


def build(
    progress: Progress | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    csrc: Path = CSRC,
    tools: Toolchain | None = None,
) -> Path:
    """The library for this interpreter and its torch, built now if it is not in the cache.

    If several processes call this at once, one builds and the others wait. `progress` gets lines about the progress; by
    default they go to stderr. Raises BuildError, with the first error lines of the compiler, if any.
    """
    report = _to_stderr if progress is None else progress
    tools = toolchain.find(environ) if tools is None else tools
    cache = cache_folder(environ)
    plan = plan_for(tools, csrc)
    library = cache / plan.key / f"{MODULE}.so"
    if library.is_file():
        _touch(library.parent)
        return library

    from filelock import FileLock, Timeout  # slow to import, and not needed for a cached library

    # One lock for all keys: a build uses all processors anyway, and the next build finds the shared objects.
    lock = FileLock(cache / "building.lock")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report("waiting for another process that builds the software device")
            lock.acquire(timeout=_LOCK_LIMIT)
        try:
            if not library.is_file():
                _build(plan, tools, cache, library, environ, report)
        finally:
            lock.release()
    except Timeout:
        raise BuildError(
            f"another process has been building the software device for {_LOCK_LIMIT:.0f} s and holds the lock "
            f"{lock.lock_file!r}: end that process and try again"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise BuildError(
            f"cannot write the software device to {str(cache)!r} ({error}): set $HARNESS_CACHE_DIR to another folder"
        ) from None
    return library


def describe(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Compiler and key of the library that `build` returns, for reports. Raises BuildError."""
    tools = toolchain.find(environ)
    return {"compiler": tools.compiler_text, "key": plan_for(tools, CSRC).key}


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the cached libraries. Raises BuildError if no variable names one and there is no home folder."""
    if own := environ.get("HARNESS_CACHE_DIR"):
        return Path(own).absolute() / "softdevice"
    shared = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # the XDG specification says: ignore relative paths
        return Path(shared) / _APPLICATION / "softdevice"
    home = environ.get("HOME") or os.path.expanduser("~")
    if not os.path.isabs(home):
        raise BuildError("there is no home folder to cache the software device in: set $HARNESS_CACHE_DIR")
    return Path(home) / ".cache" / _APPLICATION / "softdevice"


def plan_for(tools: Toolchain, csrc: Path) -> Plan:
    """The plan for all sources in `csrc`. Raises BuildError if there are none, or an included file is missing."""
    sources = [file for folder in _FOLDERS for file in sorted((csrc / folder).glob("*.cpp"))]
    if not sources:
        raise BuildError(f"no C++ sources of the software device in {str(csrc)!r}: reinstall the harness")
    contents: dict[Path, str] = {}
    objects = {}
    for source in sources:
        parts = sorted((file.relative_to(csrc).as_posix(), contents[file]) for file in _closure(source, contents))
        objects[source.relative_to(csrc)] = _hash([tools.identity(), source.relative_to(csrc).as_posix(), parts])
    return Plan(csrc, _hash([tools.identity(), MODULE, sorted(objects.values())]), objects)


def _closure(source: Path, contents: dict[Path, str]) -> set[Path]:
    """The file and all files that it includes with ``"..."``, also indirectly. Adds their text to `contents`."""
    found: set[Path] = set()
    open_ = [source]
    while open_:
        file = open_.pop()
        if file in found:
            continue
        found.add(file)
        try:
            text = contents[file] if file in contents else file.read_text(encoding="utf-8")
        except OSError as error:
            raise BuildError(f"cannot read {str(file)!r}, a source of the software device ({error.strerror})") from None
        contents[file] = text
        open_ += [Path(os.path.normpath(file.parent / name)) for name in _INCLUDE.findall(text)]
    return found


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def _build(
    plan: Plan, tools: Toolchain, cache: Path, library: Path, environ: Mapping[str, str], report: Progress
) -> None:
    """Compile the missing objects and link them. The library appears atomically."""
    begin = time.monotonic()
    store = cache / "objects"
    store.mkdir(exist_ok=True)
    log = cache / f"{plan.key}.log"
    missing = [source for source, key in plan.objects.items() if not (store / f"{key}.o").is_file()]
    environ = {**environ, "LC_ALL": "C"}  # the output is searched for the word "error"
    with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as folder, log.open("wb") as notes:
        work = Path(folder)
        done = 0
        with ThreadPoolExecutor(_jobs(len(missing), environ)) as pool:
            running = {}
            for source in missing:
                output = work / f"{plan.objects[source]}.o"
                command = [*tools.compiler, *tools.flags, "-c", str(source), "-o", str(output)]
                running[pool.submit(_run, command, plan.root, environ)] = source
            try:
                for future in as_completed(running):
                    source = running[future]
                    status, text, seconds = future.result()
                    notes.write(text)
                    if status:
                        raise BuildError(_error_text(f"compiling {source.as_posix()}", status, text, log))
                    output = work / f"{plan.objects[source]}.o"
                    os.replace(output, store / output.name)
                    done += 1
                    report(f"building the software device: {done} of {len(missing)} files ({source}, {seconds:.0f} s)")
            finally:
                pool.shutdown(cancel_futures=True)
        objects = []
        for key in plan.objects.values():
            _touch(store / f"{key}.o")
            objects.append(str(store / f"{key}.o"))
        made = work / library.parent.name
        made.mkdir()
        command = [*tools.compiler, *objects, *tools.link, "-o", str(made / library.name)]
        status, text, _ = _run(command, plan.root, environ)
        notes.write(text)
        if status:
            raise BuildError(_error_text("linking", status, text, log))
        shutil.rmtree(library.parent, ignore_errors=True)  # it has no library in it
        os.rename(made, library.parent)
    _sweep(cache, time.time() - _KEPT)
    report(f"built the software device in {time.monotonic() - begin:.0f} s")


def _run(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> tuple[int, bytes, float]:
    """Exit status, output and seconds. Paths in messages are relative to `folder`."""
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except OSError as error:
        return 127, f"error: {command[0]} does not start ({error.strerror})\n".encode(), 0.0
    return done.returncode, done.stdout, time.monotonic() - begin


def _error_text(what: str, status: int, output: bytes, log: Path) -> str:
    """The message for a failed command, with its first lines about an error, or else its last lines."""
    lines = output.decode(errors="replace").splitlines()
    errors = [line for line in lines if re.search(r"\b(error|undefined reference)\b", line, re.IGNORECASE)]
    shown = errors[:_MOST_ERRORS] or lines[-_MOST_ERRORS:]
    text = "".join(f"\n  {line}" for line in shown)
    return f"{what} for the software device failed with status {status}; the full output is in {str(log)!r}:{text}"


def _jobs(files: int, environ: Mapping[str, str]) -> int:
    """How many compilers run at once: limited by processors (or ``$MAX_JOBS``) and by memory."""
    import psutil

    limit = environ.get("MAX_JOBS", "")
    most = int(limit) if limit.isascii() and limit.isdigit() and int(limit) else len(os.sched_getaffinity(0))
    by_memory = psutil.virtual_memory().available // _MEMORY_OF_ONE
    return max(1, min(files, most, int(by_memory)))


def _sweep(cache: Path, before: float) -> None:
    """Remove entries last used before that time. Another process may remove some of them at the same time."""
    for entry in _old([*cache.iterdir(), *(cache / "objects").iterdir()], before):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _old(entries: Iterable[Path], before: float) -> list[Path]:
    old = []
    for entry in entries:
        try:
            if entry.name != "objects" and entry.suffix != ".lock" and entry.stat().st_mtime < before:
                old.append(entry)
        except FileNotFoundError:
            continue
    return old


def _touch(entry: Path) -> None:
    try:
        os.utime(entry)
    except OSError:
        return  # the cache may belong to another user, who then cleans it up


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Build, and print how long it took and where the library is. Returns 1 if the build fails."""
    begin = time.monotonic()
    try:
        library = build()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{time.monotonic() - begin:.1f} s  {library}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
