"""PyTorch's own tests, which are independent of this project, on the simulated CUDA: passes, and reasons for failures.

    python -m benchmarks.upstream [FILE...] [--check races] [--source FOLDER] [--results FOLDER] [--output TABLE.md]
    python -m benchmarks.upstream --tabulate --results FOLDER

FILE is one of the files below, such as `test_cuda.py`; by default all of them, one run of the harness after the other.
The tests come from Debian's source package of PyTorch, by apt, or from a checkout (`--source`). They stay in a cache
folder outside the repository. Needs a CUDA build of torch, as everything on the simulated CUDA does. Of files that
would take long, only a part of the tests runs, chosen by a hash of their names; the table says which. With
`--check races`, tests that use memory without an order between their streams are `raced`.

Prints the table, the explained and unexplained failures, and the most common causes, as Markdown. The exit status is 1
if a failure is not explained, or if no test of a file could be collected.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from packaging.version import InvalidVersion, Version

from benchmarks.upstream import sources, table
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.journal import environment
from harness.journal.stored_run import StoredRun

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
_EXPLANATIONS = _HERE / "explanations.yaml"


@dataclass(frozen=True, slots=True)
class File:
    """How a file of tests runs: all tests, or those whose names have `keyword`, and of these the shard `part`.

    `plugins` are modules of this package. `devices`: the number of devices of the machine. `left_out` are tests,
    without their file, that would take hours on a CPU. They count as failed.
    """

    name: str
    keyword: str = ""
    part: str = ""
    plugins: tuple[str, ...] = ()
    isolation: str = "batch"
    devices: int = 2
    left_out: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The file, and the part of it that runs."""
        some = [f"`-k {self.keyword}`"] if self.keyword else []
        some += [f"part {self.part}"] if self.part else []
        return ", ".join([self.name, *some])

    @property
    def folder(self) -> str:
        """The name of a folder for the output of its tests."""
        return self.name.removesuffix(".py").replace("/", "-")

    @property
    def options(self) -> list[str]:
        """Its additions to pytest's command line."""
        some = ["-k", self.keyword] if self.keyword else []
        some += [f"--shard={self.part}"] if self.part else []
        some += [f"-pbenchmarks.upstream.{plugin}" for plugin in self.plugins]
        some += [f"--deselect=test/{self.name}::{test}" for test in self.left_out]
        return [*some, f"--isolation={self.isolation}"]


#: The files of `distributed/_composable/fsdp`.
FULLY_SHARD = (
    "autograd", "clip_grad_norm_", "comm", "compile", "extensions", "frozen", "grad_scaler", "init", "logging",
    "memory", "mixed_precision", "overlap", "state", "state_dict", "training",
)  # fmt: skip
FILES = (
    File(
        "test_cuda.py",
        left_out=(
            "TestCuda::test_cudnn_multiple_threads_same_device",
            "TestCuda::test_cusparse_multiple_threads_same_device",
        ),
    ),
    File("test_cuda_multigpu.py", plugins=("two_devices",)),
    File("test_cuda_trace.py"),
    File("test_cuda_sanitizer.py"),
    File("test_cuda_primary_ctx.py", plugins=("two_devices",), isolation="case"),
    File("distributed/test_c10d_nccl.py", plugins=("forked_ranks",), devices=4),
    File("distributed/test_c10d_common.py", plugins=("forked_ranks",)),
    File("distributed/test_fake_pg.py"),
    *(
        File(
            f"distributed/_composable/fsdp/test_fully_shard_{name}.py",
            plugins=("forked_ranks", "older_names") if name in ("logging", "training") else ("forked_ranks",),
        )
        for name in FULLY_SHARD
    ),
    File("test_optim.py", "cuda", part="1/10"),
    File("test_foreach.py", "cuda", part="1/10"),
    File("test_autograd.py", "cuda"),
    File("test_nn.py", "cuda", plugins=("older_names",)),
    File("autograd/test_functional.py"),
    File("nn/test_dropout.py", "cuda"),
    File("nn/test_embedding.py", "cuda"),
    File("nn/test_convolution.py", "cuda", part="1/4", plugins=("older_names",)),
    File("nn/test_pooling.py", "cuda", part="1/2"),
    File("nn/test_lazy_modules.py"),
    File("nn/test_load_state_dict.py"),
    File("nn/test_module_hooks.py"),
    File("nn/test_multihead_attention.py"),
    File("nn/test_packed_sequence.py"),
    File("nn/test_parametrization.py"),
    File("nn/test_pruning.py"),
    File(
        "inductor/test_cudagraph_trees.py",
        plugins=("older_names",),
        left_out=("CudaGraphTreeTests::test_warmup_stream_sync",),
    ),
    File("profiler/test_cpp_thread.py"),
    File("profiler/test_execution_trace.py"),
    File("profiler/test_kineto.py"),
    File("profiler/test_memory_profiler.py"),
    File("profiler/test_profiler.py", "cuda"),
    File("profiler/test_profiler_tree.py"),
)


