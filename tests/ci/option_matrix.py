"""Runs suites once per option and per surrounding that must not change a verdict. No case may be red.

    python -m tests.ci.option_matrix suites/ --profile default --seed 20261122 --results DIR
    python -m tests.ci.option_matrix suites/ --only=-n2 --only="umask 077" --results DIR
    python -m tests.ci.option_matrix suites/ --together --results DIR --python /usr/bin/python3.14

`--together` covers the same variants in six runs instead of one run each: options that do not exclude each other share
a run. A red case then has several possible causes; repeat it with `--only`.

What this machine cannot provide (a locale, a user) is named as not tried, with the reason.

Exit status: 0 if no run is red, 1 if one is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The user and the group that own nothing.
NOBODY = 65534


@dataclass(frozen=True, slots=True)
class Variant:
    """One run: arguments of pytest, variables (None removes one), and words before the command.

    `needs`: programs without which it is not tried. `root`: whether it needs the superuser. `python`: the interpreter,
    which has the harness installed.
    """

    name: str
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    root: bool = False
    python: str = sys.executable


def _of(*arguments: str) -> Variant:
    return Variant(" ".join(arguments).replace("--", ""), arguments)


def variants(folder: Path, pythons: Iterable[str] = ()) -> list[Variant]:
    """Return all variants. `folder` has what they need: see `prepare`. `pythons`: further interpreters."""
    no_home = folder / "read-only-home"
    return [
        Variant("base"),
        _of("--leak-check=off"),
        _of("--leak-check=full"),
        # Cases with the mark change the process, or need one in which nothing has been used.
        Variant("isolation=none", ("--isolation=none", "-mnot own_process")),
        _of("--isolation=case"),
        _of("--start=cold"),
        _of("--start=fork"),
        _of("--slots=2"),
        _of("--shuffle"),
        _of("--repeat=2"),
        _of("--extended"),
        *(_of(f"-n{workers}") for workers in range(5)),
        Variant("PYTHONMALLOC=debug", variables={"PYTHONMALLOC": "debug"}),
        Variant("TORCH_LOGS", variables={"TORCH_LOGS": "+dynamo"}),
        Variant("locale", variables={"LC_ALL": "de_DE.UTF-8", "LOCPATH": str(folder)}, needs=("localedef",)),
        # As in a container without a network, only the loopback interface is there. Ranks on the CPU use it.
        Variant(
            "no network",
            before=("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
            needs=("unshare", "ip"),
            root=True,
        ),
        # Also for the superuser, who may write to any folder that is not mounted read-only.
        Variant(
            "read-only HOME",
            variables={"HOME": str(no_home)},
            before=("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none "$HOME" && exec "$@"', "sh"),
            needs=("unshare", "mount"),
            root=True,
        ),
        Variant("HOME unset", variables={"HOME": None}),
        Variant("umask 077", before=("sh", "-c", 'umask 077 && exec "$@"', "sh")),
        Variant(
            "unprivileged user",
            variables={"HOME": str(folder / "home"), "TMPDIR": str(folder / "temp")},
            before=("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
            needs=("setpriv",),
            root=True,
        ),
        Variant("PYTHONPATH with tests", variables={"PYTHONPATH": str(folder / "path")}),
        *(Variant(f"python={python}", python=python) for python in pythons),
    ]


#: The runs of `--together`. The first column excludes itself; without isolation, options about executors do nothing.
TOGETHER = (
    ("-n0", "leak-check=full", "no network", "umask 077", "TORCH_LOGS"),
    ("-n1", "start=cold", "PYTHONMALLOC=debug", "HOME unset"),
    ("-n2", "isolation=case", "start=fork", "locale", "PYTHONPATH with tests"),
    ("-n3", "leak-check=off", "slots=2", "shuffle", "read-only HOME"),
    ("-n4", "extended", "unprivileged user"),
    ("isolation=none", "repeat=2"),
)


def combined(parts: Sequence[Variant]) -> Variant:
    """Return one run with the arguments and the surroundings of all parts."""
    return Variant(
        " + ".join(part.name for part in parts),
        tuple(argument for part in parts for argument in part.arguments),
        {name: value for part in parts for name, value in part.variables.items()},
        tuple(word for part in parts for word in part.before),
        tuple(program for part in parts for program in part.needs),
        any(part.root for part in parts),
        next((part.python for part in parts if part.python != sys.executable), sys.executable),
    )


def plan(every: Sequence[Variant], folder: Path, only: Sequence[str], *, together: bool) -> list[Variant]:
    """Return the runs. What cannot be tried on this machine is printed and left out."""
    possible = {}
    for variant in every:
        if only and variant.name not in only:
            continue
        if why := why_not_tried(variant, folder):
            print(f"{variant.name}: not tried, since {why}", flush=True)
        else:
            possible[variant.name] = variant
    if not together:
        return list(possible.values())
    grouped = {name for names in TOGETHER for name in names}
    groups = [[possible[name] for name in names if name in possible] for names in TOGETHER]
    others = [[variant] for name, variant in possible.items() if name not in grouped]
    return [combined(parts) for parts in [*groups, *others] if parts]


def prepare(folder: Path) -> None:
    """Create what the surroundings need: homes, a folder with a package ``tests``, and a locale with decimal commas."""
    for name in ("read-only-home", "home", "temp", "path/tests"):
        (folder / name).mkdir(parents=True)
    (folder / "path" / "tests" / "__init__.py").write_text("raise ImportError('these are the tests of another')\n")
    if os.geteuid() == 0:
        for name in ("home", "temp"):
            os.chown(folder / name, NOBODY, NOBODY)
        folder.chmod(0o755)
    if shutil.which("localedef"):
        command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")]
        subprocess.run(command, check=False, capture_output=True)


def why_not_tried(variant: Variant, folder: Path) -> str:
    """Return why this machine cannot run a variant; empty if it can."""
    missing = [program for program in variant.needs if shutil.which(program) is None]
    if missing:
        return f"this machine has no {missing[0]}"
    if variant.root and os.geteuid() != 0:
        return "it needs the superuser"
    if variant.name == "locale" and not (folder / "de_DE.UTF-8").exists():
        return "localedef cannot make de_DE.UTF-8: the package locales is missing"
    # A run starts further interpreters. A user may not enter the folder of this one.
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    words = [*variant.before, variant.python, "-c", code]
    variables = environment(variant, os.environ)
    tried = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"it cannot start {variant.python}: {tried.stderr.strip().rpartition(chr(10))[2]}"
    return ""


def command(variant: Variant, arguments: Iterable[str], workers: str, results: Path) -> list[str]:
    """Return the command of a run."""
    spread = () if any(argument.startswith("-n") for argument in variant.arguments) else (f"-n{workers}",)
    pytest_words = [variant.python, "-m", "pytest", *arguments, *spread, *variant.arguments]
    return [*variant.before, *pytest_words, f"--results-dir={results}", "-p", "no:cacheprovider"]


def environment(variant: Variant, outer: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run."""
    merged = {**outer, **variant.variables}
    return {name: value for name, value in merged.items() if value is not None}


