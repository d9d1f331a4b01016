"""Builds C++ libraries with CMake at their first use, and caches them. A `BuildRecipe` describes the libraries.

The name of a library's folder in the cache is a key of everything that determines the library: the sources, the CMake
files, and the toolchain. The key contains no path, so clones and virtual environments share the builds.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness.core import cache as core_cache
from harness.devices import software
from harness.sim.native.toolchain import BuildError, Toolchain, short_digest

Progress = Callable[[str], object]

#: The oldest releases that work. `pyproject.toml` has the same numbers, with the reasons.
_LEAST = {"cmake": (3, 20), "ninja": (1, 11)}
_MEMORY_OF_ONE = 5 << 28  # bytes that the compiler needs for the sources with torch's headers
_MOST_ERRORS = 5
_PROBE_LIMIT = 20.0  # seconds; a program on a cold network file system takes several seconds
#: Variables that would make cmake or ninja build something other than the library's key says.
_IGNORED = ("CLICOLOR_FORCE", "CMAKE_GENERATOR", "CMAKE_TOOLCHAIN_FILE", "DESTDIR", "LDFLAGS", "NINJAFLAGS")

_STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_FAILED = re.compile(r"FAILED: (?:\[code=\d+\] )?(.*)")
#: The object of a source, and the library or program in messages of ninja.
_OBJECT = re.compile(r"(?:(\S*)/)?CMakeFiles/[^/]+\.dir/(\S+)\.o\b")
_TOGETHER, _GROUP = re.compile(r"Unity/unity_(.+)_cxx\.cxx"), r"\1"
_LINKED = re.compile(r"^(?:(?:Linking CXX|Creating library) .* )?(\S+)")
_ERROR = re.compile(r"\b(error|undefined reference|cannot find)\b", re.IGNORECASE)


def run_cmake(
    tree: Path,
    tools: Toolchain,
    noun: str,
    parts: Sequence[str],
    report: Progress,
    environ: Mapping[str, str],
    lock: int,
) -> Path:
    """Build the changed sources in ``tree/source``. Return the folder of the results.

    `lock` is a file descriptor that cmake, ninja and the compilers inherit. Raise BuildError, with the first errors of
    the compiler.
    """
    programs = {name: find_program(name, noun, environ) for name in _LEAST}
    environ = {name: value for name, value in environ.items() if name not in _IGNORED}
    environ |= {"LC_ALL": "C", "NINJA_STATUS": "[%f/%t] "}  # the output is searched for English words
    folder, log = tree / "build", tree / "build.log"
    configure = [
        programs["cmake"],
        *_configuration(tree, tools, parts, environ),
        f"-DCMAKE_MAKE_PROGRAM={programs['ninja']}",
    ]
    jobs = compiler_jobs(environ)
    with log.open("w", buffering=1, encoding="utf-8") as notes:
        run = _Run(noun, tree, log, notes, report, environ, lock)
        if folder.is_dir() and run(configure):
            shutil.rmtree(folder)  # cmake may ask for this, for example in a moved cache
        if not folder.is_dir() and (status := run(configure)):
            raise run.error("cmake", status)
        if status := run([programs["ninja"], "-C", str(folder), f"-j{jobs}"]):
            raise run.error("the build", status)
    return tree / "out"


def _configuration(tree: Path, tools: Toolchain, parts: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the arguments of cmake. Folders outside the tree get a path in it, which is the same for equal folders."""
    links = tree / "from"
    links.mkdir(exist_ok=True)
    for name, folder in tools.folders.items():
        link = links / name
        if not link.is_symlink() or os.readlink(link) != str(folder):
            link.unlink(missing_ok=True)
            link.symlink_to(folder)
    yield from ("-S", str(tree / "source"), "-B", str(tree / "build"), "-G", "Ninja", "--no-warn-unused-cli")
    settings = {
        "TREE": str(tree),
        "PARTS": ";".join(parts),
        **tools.variables,
        **{name: str(links / name) for name in tools.folders},
        "CMAKE_BUILD_TYPE": "",
        "CMAKE_CXX_COMPILER": ";".join(tools.compiler),
        "CMAKE_CXX_COMPILER_LAUNCHER": environ.get("CMAKE_CXX_COMPILER_LAUNCHER", ""),  # for example ccache
        "CMAKE_CXX_FLAGS": shlex.join(tools.flags),
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(tree / "out"),
        "CMAKE_RUNTIME_OUTPUT_DIRECTORY": str(tree / "out"),
    }
    yield from (f"-D{name}={value}" for name, value in settings.items())