def main() -> int:
    """Get the tests, run them, tabulate the results. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="files of PyTorch's folder test; default: all known")
    parser.add_argument("--source", type=Path, metavar="FOLDER", help="a checkout of PyTorch, in place of a download")
    parser.add_argument(
        "--cache", type=Path, metavar="FOLDER", default=default_cache(), help="where the download is kept"
    )
    parser.add_argument("--mirror", default="", help="a mirror of Debian; default: that of this machine's apt")
    parser.add_argument("--results", type=Path, metavar="FOLDER", default=Path("upstream-results"))
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the tables there too")
    parser.add_argument("--device", default="simcuda", help="as for the harness (default: %(default)s)")
    parser.add_argument("--check", choices=("races",), help="races: check the order of work (--race-check=on)")
    parser.add_argument("--memory", default="4GiB", help="of each simulated device (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="default: %(default)s")
    parser.add_argument("--case-timeout", type=int, default=600, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--tabulate", action="store_true", help="run nothing: tabulate what --results has")
    options = parser.parse_args()
    try:
        files = chosen(options.files)
        if not options.tabulate:
            source = _source(options)
            for file in files:
                _run(file, source, options)
        return _report(files, options.results, options.output)
    except (sources.SourceError, table.ExplanationError, HarnessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-conformance-harness" / "upstream"


def chosen(names: Sequence[str]) -> tuple[File, ...]:
    """Return the files with these names; one that is not in the list runs as a whole."""
    known = {file.name: file for file in FILES}
    return tuple(known.get(name, File(name)) for name in names) or FILES


def _source(options: argparse.Namespace) -> Path:
    if options.source is not None:
        return sources.given(options.source)
    options.cache.mkdir(parents=True, exist_ok=True)
    return sources.fetched(sources.PACKAGE, options.cache.resolve(), options.mirror)


def _run_folder(file: File, results: Path) -> Path:
    return results.resolve() / file.folder


def _run(file: File, source: Path, options: argparse.Namespace) -> None:
    """Run the tests of a file. The run directory has their verdicts, so pytest's exit status is not needed.

    Leak checks are off: these tests were written for processes that nothing checks. PyTorch's conftest is omitted,
    since it is for their CI.
    """
    folder = _run_folder(file, options.results)
    if folder.exists():
        raise sources.SourceError(f"{folder} has an earlier run: remove it, or give another --results")
    if not (source / "test" / file.name).is_file():
        raise sources.SourceError(f"{source} has no file test/{file.name}")
    command = [sys.executable, "-m", "pytest", f"test/{file.name}", *file.options]
    command += ["-p", "harness.plugin", "-p", "no:cacheprovider", "--noconftest", f"--device={options.device}"]
    command += [f"-n{options.workers}", "--leak-check=off", f"--case-timeout={options.case_timeout}"]
    command += ["--seed=1", f"--race-check={'on' if options.check else 'off'}", f"--results-dir={folder}"]
    machine = {"SIMCUDA_DEVICE_MEMORY": options.memory, "SIMCUDA_DEVICE_COUNT": str(file.devices)}
    environment = {**machine, **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"{file.title}: {folder}", file=sys.stderr, flush=True)
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        subprocess.run(command, cwd=source, env=environment, stdout=log, stderr=log, check=False)


def _cases(file: File, results: Path) -> Iterator[table.Case]:
    folder = _run_folder(file, results)
    torch = _torch(folder)
    with StoredRun.of(folder) as run:
        for verdict, _ in run.cases():
            name = verdict.case.removeprefix("test/").removeprefix(file.name)
            yield table.Case(file.name + name, verdict.outcome, _first_line(verdict.message), torch)
    for test in file.left_out:
        yield table.Case(f"{file.name}::{test}", Outcome.NOT_RUN, "not run: it would take hours", torch)


def _torch(run: Path) -> Version:
    """Return the torch of a run, from its environment file."""
    versions = (environment.read_environment(run) or {}).get("versions")
    found = versions.get("torch") if isinstance(versions, dict) else None
    try:
        return Version(str(found))
    except InvalidVersion:
        place = run / environment.FILE_NAME
        raise sources.SourceError(f"{str(place)!r}: versions: torch: {found!r}, expected a version") from None


def _first_line(message: str) -> str:
    return next(iter(message.strip().splitlines()), "")


def _report(files: Sequence[File], results: Path, output: Path | None) -> int:
    known = table.explanations(yaml.safe_load(_EXPLANATIONS.read_text()))
    there = [file for file in files if _run_folder(file, results).exists()]
    if not there:
        raise sources.SourceError(f"{results} has no run of {', '.join(file.name for file in files)}")
    cases = [case for file in there for case in _cases(file, results)]
    titles = {file.name: file.title for file in there}
    text = "\n".join(_sections(cases, known, titles)) + "\n"
    empty = table.without_tests(titles, cases)
    for file in there:
        if file.name in empty:
            text += f"\nNo test of `{file.name}` was collected: {_run_folder(file, results)}.log says why.\n"
    print(text, end="")
    if output is not None:
        output.write_text(text)
    return int(bool(empty) or any(table.kind(case, known) is table.Kind.UNEXPLAINED for case in cases))


def _sections(
    cases: Sequence[table.Case], known: Sequence[table.Explanation], titles: Mapping[str, str]
) -> Iterator[str]:
    yield table.markdown(table.rows(cases, known), titles)
    yield "\n## Explained\n\n| test | why | reason |\n| --- | --- | --- |"
    red = [case for case in cases if table.kind(case, known) not in (table.Kind.PASSED, table.Kind.SKIPPED)]
    for each in known:
        failed = [case for case in red if table.explanation(case, known) is each]
        if failed:
            yield f"| `{each.tests}`{f', {len(failed)}' if len(failed) > 1 else ''} | {each.why} | {each.reason} |"
    yield "\n## Not explained\n"
    for case in cases:
        if table.kind(case, known) is table.Kind.UNEXPLAINED:
            yield f"- `{case.test}`: {case.outcome}: {case.message[:200]}"
    yield "\n## Causes\n\n| tests | first line of the error |\n| --- | --- |"
    for cause, failed in table.causes(cases, known)[:30]:
        yield f"| {len(failed)} | {cause[:200].replace('|', chr(92) + '|')} |"
    for each in table.unused(known, cases):
        yield f"\nExplains nothing: `{each.tests}`, {each.message!r}."


if __name__ == "__main__":
    sys.exit(main())
