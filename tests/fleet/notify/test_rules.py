"""The file of rules: valid contents, and refusals."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from harness.fleet.notify import Rules, load_rules, missing_variables
from harness.gating.configfile import ConfigError

RULES = """\
channels:
  team: {kind: slack, url_env: SLACK_URL}
  post: {kind: program, run: [apprise, "--title={title}"], env: [APPRISE_URLS, APPRISE_KEY]}
  issues: {kind: program, run: [gh, issue, create], markdown: true}
  out: {kind: stdout}
owners:
  - {cases: "suites/graphs/*", owner: graphs team}
  - {cases: "*", owner: everyone}
routes:
  - {to: [team, out]}
  - {to: [issues, team], profile: nightly, cases: "suites/graphs/*"}
silences:
  - {group: abc, until: 2031-01-31, reason: being looked at}
"""


def rules(tmp_path: Path, text: str = RULES) -> Rules:
    path = tmp_path / "notify.yaml"
    path.write_text(text)
    return load_rules(path).value


def test_the_first_owner_that_matches_counts(tmp_path: Path) -> None:
    found = rules(tmp_path)
    assert found.owner("suites/graphs/test_a.py::one") == "graphs team"
    assert found.owner("suites/streams/test_a.py::one") == "everyone"


@pytest.mark.parametrize(
    ("cases", "profile", "channels"),
    [
        (("suites/graphs/a",), "nightly", ("team", "out", "issues")),
        (("suites/graphs/a",), "smoke", ("team", "out")),
        (("suites/streams/a",), "nightly", ("team", "out")),
        (("suites/streams/a", "suites/graphs/a"), "nightly", ("team", "out", "issues")),
    ],
)
def test_every_route_that_matches_adds_its_channels(
    tmp_path: Path, cases: tuple[str, ...], profile: str, channels: tuple[str, ...]
) -> None:
    assert rules(tmp_path).channels_of(cases, profile) == channels


@pytest.mark.parametrize(
    ("silence", "group", "cases", "covered"),
    [
        ("group: abc", "abcdef", ("suites/a",), True),
        ("group: abc", "xabc", ("suites/a",), False),
        ("cases: suites/a*", "g", ("suites/a", "suites/ab"), True),
        ("cases: suites/a*", "g", ("suites/a", "suites/b"), False),
        ("group: abc, cases: suites/a*", "abcdef", ("suites/b",), False),
    ],
)
def test_a_silence_covers_a_group_of_which_it_covers_all(
    tmp_path: Path, silence: str, group: str, cases: tuple[str, ...], covered: bool
) -> None:
    text = RULES.replace("group: abc", silence)
    assert rules(tmp_path, text).silences[0].covers(group, cases) is covered


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "to: [team, out]",
            "to: [taem]",
            r"notify\.yaml:10: routes\[0\]\.to\[0\]: there is no channel 'taem'; did you",
        ),
        ("{kind: stdout}", "{kind: pager}", r"notify\.yaml:5: channels\.out.*'pager'"),
        ("url_env: SLACK_URL", 'url_env: "https://hooks.example.org/x"', "give the name of an environment variable"),
        ("group: abc, ", "", r"silences\[0\]: a silence needs cases or group"),
        ("until: 2031-01-31", "until: soon", r"notify\.yaml:13: silences\[0\]\.until"),
        ("run: [gh, issue, create]", "run: []", r"channels\.issues.*run"),
        ("{kind: program, run: [gh", "{kind: github, run: [gh", r"notify\.yaml:4: channels\.issues.*'program'"),
        ("APPRISE_URLS", "mailto://secret", "give the name of an environment variable"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in RULES
    with pytest.raises(ConfigError, match=said):
        rules(tmp_path, RULES.replace(old, new))


def test_the_documented_example_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "history.md").read_text(encoding="utf-8")
    example = page.partition("    # notify.yaml\n")[2].partition("\n\n")[0]
    assert {*rules(tmp_path, textwrap.dedent(example)).channels} == {"team", "ops", "issues"}


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*nothing\.yaml"):
        load_rules(tmp_path / "nothing.yaml")


def test_variables_that_are_not_set_are_known(tmp_path: Path) -> None:
    channels = rules(tmp_path).channels
    assert missing_variables(channels["team"], {"SLACK_URL": ""}) == ("SLACK_URL",)
    assert missing_variables(channels["post"], {"APPRISE_URLS": "a"}) == ("APPRISE_KEY",)
    assert missing_variables(channels["issues"], {}) == ()
