"""Waiver files: valid entries, and the errors for invalid ones."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.gating.configfile import ConfigError
from harness.gating.waiverfile import load_waivers
from harness.gating.waivers import Waiver

ENTRY = """\
  - case: suites/streams/test_x.py::test_copy[cuda-*]
    when: {device: cuda, driver: ">=570,<580"}
    expect: failed
    reason: copies between streams are not ordered
    link: https://example.org/issues/1
    owner: somebody
    expires: 2027-03-31
"""


def written(tmp_path: Path, text: str, name: str = "known.yaml") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def with_line(key: str, line: str) -> str:
    """Return a file with one entry, in which `line` replaces the line of `key`."""
    lines = [line if text.strip(" -").startswith(f"{key}:") else text for text in ENTRY.splitlines()]
    return "\n".join(["waivers:", *(text for text in lines if text), ""])


def test_an_entry_becomes_a_waiver(tmp_path: Path) -> None:
    path = written(tmp_path, f"# a comment\nwaivers:\n{ENTRY}", "configs/waivers/known.yaml")
    assert load_waivers([path], tmp_path) == (
        Waiver(
            case="suites/streams/test_x.py::test_copy[cuda-*]",
            when={"device": "cuda", "driver": ">=570,<580"},
            expect=(Outcome.FAILED,),
            reason="copies between streams are not ordered",
            link="https://example.org/issues/1",
            owner="somebody",
            expires=date(2027, 3, 31),
            source="configs/waivers/known.yaml:3",
        ),
    )


def test_several_files_are_read_in_order_and_one_named_twice_counts_once(tmp_path: Path) -> None:
    first = written(tmp_path, f"waivers:\n{ENTRY}{ENTRY}", "b.yaml")
    second = written(tmp_path, f"waivers:\n{ENTRY}", "a.yaml")
    paths = [first, second, tmp_path / "x" / ".." / "b.yaml", second]
    (tmp_path / "x").mkdir()
    sources = [waiver.source for waiver in load_waivers(paths, tmp_path)]
    assert sources == ["b.yaml:2", "b.yaml:9", "a.yaml:2"]


def test_a_file_elsewhere_is_named_in_full(tmp_path: Path) -> None:
    path = written(tmp_path, f"waivers:\n{ENTRY}")
    (tmp_path / "base").mkdir()
    assert load_waivers([path], tmp_path / "base")[0].source == f"{path}:2"


def test_a_file_without_waivers_is_one(tmp_path: Path) -> None:
    assert load_waivers([written(tmp_path, "waivers: []\n")], tmp_path) == ()


@pytest.mark.parametrize("line", ["", "    link:", "    link: ''", "    link: ' '"])
def test_a_missing_link_is_left_to_the_run_and_to_lint(tmp_path: Path, line: str) -> None:
    assert load_waivers([written(tmp_path, with_line("link", line))], tmp_path)[0].link == ""


def test_an_empty_link_is_named_together_with_an_empty_owner(tmp_path: Path) -> None:
    """A proposed waiver has neither."""
    text = with_line("owner", "    owner: ''").replace(with_line("owner", "").split("link: ")[1].splitlines()[0], "''")
    with pytest.raises(ConfigError) as caught:
        load_waivers([written(tmp_path, text)], tmp_path)
    assert {line.split(": ")[1] for line in str(caught.value).splitlines()} == {"waivers[0].owner", "waivers[0].link"}


def test_text_is_put_on_one_line_and_conditions_may_be_left_out(tmp_path: Path) -> None:
    text = with_line("reason", "    reason: |\n      two\n      lines").replace("    when:", "    # when:")
    (waiver,) = load_waivers([written(tmp_path, text)], tmp_path)
    assert (waiver.reason, waiver.when) == ("two lines", {})


def test_several_outcomes_may_be_expected(tmp_path: Path) -> None:
    text = with_line("expect", "    expect: [failed, flaky, passed]")
    (waiver,) = load_waivers([written(tmp_path, text)], tmp_path)
    assert waiver.expect == (Outcome.FAILED, Outcome.FLAKY, Outcome.PASSED)


@pytest.mark.parametrize(
    ("key", "line", "number", "words"),
    [
        ("case", "  - case: ''", 2, "'' is not a pattern for case ids"),
        ("case", "  - case: ' suites/*'", 2, "' suites/*' is not a pattern for case ids: write one without spaces"),
        ("when", "    when: {memroy: '>=1GiB'}", 3, "there is no capability 'memroy'; did you mean 'memory'?"),
        ("when", "    when: {driver: 570}", 3, "driver"),
        ("when", "    when: {device: cpu}", 3, "for machines without a GPU write not: {device: cuda}"),
        ("when", "    when: {not: {device: cpu}}", 3, "device: cpu holds on every machine"),
        ("when", "    when: {any: [{ecc: true}, {device: cpu}]}", 3, "device: cpu holds on every machine"),
        ("expect", "    expect: faild", 4, "there is no outcome 'faild'; did you mean 'failed'?"),
        ("expect", "    expect: [failed, crash]", 4, "there is no outcome 'crash'; did you mean 'crashed'?"),
        ("expect", "    expect: sometimes", 4, "there is no outcome 'sometimes'; expected one of: failed, error"),
        ("expect", "    expect: [failed, failed]", 4, "an outcome appears twice in failed, failed"),
        ("expect", "    expect: passed", 4, "'expect' has no failure"),
        ("expect", "    expect: []", 4, "'expect' has no failure"),
        ("expect", "    expect:", 4, "found nothing"),
        ("reason", "    reason: ' '", 5, "it is empty: write a few words"),
        ("owner", "    owner: ''", 7, "it is empty: write a few words"),
        ("owner", "", 2, "the key 'owner' is missing"),
        ("reason", "", 2, "the key 'reason' is missing"),
        ("expires", "", 2, "the key 'expires' is missing"),
        ("expires", "    expires: 2027-02-30", 8, "wanted a date such as"),
        ("expires", "    expires: 1800000000", 8, "wanted a date such as"),
        ("expires", "    expires: never", 8, "wanted a date such as"),
        ("link", "    link: [https://example.org]", 6, "wanted text"),
        ("link", "    lnk: https://example.org", 6, "there is no such key; did you mean 'link'?"),
    ],
)
def test_an_invalid_entry_is_reported_with_its_line(
    tmp_path: Path, key: str, line: str, number: int, words: str
) -> None:
    path = written(tmp_path, with_line(key, line))
    with pytest.raises(ConfigError) as caught:
        load_waivers([path], tmp_path)
    (problem,) = [text for text in str(caught.value).splitlines() if words in text]
    assert f"{path}:{number}: " in problem


@pytest.mark.parametrize("outcome", ["gated", "skipped", "not_run", "lost", "waived", "unexpected_pass"])
def test_an_outcome_that_is_no_failure_cannot_be_expected(tmp_path: Path, outcome: str) -> None:
    path = written(tmp_path, with_line("expect", f"    expect: [failed, {outcome}]"))
    with pytest.raises(ConfigError, match=f"a waiver cannot expect '{outcome}'; use one of: failed, error"):
        load_waivers([path], tmp_path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        load_waivers([tmp_path / "gone.yaml"], tmp_path)
