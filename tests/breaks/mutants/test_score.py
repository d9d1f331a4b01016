"""The table by module and the survivors, with plain values."""

from __future__ import annotations

import json

from tests.breaks.mutants.mutant import Mutant
from tests.breaks.mutants.results import MutantResult
from tests.breaks.mutants.score import scores, scores_json, scores_text, survivors_text, total
from tests.breaks.table import Verdict


def mutant(path: str, line: int) -> Mutant:
    return Mutant(path, "f", line, line, "constant changed", 0, 1, "1", "2", line)


A = [mutant("torch/a/__init__.py", line) for line in range(1, 5)]
B = [mutant("torch/b.py", 1)]


def result(each: Mutant, verdict: Verdict) -> MutantResult:
    return MutantResult(each, verdict, "s/test_x.py::t" if verdict == "noticed" else "", "", 2, 3, 0.1)


RESULTS = [result(A[0], "noticed"), result(A[1], "missed"), result(A[2], "stumbled")]


def test_the_table() -> None:
    found = scores([*A, *B], A[:3], RESULTS)
    assert scores_text(found) == (
        "module   mutants  reached  tried  noticed  unobservable  stumbled  unusable\n"
        "torch.a        4      75%      2      50%             0         1         0\n"
        "torch.b        1       0%      0        -             0         0         0\n"
        "total          5      60%      2      50%             0         1         0\n"
    )
    assert total(found).tried == 2


def test_survivors_are_listed_by_function_with_the_nearest_cases() -> None:
    text = survivors_text(RESULTS, {A[1].name: ["s/test_y.py::near"]})
    assert text == (
        "torch/a/__init__.py f: 1 survivor\n"
        f"    {A[1].name} line 2: constant changed: 1 -> 2 (2 of 3 cases ran; nearest: test_y.py::near)\n"
    )
    assert survivors_text(RESULTS[:1], {}) == ""


def test_a_survivor_with_a_reason_does_not_count_and_is_listed_by_its_reason() -> None:
    def reason(each: Mutant) -> str:
        return "a cache" if each.path == A[0].path else ""

    (found, _) = scores([*A, *B], A[:3], RESULTS, reason)
    assert (found.tried, found.noticed, found.missed, found.unobservable) == (1, 1, 0, 1)
    assert survivors_text(RESULTS, {}, reason) == "1 survivor that no case can observe:\n    1 a cache\n"
    values = json.loads(scores_json([found], RESULTS, reason))
    assert [each["reason"] for each in values["mutants"]] == ["", "a cache", ""]
    assert values["modules"][0]["unobservable"] == 1


def test_the_json_has_every_result() -> None:
    values = json.loads(scores_json(scores(A, A, RESULTS), RESULTS))
    assert [each["verdict"] for each in values["mutants"]] == ["noticed", "missed", "stumbled"]
    assert values["modules"][0]["noticed"] == 1
    kept = {name: value for name, value in values["mutants"][0].items() if name not in ("name", "reason")}
    assert MutantResult.from_json(kept) == RESULTS[0]
