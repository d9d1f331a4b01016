"""Record the lines that cases run, make mutants of modules, and run each against the cases that reach it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.backends.table import BACKENDS
from harness.core.atomic import write_atomically
from harness.core.text import single_line
from harness.journal import journal, reader
from harness.journal.ledger import Ledger
from harness.sim.native import build, provider
from harness.sim.native.provider import ProvidedDevice
from harness.supervisor import executor_files
from harness.zygote.spec import COLLECTION_ENVIRONMENT
from tests.breaks.breaks import BreakError
from tests.breaks.engine import PytestRuns, environment, observed
from tests.breaks.mutants.modules import wanted_files
from tests.breaks.mutants.mutant import Mutant
from tests.breaks.mutants.public_lines import ModuleReach, reach_of
from tests.breaks.mutants.reach import Recording, read_recording
from tests.breaks.mutants.recording import VARIABLE
from tests.breaks.mutants.results import MutantResult, read_results

#: Marks a recording whose run has ended.
COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Settings:
    """The inputs of a campaign. `cases`: folders or files. `patterns`: those of the modules.

    `options`: further ones for pytest.
    """

    device: str
    cases: tuple[str, ...]
    patterns: tuple[str, ...]
    options: tuple[str, ...] = ()


def package_root(patterns: Sequence[str]) -> Path:
    """Return the folder that contains the package of the patterns. Raise BreakError."""
    names = {pattern.partition("/")[0] for pattern in patterns}
    if len(names) != 1:
        raise BreakError(f"modules of {len(names)} packages: name those of one, as in 'torch/optim/*.py'")
    name = names.pop()
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or spec.origin is None:
        raise BreakError(f"--module: there is no package {name!r}: write the path of files, as in 'torch/optim/*.py'")
    return Path(spec.origin).parent.parent


def recording_folder(settings: Settings, environ: Mapping[str, str]) -> Path:
    """Return the folder for the recording of these cases.

    It depends on the versions of torch and Python and on the files.

    Raise BreakError for a file that does not exist or cannot be read.
    """
    digest = hashlib.sha256()
    words = [settings.device, importlib.metadata.version("torch"), platform.python_version()]
    for word in (*words, *settings.cases, *settings.patterns, *settings.options):
        digest.update(f"{word}\0".encode())
    for file in _files_of(settings.cases):
        try:
            digest.update(f"{file}\0".encode() + file.read_bytes())
        except OSError as error:
            raise BreakError(f"{str(file)!r}: {error.strerror}: name folders or files of cases") from None
    name = f"{settings.device}-{words[1]}-{digest.hexdigest()[:16]}"
    return build.writable_cache_root(environ, "recordings") / "recordings" / name


def _files_of(cases: Iterable[str]) -> list[Path]:
    """Return the Python files of the cases' suites, since cases use helpers of parent folders."""
    tops = {Path(case.partition("::")[0]) for case in cases}
    files = {file for top in tops for file in (top.rglob("*.py") if top.is_dir() else [top])}
    return sorted(files)