def main() -> int:
    """Run all variants, print one line each, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--profile", default="default")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--workers", default="auto")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="may be repeated")
    parser.add_argument("--together", action="store_true", help="six runs for all variants instead of one run each")
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="another Python; may be repeated")
    given = parser.parse_args()
    results = given.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    red = 0
    with tempfile.TemporaryDirectory(prefix="matrix-") as made:
        folder = Path(made)
        prepare(folder)
        every = variants(folder, given.python)
        if unknown := [name for name in given.only if name not in {variant.name for variant in every}]:
            parser.error(f"--only={unknown[0]!r}: expected one of {', '.join(repr(each.name) for each in every)}")
        for variant in plan(every, folder, given.only, together=given.together):
            run_dir = results / re.sub("[^A-Za-z0-9.]+", "-", variant.name).strip("-")
            if "setpriv" in variant.before:
                run_dir.mkdir(parents=True, exist_ok=True)
                os.chown(run_dir, NOBODY, NOBODY)
            arguments = [*given.suites, f"--profile={given.profile}", f"--seed={given.seed}"]
            with (results / f"{run_dir.name}.log").open("wb") as log:
                status = subprocess.run(
                    command(variant, arguments, given.workers, run_dir),
                    cwd=ROOT,
                    env=environment(variant, os.environ),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=False,
                ).returncode
            last = Path(log.name).read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
            print(f"{variant.name}: {f'exit status {status}: {log.name}' if status else 'green'}: {last}", flush=True)
            red += bool(status)
    return int(bool(red))


if __name__ == "__main__":
    sys.exit(main())
