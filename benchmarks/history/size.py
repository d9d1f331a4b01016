"""The time to enter a run into a large history, to draw its front page and to look up a case; and the history's size.

python -m benchmarks.history.size                                    # 365 nights, 12 machines, 6,000 cases
python -m benchmarks.history.size --nights 30 --cases 500            # a check that it works
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.history.nights import BEGIN, DAY, ROWS, Generator, Shape, stage
from benchmarks.measuring import machine_facts
from harness.core.caseid import digest_of_ids
from harness.fleet import reports
from harness.fleet.answers import Answers
from harness.fleet.pages import export_site
from harness.fleet.store import Store, run_file_name, write_rows
from harness.journal.journal import FILE_NAME


def timed(what: Callable[[], object], repeats: int = 5) -> dict[str, float]:
    """Return the median and the largest wall time in seconds, and the median of the processor time."""
    walls, cpus = [], []
    for _ in range(repeats):
        cpu, wall = time.process_time(), time.perf_counter()
        what()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {
        "median_s": round(statistics.median(walls), 3),
        "most_s": round(max(walls), 3),
        "cpu_s": round(statistics.median(cpus), 3),
    }


def fill(store: Store, generator: Generator) -> float:
    """Write the files of all nights but the last. Return the seconds."""
    begun = time.perf_counter()
    store.path.mkdir()
    with contextlib.closing(duckdb.connect()) as database:
        for night in range(generator.shape.nights - 1):
            for machine in range(generator.shape.machines):
                stage(database, generator.columns([(night, machine)]))
                write_rows(database, ROWS, store.path / run_file_name(generator.run_id(night, machine)))
    return time.perf_counter() - begun


def run_directory(folder: Path, generator: Generator, machine: int) -> Path:
    """Write the run directory of a machine in the last night, with a journal as the harness writes it."""
    night = generator.shape.nights - 1
    columns = generator.columns([(night, machine)])
    verdicts, uuid = columns["verdict"], generator.device(machine)
    messages = dict(zip(columns["trouble"]["case"], columns["trouble"]["message"], strict=True))
    ids = [str(case) for case in verdicts["case"]]
    at = BEGIN + night * DAY + machine
    on = {"worker": "gw0", "executor": "gw0-1", "devices": [uuid], "seed": 1}
    lines: list[dict[str, Any]] = [
        {"event": "run", "t": at, "schema": 1, "run_id": generator.run_id(night, machine), "argv": ["pytest"]}
        | {"seed": 1, "isolation": "batch", "host": f"node{machine}", "pid": 1, "devices": [uuid], "rootdir": "/r"}
        | {"fail_on_flaky": False, "profile": "nightly", "identity": {"driver": generator.driver(night, machine)}},
        {"event": "collected", "t": at, "worker": "gw0", "count": len(ids), "hash": digest_of_ids(ids), "ids": ids},
    ]
    for case, outcome, seconds in zip(ids, verdicts["outcome"], verdicts["seconds"], strict=True):
        about = {"case": case, "attempt": 1, **on}
        lines.append({"event": "start", "t": at + 1, **about})
        finish = {"event": "finish", "t": at + 2, **about, "outcome": outcome, "final": True}
        finish["duration"] = 0.0 if outcome == "gated" else float(seconds)
        if outcome != "gated":
            finish["memory"] = {"host": 1 << 20, "device": 1 << 24}
        if outcome == "gated":
            finish["gate"] = {"capability": "memory", "wanted": ">=40GiB", "found": "24GiB"}
        elif case in messages:
            finish |= {
                "outcome": "failed",
                "message": messages[case],
                "detail": "suites/test.py:1: RuntimeError\n" * 20,
            }
        lines.append(finish)
    lines.append({"event": "end", "t": at + 3, "exit_status": 1, "duration": 3.0})
    path = folder / generator.run_id(night, machine)
    path.mkdir(exist_ok=True)
    (path / FILE_NAME).write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    environment = {
        "schema": 1,
        "driver": generator.driver(night, machine),
        "versions": {"torch": "2.13.0", "cuda": "13.0"},
        "devices": [{"uuid": uuid, "name": str(columns["device"]["name"][0]), "kind": "cuda"}],
    }
    (path / "environment.json").write_text(json.dumps(environment))
    return path


def measure(shape: Shape, folder: Path) -> dict[str, Any]:
    """Return all figures: commands without and with the copy in the cache, and queries in one process."""
    os.environ["HARNESS_CACHE_DIR"] = str(folder / "cache")
    shutil.rmtree(folder / "cache", ignore_errors=True)
    store, generator = Store(folder / "runs"), Generator(shape)
    found: dict[str, Any] = {"shape": vars_of(shape)}
    if not store.path.exists():
        found["fill_s"] = round(fill(store, generator), 1)
    command = [sys.executable, "-m", "harness", "history"]
    db = ["--db", str(store.path)]

    def run(*arguments: str) -> tuple[float, float]:
        """Return wall and processor time of a command in seconds."""
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([*command, *arguments, *db], check=True, stdout=subprocess.DEVNULL)
        wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    paths = [run_directory(folder, generator, machine) for machine in range(min(3, shape.machines))]
    case = str(generator.cases[3])
    figures = {"first_report": [run("report")]}
    found["megabytes_of_memory"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    for path in paths:
        figures.setdefault("add", []).append(run("add", str(path)))
        figures.setdefault("report_of_a_new_run", []).append(run("report"))
    figures["report"] = [run("report") for _ in range(3)]
    figures["report_of_a_case"] = [run("report", "--case", case) for _ in range(3)]
    for name, seconds in figures.items():
        walls, cpus = zip(*seconds, strict=True)
        found[f"command_{name}"] = {**spread([*walls]), "cpu_s": round(statistics.median(cpus), 3)}
    files = store.files()
    found["files"], found["megabytes"] = len(files), round(sum(file.stat().st_size for file in files) / 1e6, 1)
    assert store.copy is not None
    found["megabytes_of_copy"] = round(store.copy.stat().st_size / 1e6, 1)
    with store.reading() as database:
        (found["verdicts"],) = database.execute("SELECT count(*) FROM verdict").fetchall()[0]
        (found["troubles"],) = database.execute("SELECT count(*) FROM trouble").fetchall()[0]
        found["front_page"] = timed(lambda: reports.front_text(Answers(database)))
        answers = Answers(database)
        found["front_page_parts"] = parts(database)
        found["case"] = timed(lambda: reports.case_text(answers, case))
        group = answers.open_groups[0].key
        found["bisect"] = timed(lambda: reports.bisect_text(answers, group), 3)
        begun = time.perf_counter()
        found["pages"] = export_site(answers, folder / "site")
        found["export_s"] = round(time.perf_counter() - begun, 1)
        found["site_megabytes"] = round(
            sum(path.stat().st_size for path in (folder / "site").rglob("*") if path.is_file()) / 1e6, 1
        )
    found["load"] = os.getloadavg()
    return found


def spread(seconds: list[float]) -> dict[str, float]:
    return {"median_s": round(statistics.median(seconds), 3), "most_s": round(max(seconds), 3)}


def parts(database: Any) -> dict[str, float]:
    """Return the seconds of the parts of the front page."""
    names = ("runs", "lanes", "open_groups", "suspicions", "flaky_cases", "slow_cases", "not_run", "healed_waivers")
    return {name: timed(lambda name=name: getattr(Answers(database), name), 3)["median_s"] for name in names}


def vars_of(shape: Shape) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in shape.__slots__}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--machines", type=int, default=12)
    parser.add_argument("--cases", type=int, default=6000)
    parser.add_argument("--folder", type=Path, help="keep everything in this folder; a history that is there is used")
    parser.add_argument("--output", type=Path, help="write the figures to this file")
    wanted = parser.parse_args()
    shape = Shape(wanted.nights, wanted.machines, wanted.cases)
    with tempfile.TemporaryDirectory() as temporary:
        folder = wanted.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = {**measure(shape, folder), "machine": machine_facts()}
    print(json.dumps(found, indent=2))
    if wanted.output:
        wanted.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
