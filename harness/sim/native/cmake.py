"""Runs cmake and ninja in a build tree: finds the programs, reports progress, and shows the compiler's errors."""

from __future__ import annotations

import importlib.util
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from harness.devices import software
from harness.sim.native.toolchain import BuildError, Toolchain

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
