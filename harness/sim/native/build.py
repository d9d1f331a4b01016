"""Builds C++ libraries at their first use, and caches them. What is built is a value, the `Recipe`."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from harness.sim.native.toolchain import BuildError, Toolchain

_APPLICATION = "gpu-conformance-harness"
_LOCK_LIMIT = 3600.0  # seconds; a build takes minutes on a small machine, and several may wait for it
_MEMORY_OF_ONE = 1 << 30  # bytes that the compiler needs for one file with torch's headers
_KEPT = 30 * 24 * 3600.0  # seconds that an unused entry stays in the cache
_MOST_ERRORS = 5
_INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)

Progress = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Library:
    """One shared library.

    - `file`: its file name. It is also its soname if `soname` is set.
    - `sources`: files, and folders whose ``*.cpp`` are meant, relative to the recipe's root. Those that take longest to
      compile come first.
    - `together`: folders whose other ``*.cpp`` are compiled as one translation unit. This pays where the headers take
      longer than the code: those of torch take 2 to 6 s in each unit.
    - `include`: folders of own headers, relative to the root, in the order in which the compiler searches them. They
      come before those of `tools`.
    - `exports`: the text of the linker's version script, which lists the exported symbols; empty for none.
    - `needs`: file names of earlier libraries of the recipe that it is linked with.
    """

    file: str
    sources: tuple[str, ...]
    tools: Toolchain
    together: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    soname: bool = False
    exports: str = ""
    needs: tuple[str, ...] = ()

    def identity(self) -> list[object]:
        """All that decides how an object is linked, as plain values, for a key."""
        return [self.file, self.tools.identity(), self.soname, self.exports, self.needs]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is built together: `noun` names it in messages, `folder` is its folder in the cache.

    Sources are below `root`, and their paths in messages relative to it.
    """

    noun: str
    folder: str
    root: Path
    libraries: tuple[Library, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """A translation unit. `sources` are relative to the recipe's root."""

    name: str
    sources: tuple[Path, ...]

    def arguments(self) -> list[str]:
        """The compiler's arguments for it. The compiler runs in the recipe's root."""
        if len(self.sources) == 1:
            return ["-c", str(self.sources[0])]
        # An empty file that includes all sources. In messages, each keeps its own name.
        return [*(word for source in self.sources for word in ("-include", str(source))), "-x", "c++", "-c", os.devnull]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a build: the key of the libraries together, and by library the key of the object of each unit."""

    recipe: Recipe
    key: str
    parts: tuple[Mapping[Unit, str], ...]

    def objects(self) -> Iterator[tuple[Library, Unit, str]]:
        """Library, unit and key of every object."""
        for library, part in zip(self.recipe.libraries, self.parts, strict=True):
            for unit, key in part.items():
                yield library, unit, key


def build(recipe: Recipe, progress: Progress | None = None, *, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder with the recipe's libraries, built now if they are not in the cache.

    If several processes call this at once, one builds and the others wait. `progress` gets lines about the progress; by
    default they go to stderr. Raises BuildError, with the first error lines of the compiler, if any.
    """
    report = _to_stderr if progress is None else progress
    cache = cache_folder(environ, recipe)
    plan = plan_for(recipe)
    made = cache / plan.key
    if _complete(recipe, made):
        _touch(made)
        return made

    from filelock import FileLock, Timeout  # slow to import, and not needed for a cached library

    # One lock for all keys: a build uses all processors anyway, and the next build finds the shared objects.
    lock = FileLock(cache / "building.lock")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report(f"waiting for another process that builds {recipe.noun}")
            lock.acquire(timeout=_LOCK_LIMIT)
        try:
            if not _complete(recipe, made):
                _build(plan, cache, environ, report)
        finally:
            lock.release()
    except Timeout:
        raise BuildError(
            f"another process has been building {recipe.noun} for {_LOCK_LIMIT:.0f} s and holds the lock "
            f"{lock.lock_file!r}: end that process and try again"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise BuildError(
            f"cannot write {recipe.noun} to {str(cache)!r} ({error}): set $HARNESS_CACHE_DIR to another folder"
        ) from None
    return made


def cache_folder(environ: Mapping[str, str], recipe: Recipe) -> Path:
    """The folder of the cached libraries. Raises BuildError if no variable names one and there is no home folder."""
    if own := environ.get("HARNESS_CACHE_DIR"):
        return Path(own).absolute() / recipe.folder
    shared = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # the XDG specification says: ignore relative paths
        return Path(shared) / _APPLICATION / recipe.folder
    home = environ.get("HOME") or os.path.expanduser("~")
    if not os.path.isabs(home):
        raise BuildError(f"there is no home folder to cache {recipe.noun} in: set $HARNESS_CACHE_DIR")
    return Path(home) / ".cache" / _APPLICATION / recipe.folder


def plan_for(recipe: Recipe) -> Plan:
    """The plan for all sources. Raises BuildError if a library has none, or an included file is missing."""
    contents: dict[Path, str] = {}
    parts = []
    for library in recipe.libraries:
        units = _units(recipe, library)
        parts.append({unit: _object_key(recipe, library, unit, contents) for unit in units})
    whole = [[each.identity(), sorted(part.values())] for each, part in zip(recipe.libraries, parts, strict=True)]
    return Plan(recipe, _hash(whole), tuple(parts))


def _units(recipe: Recipe, library: Library) -> list[Unit]:
    """The translation units of a library. Raises BuildError if there are none."""
    named = [Path(name) for name in library.sources]
    alone = [file for name in named for file in ([name] if name.suffix else _files(recipe.root, name))]
    joined = {
        name: tuple(file for file in _files(recipe.root, Path(name)) if file not in alone) for name in library.together
    }
    units = [
        *(Unit(str(file), (file,)) for file in alone),
        *(Unit(name, files) for name, files in joined.items() if files),
    ]
    if not units:
        where = ", ".join(repr(str(recipe.root / name)) for name in (*library.sources, *library.together))
        raise BuildError(f"no C++ sources of {recipe.noun} in {where}: reinstall the harness")
    return units


def _files(root: Path, folder: Path) -> list[Path]:
    return sorted(file.relative_to(root) for file in (root / folder).glob("*.cpp"))


def _object_key(recipe: Recipe, library: Library, unit: Unit, contents: dict[Path, str]) -> str:
    """The key of one object. `contents`: the files that were read before; those that are read now are added."""
    include = [recipe.root / folder for folder in library.include]
    sources = [recipe.root / source for source in unit.sources]
    files = {file for source in sources for file in _closure(source, include, contents, recipe.noun)}
    texts = sorted((_relative(file, recipe.root), contents[file]) for file in files)
    return _hash([library.tools.identity(), library.include, unit.arguments(), texts])


def _closure(source: Path, include: Sequence[Path], contents: dict[Path, str], noun: str) -> set[Path]:
    """The file and all own files that it includes, also indirectly. Adds their text to `contents`.

    A file in ``"..."`` must exist. One in ``<...>`` may belong to somebody else.
    """
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
            raise BuildError(f"cannot read {str(file)!r}, a source of {noun} ({error.strerror})") from None
        contents[file] = text
        for quoted, angled in _INCLUDE.findall(text):
            places = [*([file.parent] if quoted else []), *include]
            paths = [Path(os.path.normpath(place / (quoted or angled))) for place in places]
            there = next((path for path in paths if path in contents or path.is_file()), None)
            if there is not None:
                open_.append(there)
            elif quoted:
                open_.append(paths[0])  # its reading fails, with its name
    return found


def _relative(file: Path, root: Path) -> str:
    return os.path.relpath(file, root).replace(os.sep, "/")


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def _complete(recipe: Recipe, folder: Path) -> bool:
    return all((folder / library.file).is_file() for library in recipe.libraries)


def _build(plan: Plan, cache: Path, environ: Mapping[str, str], report: Progress) -> None:
    """Compile the missing objects and link them. The folder of the libraries appears atomically."""
    begin = time.monotonic()
    store = cache / "objects"
    store.mkdir(exist_ok=True)
    log = cache / f"{plan.key}.log"
    noun = plan.recipe.noun
    environ = {**environ, "LC_ALL": "C"}  # the output is searched for the word "error"
    with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as folder, log.open("wb") as notes:
        work = Path(folder)

        def call(what: str, command: Sequence[str]) -> None:
            status, text, _ = _run(command, plan.recipe.root, environ)
            notes.write(text)
            if status:
                raise BuildError(_error_text(what, noun, status, text, log))

        _compile(plan, store, work, environ, report, notes.write, log)
        for _, _, key in plan.objects():
            _touch(store / f"{key}.o")
        made = work / plan.key
        made.mkdir()
        for library, part in zip(plan.recipe.libraries, plan.parts, strict=True):
            objects = [str(store / f"{each}.o") for each in part.values()]
            call("linking", [*library.tools.compiler, *objects, *_link(library, made, work), *library.tools.link])
        shutil.rmtree(cache / plan.key, ignore_errors=True)  # it is not complete
        os.rename(made, cache / plan.key)
    _sweep(cache, time.time() - _KEPT)
    report(f"built {noun} in {time.monotonic() - begin:.0f} s")


def _compile(
    plan: Plan,
    store: Path,
    work: Path,
    environ: Mapping[str, str],
    report: Progress,
    note: Callable[[bytes], object],
    log: Path,
) -> None:
    """Compile what is not in the store of objects. Raises BuildError."""
    noun = plan.recipe.noun
    wanted = {key: (library, unit) for library, unit, key in plan.objects()}
    missing = {key: each for key, each in wanted.items() if not (store / f"{key}.o").is_file()}
    with ThreadPoolExecutor(_jobs(len(missing), environ)) as pool:
        running = {}
        for key, (library, unit) in missing.items():
            include = [f"-I{plan.recipe.root / folder}" for folder in library.include]
            tools = library.tools
            command = [*tools.compiler, *include, *tools.flags, *unit.arguments(), "-o", str(work / f"{key}.o")]
            running[pool.submit(_run, command, plan.recipe.root, environ)] = key
        try:
            for done, future in enumerate(as_completed(running), start=1):
                key = running[future]
                library, unit = missing[key]
                status, text, seconds = future.result()
                note(text)
                if status:
                    raise BuildError(_error_text(f"compiling {unit.name}", noun, status, text, log))
                if _object_key(plan.recipe, library, unit, {}) != key:
                    raise BuildError(f"{unit.name}, a source of {noun}, changed while it was compiled: build again")
                os.replace(work / f"{key}.o", store / f"{key}.o")
                report(f"building {noun}: {done} of {len(missing)} parts ({unit.name}, {seconds:.0f} s)")
        finally:
            pool.shutdown(cancel_futures=True)


def _link(library: Library, made: Path, work: Path) -> Iterator[str]:
    """The arguments of the linker that belong to the library itself. Writes its version script."""
    if library.soname:
        yield f"-Wl,-soname,{library.file}"
    if library.exports:
        script = work / f"{library.file}.map"
        script.write_text(library.exports, encoding="utf-8")
        yield f"-Wl,--version-script={script}"
    if library.needs:
        yield from (f"-L{made}", *(f"-l:{name}" for name in library.needs), "-Wl,-rpath,$ORIGIN")
    yield from ("-o", str(made / library.file))


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


def _error_text(what: str, noun: str, status: int, output: bytes, log: Path) -> str:
    """The message for a failed command, with its first lines about an error, or else its last lines."""
    lines = output.decode(errors="replace").splitlines()
    errors = [line for line in lines if re.search(r"\b(error|undefined reference)\b", line, re.IGNORECASE)]
    shown = errors[:_MOST_ERRORS] or lines[-_MOST_ERRORS:]
    text = "".join(f"\n  {line}" for line in shown)
    return f"{what} for {noun} failed with status {status}; the full output is in {str(log)!r}:{text}"


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


def run_by_hand(make: Callable[[], Path]) -> int:
    """Build, and print how long it took and where the result is. Returns 1 if the build fails."""
    begin = time.monotonic()
    try:
        made = make()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{time.monotonic() - begin:.1f} s  {made}")
    return 0
