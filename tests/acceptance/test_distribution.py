"""A mixed suite under every way in which xdist hands out cases: one verdict each, the same everywhere."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected


@pytest.mark.parametrize("dist", ["load", "loadscope", "loadfile", "loadgroup", "worksteal"])
def test_dist(make_project: MakeProject, dist: str) -> None:
    project = make_project("mixed")
    result = project.run("-n2", f"--dist={dist}")
    compare(result, expected(project, "batch"))


def test_dist_each(make_project: MakeProject) -> None:
    """Every worker runs every case; a case has one verdict all the same. pytest itself counts each run of a case."""
    project = make_project("mixed")
    wanted = expected(project, "batch")
    result = project.run("-n2", "--dist=each")
    compare(result, replace(wanted, counts={word: 2 * number for word, number in wanted.counts.items()}))
    finals = [(line["case"], line["worker"]) for line in result.lines if line["event"] == "finish" and line["final"]]
    assert sorted(finals) == sorted((case, worker) for case in wanted.cases for worker in ("gw0", "gw1"))


def test_more_workers_than_cases(make_project: MakeProject) -> None:
    project = make_project("plain")
    result = project.run("-n8", "--isolation=case")
    compare(result, expected(project, "case"), alone=True)


def test_auto_is_one_worker_a_core(make_project: MakeProject) -> None:
    """``-n auto`` takes at most one worker a core that this process may use, however many the machine has."""
    project = make_project("mixed")
    result = project.run("-nauto")
    compare(result, expected(project, "batch"))
    workers = {line["worker"] for line in result.lines if line["event"] == "collected"}
    assert 1 <= len(workers) <= len(os.sched_getaffinity(0))