class _Run:
    """Runs programs, and keeps their output for errors."""

    def __init__(
        self,
        noun: str,
        tree: Path,
        log: Path,
        notes: IO[str],
        report: Progress,
        environ: Mapping[str, str],
        lock: int,
    ) -> None:
        self._noun = noun
        self._tree = tree
        self._log = log
        self._notes = notes
        self._report = report
        self._environ = environ
        self._lock = lock
        self._lines: list[str] = []

    def __call__(self, command: Sequence[str]) -> int:
        """Return the exit status. Paths in messages are relative to the folder of the sources."""
        self._lines = []
        with subprocess.Popen(
            command,
            env=dict(self._environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            pass_fds=[self._lock],
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    self._take(
                        line.replace(f"{self._tree}/source/", "").replace(f"{self._tree}/from/", "").rstrip("\n")
                    )
            except BaseException:
                process.terminate()  # ninja then ends its compilers and removes incomplete results
                raise
        return process.returncode

    def _take(self, line: str) -> None:
        self._notes.write(f"{line}\n")
        step = _STEP.fullmatch(line)
        if step is None:
            self._lines.append(line)
        elif not step[3].startswith("Re-"):
            self._report(f"building {self._noun}: {step[1]} of {step[2]} ({format_ninja_step(step[3])})")

    def error(self, step: str, status: int) -> BuildError:
        """Return the error for a failed program, with its first lines about an error, or else its last lines."""
        lines = [line for line in self._lines if line.strip()]
        failed = next((match for line in lines if (match := _FAILED.match(line))), None)
        if failed:
            begin = lines.index(failed[0]) + 2  # the next line is the command
            errors = [line for line in lines[begin:] if _ERROR.search(line)]
        else:
            begin = next((number for number, line in enumerate(lines) if _ERROR.search(line)), len(lines))
            errors = lines[begin:]  # cmake describes the error in the lines that follow
        shown = errors[:_MOST_ERRORS] or lines[-_MOST_ERRORS:]
        return BuildError(
            f"{format_ninja_step(failed[1]) if failed else step} failed with status {status}, so {self._noun} cannot "
            f"be built; the full output is in {str(self._log)!r}:" + "".join(f"\n  {line}" for line in shown)
        )


def format_ninja_step(text: str) -> str:
    """Return the description of a ninja step, from its text or its output, such as "compiling core/queue.cpp"."""
    if match := _OBJECT.search(text):
        source = posixpath.normpath(posixpath.join(match[1] or "", match[2].replace("__/", "../")))
        return f"compiling {_TOGETHER.sub(_GROUP, source)}"
    match = _LINKED.match(text)
    return f"linking {posixpath.basename(match[1])}" if match else text


def find_program(name: str, noun: str, environ: Mapping[str, str]) -> str:
    """Return the path of cmake or ninja: that of the Python package, or else the one in ``$PATH``. Raise BuildError."""
    least = _LEAST[name]
    old = ""
    for place in _places(name, environ):
        try:
            done = subprocess.run(
                [place, "--version"], capture_output=True, timeout=_PROBE_LIMIT, check=False, text=True
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = software.parse_compiler_version(done.stdout) if done.returncode == 0 else None
        if version is not None and version >= least:
            return str(place)
        old = f", and {str(place)!r} is {'.'.join(map(str, version))}" if version else old
    wanted = ".".join(map(str, least))
    raise BuildError(f"{noun} needs {name} {wanted} or newer{old}: install it with `pip install {name}`")


def _places(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield possible places of the program. Wheels install it in a folder of the package or among the scripts."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        folders = [package / "data" / "bin", package.parent / "bin", Path(sysconfig.get_path("scripts"))]
        yield from (place for folder in folders if os.access(place := folder / name, os.X_OK))
    if path := shutil.which(name, path=environ.get("PATH")):
        yield Path(path)


def compiler_jobs(environ: Mapping[str, str]) -> int:
    """Return the number of parallel compilers, limited by processors (or ``$MAX_JOBS``) and by memory."""
    import psutil

    limit = environ.get("MAX_JOBS", "")
    most = int(limit) if limit.isascii() and limit.isdigit() and int(limit) else len(os.sched_getaffinity(0))
    return max(1, min(most, int(psutil.virtual_memory().available // _MEMORY_OF_ONE)))


_LOCK_LIMIT = 3600.0  # seconds; a build takes minutes on a small machine, and several may wait for it
_KEPT = 30 * 24 * 3600.0  # seconds that an unused entry stays in the cache
_SUFFIXES = (".cpp", ".def", ".h", ".map")
_LISTS = "CMakeLists.txt"
_TESTS = "tests"


@dataclass(frozen=True, slots=True)
class BuildRecipe:
    """The libraries of one build.

    - `noun`: its name in messages. `folder`: its folder in the cache.
    - `root`: the folder of the project's ``CMakeLists.txt``, which `sources` and `parts` are relative to.
    - `sources`: files, and folders whose files count. Folders named ``tests`` below them do not count.
    - `parts`: the folders that ``CMakeLists.txt`` adds, through its variable ``PARTS``.
    - `files`: the names of the libraries or programs that are the result.
    """

    noun: str
    folder: str
    root: Path
    sources: tuple[str, ...]
    parts: tuple[str, ...]
    files: tuple[str, ...]
    tools: Toolchain


def build_libraries(
    recipe: BuildRecipe, progress: Progress | None = None, *, environ: Mapping[str, str] = os.environ
) -> Path:
    """Return the folder with the recipe's libraries. Build them if they are not in the cache.

    If several processes call this at the same time, one builds and the others wait. `progress` gets lines about the
    progress; by default they go to stderr. Raise BuildError, with the first error lines of the compiler, if any.
    """
    report = _to_stderr if progress is None else progress
    cache = open_cache(environ, recipe.noun, recipe.folder)
    sources = read_sources(recipe)
    made = cache / _key(recipe, sources)
    if _complete(recipe, made):
        _touch(made)
        return made

    from filelock import FileLock, Timeout  # slow to import, and not needed for a cached library

    # One lock for all keys: a build uses all processors anyway, and the next build finds the shared objects.
    lock = FileLock(cache / "building.lock")
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report(f"waiting for another process that builds {recipe.noun}")
            lock.acquire(timeout=_LOCK_LIMIT)
        try:
            if not _complete(recipe, made):
                _build(recipe, sources, made, environ, report)
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


def open_cache(environ: Mapping[str, str], noun: str, name: str) -> Path:
    """Return the folder `name` of the cached libraries, made if it is missing.

    Raise BuildError if it cannot be made, or if others could put code into it. `noun`: as in `writable_cache_root`.
    """
    root = writable_cache_root(environ, noun)
    try:
        return core_cache.code_cache(root, name)
    except core_cache.CacheError as error:
        raise BuildError(f"cannot load {noun} from the cache: {error}") from None
    except OSError as error:
        raise BuildError(
            f"cannot write {noun} to {str(root / name)!r} ({error}): set $HARNESS_CACHE_DIR to another folder"
        ) from None


def check_preloadable(path: str, noun: str) -> None:
    """Raise BuildError if no library in this path can be loaded at the start of a process."""
    if set(path) & set(" :"):
        raise BuildError(
            f"cannot load {noun} from {path!r}, since LD_PRELOAD allows neither spaces nor colons: set "
            "$HARNESS_CACHE_DIR to another folder"
        )


def writable_cache_root(environ: Mapping[str, str], noun: str) -> Path:
    """Return the folder of all caches. `noun`: the cached item.

    Raise BuildError if no variable names a folder and there is no home folder.
    """
    root = core_cache.cache_root(environ)
    if root is None:
        raise BuildError(f"there is no home folder to cache {noun} in: set $HARNESS_CACHE_DIR")
    return root


def cache_key(recipe: BuildRecipe) -> str:
    """Return the name of the recipe's libraries in the cache. Raise BuildError if a source is missing."""
    return _key(recipe, read_sources(recipe))


def _key(recipe: BuildRecipe, sources: Mapping[str, bytes]) -> str:
    texts = [(name, text.decode("latin-1")) for name, text in sources.items()]
    return short_digest([recipe.tools.key(), recipe.parts, recipe.files, texts])


def read_sources(recipe: BuildRecipe) -> dict[str, bytes]:
    """Return the contents of all sources by their name below the root, in order. Raise BuildError if one is missing."""
    contents: dict[str, bytes] = {}
    try:
        for name in (_LISTS, *recipe.sources):
            path = recipe.root / name
            files = [path] if path.suffix else _files(path)
            if not files:
                raise BuildError(f"no C++ sources of {recipe.noun} in {str(path)!r}: reinstall the harness")
            contents |= {file.relative_to(recipe.root).as_posix(): file.read_bytes() for file in files}
    except OSError as error:
        raise BuildError(f"cannot read {error.filename!r}, a source of {recipe.noun} ({error.strerror})") from None
    return dict(sorted(contents.items()))


def _files(folder: Path) -> list[Path]:
    return [
        file
        for file in folder.rglob("*")
        if (file.suffix in _SUFFIXES or file.name == _LISTS) and _TESTS not in file.parent.relative_to(folder).parts
    ]


def _complete(recipe: BuildRecipe, folder: Path) -> bool:
    return all((folder / name).is_file() for name in recipe.files)


def _build(
    recipe: BuildRecipe, sources: Mapping[str, bytes], made: Path, environ: Mapping[str, str], report: Progress
) -> None:
    """Build the libraries in the build tree of their toolchain. Their folder `made` appears atomically."""
    begin = time.monotonic()
    cache = made.parent
    tree = cache / f"tree-{short_digest([recipe.tools.key(), recipe.tools.compiler, recipe.parts])}"
    version = recipe.tools.compiler_text.rpartition(": ")[2]
    report(f"building {recipe.noun} with {version}, since {str(cache)!r} has no build of these sources with it")
    with _in_use(tree, lambda: report("waiting for the compilers of a process that was killed")) as lock:
        _copy(sources, tree / "source")
        out = run_cmake(tree, recipe.tools, recipe.noun, recipe.parts, report, environ, lock)
        if missing := [name for name in recipe.files if not (out / name).is_file()]:
            raise BuildError(f"CMake made no {missing[0]!r} for {recipe.noun}: its sources are inconsistent")
        keep_libraries(made, {name: (out / name).read_bytes() for name in recipe.files})
        _touch(tree)
    sweep(cache, time.time() - _KEPT)
    report(f"built {recipe.noun} in {time.monotonic() - begin:.0f} s")


def keep_libraries(made: Path, files: Mapping[str, bytes]) -> None:
    """Put libraries into the cache. Their folder `made` appears atomically."""
    with tempfile.TemporaryDirectory(dir=made.parent, prefix="new-") as folder:
        work = Path(folder) / made.name
        work.mkdir(mode=0o755)  # whatever the umask is, the group may not write code
        for name, data in files.items():
            (work / name).write_bytes(data)
            (work / name).chmod(0o755)
        shutil.rmtree(made, ignore_errors=True)  # an incomplete folder
        os.rename(work, made)


@contextmanager
def _in_use(tree: Path, waiting: Callable[[], object]) -> Iterator[int]:
    """Hold the lock of a build tree, and yield its file descriptor.

    The compilers inherit the descriptor. If a building process is killed, the next one does not write to the tree
    before the compilers of the first have ended.
    """
    tree.mkdir(exist_ok=True)
    lock = os.open(tree / "compilers.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield lock
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a server that a compiler has started may have inherited the lock
    finally:
        os.close(lock)


def _copy(sources: Mapping[str, bytes], folder: Path) -> None:
    """Make the folder contain exactly these files.

    Unchanged files are not written, so that ninja sees which ones have changed.
    """
    for file in [file for file in folder.rglob("*") if file.is_file()]:
        if file.relative_to(folder).as_posix() not in sources:
            file.unlink()
    for name, text in sources.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_bytes() != text:
            file.write_bytes(text)


def sweep(cache: Path, before: float) -> None:
    """Remove the entries of a cache that were last used before that time, but no locks.

    Another process may remove some of them at the same time.
    """
    for entry in cache.iterdir():
        try:
            if entry.suffix == ".lock" or entry.stat().st_mtime >= before:
                continue
        except FileNotFoundError:
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _touch(entry: Path) -> None:
    try:
        os.utime(entry)
    except OSError:
        return  # the cache may belong to another user, who then cleans it up


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def build_from_command_line(make: Callable[[], Path]) -> int:
    """Build, and print the duration and the place of the result. Return 1 if the build fails."""
    begin = time.monotonic()
    try:
        made = make()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{time.monotonic() - begin:.1f} s  {made}")
    return 0
