"""The cost of reports: time and memory to write the HTML report and JUnit, their size, and the time to draw a page.

The journals are generated: nothing runs. The browser is the system's Chromium. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measuring import machine_facts, median

from harness.core.caseid import digest_of_ids
from harness.journal import environment, journal, reader
from harness.journal.events import SCHEMA
from harness.reporting import junit
from harness.reporting.page import report

_DEVICES = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(4)]
_STACK = "Traceback (most recent call last):\n" + 30 * '  File "suites/a/test_a.py", line 7, in test\n    launch()\n'


def events(cases: int, red: float) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run of this many cases, of which the share `red` failed with a stack and output."""
    rng = random.Random(cases)
    begin = 1_760_000_000.0
    ids = [f"suites/suite{n % 40}/test_file{n % 7}.py::TestClass::test_case_{n}[cuda-float32]" for n in range(cases)]
    facts = {
        "run_id": "r",
        "fail_on_flaky": False,
        "argv": ["pytest"],
        "seed": 1,
        "isolation": "batch",
        "host": "host",
        "pid": 1,
        "rootdir": "/",
    }
    yield {"event": "run", "t": begin, "schema": SCHEMA, "devices": _DEVICES, **facts}
    yield {
        "event": "collected",
        "t": begin,
        "worker": "gw0",
        "count": cases,
        "hash": digest_of_ids(ids),
        "ids": ids,
    }
    clocks = [begin] * 4
    for case in ids:
        place = clocks.index(min(clocks))
        seconds = rng.lognormvariate(-3, 1.2)
        line = {"case": case, "attempt": 1, "worker": f"gw{place}", "executor": f"gw{place}-e1", "seed": 1}
        line["devices"] = [_DEVICES[place]]
        yield {"event": "start", "t": clocks[place], **line}
        clocks[place] += seconds
        failed = rng.random() < red
        more = {
            "message": "assert 1 == 2",
            "detail": _STACK,
            "stdout": 50 * "a line\n",
            "reproduce": f"pytest '{case}'",
        }
        ended = {"outcome": "failed" if failed else "passed", "final": True, "duration": seconds}
        yield {"event": "finish", "t": clocks[place], **line, **ended, **(more if failed else {})}
    yield {"event": "end", "t": max(clocks), "exit_status": 1 if red else 0, "duration": max(clocks) - begin}


def write_once(run_dir: Path) -> dict[str, float]:
    """Write the page in this process, which has done nothing before; return the figures."""
    contents = reader.read_run_journal(run_dir / journal.FILE_NAME)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    path = report.write_html_report(run_dir, contents)
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": seconds,
        "bytes": path.stat().st_size,
        "peak_mib": peak / 1024,
        "more_mib": (peak - before) / 1024,
    }


def draw(path: Path, repeats: int) -> dict[str, float]:
    """Return the milliseconds from the start of the navigation to each stage, as medians; empty without Chromium."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        return {}
    samples: list[dict[str, float]] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(repeats):
            page = browser.new_page()
            page.add_init_script(
                "new MutationObserver(() => { for (const what of ['ready', 'drawn']) if (document.documentElement"
                ".dataset[what] && !window[what]) window[what] = performance.now(); })"
                ".observe(document, { attributes: true, subtree: true });"
            )
            page.goto(path.resolve().as_uri())
            page.wait_for_selector("html[data-drawn]", state="attached")
            samples.append(
                page.evaluate(
                    "() => { const n = performance.getEntriesByType('navigation')[0];"
                    " const paint = performance.getEntriesByName('first-contentful-paint')[0];"
                    " return { first_paint: paint ? paint.startTime : 0, table: window.ready, load: n.loadEventEnd,"
                    " plots: window.drawn, heap_mib: performance.memory.usedJSHeapSize / 2 ** 20 }; }"
                )
            )
            page.close()
        browser.close()
    return {name: median([sample[name] for sample in samples]) for name in samples[0]}


def junit_once(run_dir: Path) -> dict[str, float]:
    """Write junit.xml as `harness report junit` does, from the journal, in this process."""
    begun = time.perf_counter()
    written = junit.write_junit(run_dir)
    return {"bytes": written.size, **_spent(begun)}


def _spent(begun: float) -> dict[str, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    wall = time.perf_counter() - begun
    return {"seconds": wall, "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_mib": usage.ru_maxrss / 1024}


def junit_figures(cases: Sequence[int], repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of JUnit for journals of this many cases, one in ten thousand red."""
    with tempfile.TemporaryDirectory() as folder:
        for number in cases:
            run_dir = Path(folder) / str(number)
            run_dir.mkdir()
            _write_journal(run_dir, events(number, 0.0001))
            yield {"cases": number, **_medians(["--junit", str(run_dir)], repeats)}
            shutil.rmtree(run_dir)


def _write_journal(run_dir: Path, lines: Iterator[dict[str, Any]]) -> None:
    with (run_dir / journal.FILE_NAME).open("wb") as file:
        file.writelines(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in lines)


def _medians(arguments: Sequence[str], repeats: int) -> dict[str, float]:
    """Return the medians of the figures that this script prints with these arguments, each time in a new process."""
    # From a shell, because a process starts with the peak memory of its parent.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, __file__, *arguments]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    return {name: median([each[name] for each in runs]) for name in runs[0]}


def html_figures(cases: Sequence[int], repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of the page for journals of this many cases, of which none, one in a hundred or all are red."""
    with tempfile.TemporaryDirectory() as folder:
        for number in cases:
            for red in (0.0, 0.01, 1.0):
                run_dir = Path(folder) / f"{number}-{red}"
                run_dir.mkdir()
                _write_journal(run_dir, events(number, red))
                environment.write_environment(run_dir, {"schema": environment.SCHEMA})
                found = _medians(["--write", str(run_dir)], repeats) | draw(run_dir / report.FILE_NAME, repeats)
                yield {"cases": number, "red": red, **found}
                shutil.rmtree(run_dir)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=("html", "junit"), nargs="+", default=["html", "junit"])
    parser.add_argument("--cases", type=int, nargs="+", help="default: 1,000 to 100,000 (html), to 1,000,000 (junit)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a JSON file for all figures")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--junit", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    for way, run_dir in ((write_once, given.write), (junit_once, given.junit)):
        if run_dir is not None:
            print(json.dumps(way(run_dir)))
            return 0
    figures: list[dict[str, Any]] = []
    ways = {
        "html": html_figures(given.cases or [1_000, 10_000, 100_000], given.repeats),
        "junit": junit_figures(given.cases or [10_000, 100_000, 1_000_000], given.repeats),
    }
    for name in given.format:
        for found in ways[name]:
            figures.append({"format": name, **found})
            plain = {key: round(value, 2) if isinstance(value, float) else value for key, value in figures[-1].items()}
            print(json.dumps(plain), flush=True)
    if given.output:
        given.output.write_text(json.dumps({"machine": machine_facts(), "figures": figures}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