def record_cases(settings: Settings, folder: Path, log: Callable[[str], object]) -> None:
    """Run the cases once, and record the lines that they run. Raise BreakError."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = folder / "lines"
    lines.mkdir(exist_ok=True)
    for file in lines.glob("*.ndjson"):
        file.unlink()
    value = json.dumps([str(lines), str(package_root(settings.patterns)), list(settings.patterns)])
    runs = PytestRuns(folder, (*settings.options, "--leak-check=off"))
    log(f"recording which lines the cases run: {folder}")
    _remove(folder / "run")
    plugin = ("-p", "tests.breaks.mutants.recording")
    seen = observed(runs.ledger("run", settings.device, settings.cases, *plugin, variables={VARIABLE: value}))
    log(f"recorded: {len(seen.passed)} passed, {len(seen.red)} red")
    (folder / COMPLETE).write_text("", encoding="ascii")


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def recorded(folder: Path) -> Recording:
    """Return the recording of the cases that passed. Raise RecordingError."""
    file = folder / "run" / journal.FILE_NAME
    passed = observed(Ledger.from_journal(reader.read_journal(file))).passed if file.exists() else None
    return read_recording([folder / "lines"], passed)


def calls(folders: Iterable[Path]) -> tuple[dict[str, list[str]], dict[str, dict[str, set[str]]]]:
    """Return, by function, the cases that called it, and by parameter the values, from several recordings."""
    callers: dict[str, list[str]] = {}
    arguments: dict[str, dict[str, set[str]]] = {}
    for folder in folders:
        recording = recorded(folder)
        for name, cases in recording.callers.items():
            callers[name] = list(dict.fromkeys([*callers.get(name, ()), *cases]))
        for name, values in recording.arguments.items():
            noted = arguments.setdefault(name, {})
            for parameter, shown in values.items():
                noted.setdefault(parameter, set()).update(shown)
    return callers, arguments


def public_reach(folders: Iterable[Path], patterns: Sequence[str]) -> list[ModuleReach]:
    """Return the lines of public functions that the cases of several recordings run.

    There is an entry for each module of the patterns with such functions. Raise BreakError, RecordingError.
    """
    ran: dict[str, set[int]] = {}
    for folder in folders:
        for path, by_line in recorded(folder).lines.items():
            ran.setdefault(path, set()).update(by_line)
    root = package_root(patterns)
    modules = [
        reach_of(path, (root / path).read_text(encoding="utf-8"), ran.get(path, set()))
        for path in _files_of_patterns(root, patterns)
    ]
    return [module for module in modules if module.functions]


def all_mutants(patterns: Sequence[str], environ: Mapping[str, str]) -> list[Mutant]:
    """Return the mutants of all files of the patterns. Raise BreakError."""
    root = package_root(patterns)
    return [
        mutant for file in _files_of_patterns(root, patterns) for mutant in mutants_of_file(file, root / file, environ)
    ]


def _files_of_patterns(root: Path, patterns: Sequence[str]) -> list[str]:
    """Return the files of the patterns, below the root. Raise BreakError if there are none."""
    if files := wanted_files(root, patterns):
        return files
    raise BreakError(f"--module={patterns[0]!r}: no file below {str(root)!r} has such a name")


def mutants_of_file(name: str, file: Path, environ: Mapping[str, str]) -> list[Mutant]:
    """Return the mutants of a file, which the cache keeps. `name`: its path in the package. Raise BreakError."""
    parts = ("exclusions", "mutant", "operators", "walk")
    rules = b"".join(Path(__file__).with_name(f"{part}.py").read_bytes() for part in parts)
    folder = build.writable_cache_root(environ, "mutants") / "mutants"
    source = file.read_bytes()
    kept = folder / f"{hashlib.sha256(b'%b%b%b' % (name.encode(), source, rules)).hexdigest()[:20]}.json"
    if kept.exists():
        return [Mutant.from_json(values) for values in json.loads(kept.read_bytes())]
    try:
        from tests.breaks.mutants.walk import mutants_of
    except ImportError:
        raise BreakError("mutants need the package libcst: pip install -e '.[test]'") from None
    mutants, _ = mutants_of(name, source)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(kept, json.dumps([mutant.to_json() for mutant in mutants]).encode())
    return mutants


def run_mutants(
    settings: Settings,
    mutants: Sequence[Mutant],
    recording: Recording,
    results: Path,
    *,
    limit: float,
    seconds: float,
) -> list[MutantResult]:
    """Run the mutants that cases reach, in their own warm process. Raise BreakError.

    `results`: the folder for the plan and the results. `limit`: the time limit for the cases of one mutant in seconds.
    `seconds`: the time limit for all mutants. Existing results in the folder are kept, and their mutants do not run
    again.
    """
    # Sorting by name is as good as a random order: if `seconds` ends the call, the results are a fair sample.
    planned = [(mutant, recording.reaching(mutant)) for mutant in sorted(mutants, key=lambda mutant: mutant.name)]
    planned = [(mutant, cases) for mutant, cases in planned if cases]
    if not planned:
        raise BreakError("no case reaches one of the mutants: name other modules or other cases")
    values = {
        "root": str(package_root(settings.patterns)),
        "mutants": [(mutant.to_json(), cases) for mutant, cases in planned],
        "seconds": {case: recording.seconds[case] for _, cases in planned for case in cases},
        "limit": limit,
        "time": seconds,
        "results": str(results / "mutants.ndjson"),
    }
    files = {case.partition("::")[0] for _, cases in planned for case in cases}
    run_warm("tests.breaks.mutants.warm", settings.device, [*sorted(files), *_kept(settings.options)], results, values)
    names = {mutant.name for mutant in mutants}
    return [result for result in read_results(results / "mutants.ndjson") if result.mutant.name in names]


def run_warm(
    module: str,
    device: str,
    cases: Sequence[str],
    results: Path,
    values: Mapping[str, object],
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a module that collects cases and forks for each break, until it ends. Raise BreakError.

    `values`: of its plan. `results`: the folder for the plan and the output. `variables`: added to its environment.
    """
    backend = BACKENDS[device]
    provided = provider.provider_of(backend).provide() if backend.provider else ProvidedDevice(None, {})
    inifile = next((str(path) for path in (Path("pyproject.toml").absolute(),) if path.exists()), None)
    results.mkdir(parents=True, exist_ok=True)
    plan, output_file = results / "plan.json", results / "warm.txt"
    common = {
        "device": device,
        "library": provided.library or "",
        "arguments": [*cases, "-p", "no:cacheprovider", "-q"],
        "rootdir": os.getcwd(),
        "inifile": inifile,
    }
    plan.write_text(json.dumps({**common, **values}), encoding="utf-8")
    # Later breaks find what earlier ones compiled. Inductor's headers are in the folder for temporary files.
    caches = executor_files.cache_variables(results, os.environ)
    with output_file.open("wb") as output, tempfile.TemporaryDirectory(prefix="mutants-") as temp:
        environ = {
            **environment(os.environ),
            **COLLECTION_ENVIRONMENT,
            **provided.variables,
            **(variables or {}),
            **caches,
            "TMPDIR": temp,
        }
        command = [sys.executable, "-m", module, str(plan)]
        done = subprocess.run(command, env=environ, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        last = output_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        raise BreakError(f"the breaks do not run (exit status {done.returncode}): {' '.join(map(single_line, last))!r}")


def _kept(options: Sequence[str]) -> list[str]:
    """Return the options that determine which cases there are."""
    return [option for option in options if option == "--extended"]
