"""Messages about what is new in a run: the rules in a YAML file, the news of a run, and the channels for them.

A channel that cannot be reached raises ChannelError, whose text contains no secret.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from pydantic import AfterValidator, Field

from harness.core.errors import HarnessError
from harness.core.models import StrictModel
from harness.core.text import format_count
from harness.fleet.answers import Answers, HistoryFailure
from harness.fleet.pages import page_file_name
from harness.fleet.texts import escape_markdown, render_text
from harness.fleet.timeline import changes_text
from harness.gating import configfile
from harness.gating.configfile import ConfigError, Loaded
from harness.gating.patterns import matches_pattern
from harness.reporting.page import inert

#: Seconds that a server or a program has to answer.
LIMIT = 30.0

# ---- rules ----

Text = Annotated[str, Field(min_length=1)]


def _variable(name: str) -> str:
    if not name.replace("_", "a").isalnum() or name[0].isdigit():
        raise ValueError("give the name of an environment variable: secrets are never written in a file")
    return name


Variable = Annotated[Text, AfterValidator(_variable)]


class Webhook(StrictModel):
    """A message to a URL, which is in an environment variable."""

    kind: Literal["slack", "teams", "mattermost", "json"]
    url_env: Variable


class Program(StrictModel):
    """A program that gets the message on its standard input, such as ``sendmail``, ``gh`` or ``apprise``.

    `run`: its name and its arguments, in which ``{title}`` stands for the title. `env`: the variables that it needs.
    """

    kind: Literal["program"]
    run: Annotated[tuple[Text, ...], Field(min_length=1)]
    env: tuple[Variable, ...] = ()
    markdown: bool = False


class Stdout(StrictModel):
    """Standard output."""

    kind: Literal["stdout"]


Channel = Annotated[Webhook | Program | Stdout, Field(discriminator="kind")]


class Owner(StrictModel):
    """The owner of the cases of a pattern. The first matching entry counts."""

    cases: Text
    owner: Text


class Route(StrictModel):
    """The channels for the cases of a pattern, in runs with a profile."""

    to: Annotated[tuple[Text, ...], Field(min_length=1)]
    cases: Text = "*"
    profile: Text | None = None


class Silence(StrictModel):
    """Failures that are not reported until a day: the cases of a pattern, or a group by its key."""

    until: date
    reason: Text
    cases: Text | None = None
    group: Text | None = None

    def covers(self, group: str, cases: tuple[str, ...]) -> bool:
        """Return whether a group of failures, with its red cases, is silenced."""
        if self.group is not None and not group.startswith(self.group):
            return False
        return self.cases is None or all(matches_pattern(self.cases, case) for case in cases)


class Rules(StrictModel):
    """The file.

    `remind`: the number of nights after which a group that is still red is reported again; 0: never. `again`: a group
    that reappears within this many nights is not new. `site`: the address of the exported pages, for links.
    """

    channels: Annotated[dict[Text, Channel], Field(min_length=1)]
    routes: Annotated[tuple[Route, ...], Field(min_length=1)]
    owners: tuple[Owner, ...] = ()
    silences: tuple[Silence, ...] = ()
    remind: Annotated[int, Field(ge=0, le=3650)] = 7
    again: Annotated[int, Field(ge=0, le=3650)] = 7
    site: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""

    def owner(self, case: str) -> str:
        """Return the owner of a case; empty if it has none."""
        return next((owner.owner for owner in self.owners if matches_pattern(owner.cases, case)), "")

    def channels_of(self, cases: tuple[str, ...], profile: str) -> tuple[str, ...]:
        """Return the channels for any of these cases, each once, in the order of the routes; without cases, all."""
        routes = (route for route in self.routes if route.profile in (None, profile))
        matching = (route for route in routes if not cases or any(matches_pattern(route.cases, case) for case in cases))
        return tuple(dict.fromkeys(name for route in matching for name in route.to))


def load_rules(path: Path) -> Loaded[Rules]:
    """Load the rules. Raise ConfigError with one line per problem: a route to no channel, a silence of everything."""
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}: docs/history.md#messages has an example")
    loaded = configfile.load_config(path, Rules)
    rules, problems = loaded.value, []
    for place, route in enumerate(rules.routes):
        for number, name in enumerate(route.to):
            if name not in rules.channels:
                advice = configfile.name_advice(name, rules.channels)
                problems.append(
                    loaded.problem(f"there is no channel {name!r}; {advice}", "routes", place, "to", number)
                )
    for place, silence in enumerate(rules.silences):
        if silence.cases is None and silence.group is None:
            problems.append(loaded.problem("a silence needs cases or group", "silences", place))
    if problems:
        raise ConfigError("\n".join(problems))
    return loaded


def idle_silences(rules: Rules, today: date) -> Iterator[str]:
    """Yield a sentence for each silence whose last day is over."""
    for silence in rules.silences:
        if silence.until < today:
            subject = silence.group or silence.cases
            yield f"the silence of {subject!r} ended on {silence.until} ({silence.reason}): remove it"


def missing_variables(channel: Channel, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the variables that a channel needs but that are unset or empty."""
    variables = os.environ if environ is None else environ
    needed: tuple[str, ...] = (channel.url_env,) if isinstance(channel, Webhook) else ()
    needed = channel.env if isinstance(channel, Program) else needed
    return tuple(name for name in needed if not variables.get(name))


# ---- news ----


class Why(StrEnum):
    """Why a topic is reported."""

    NEW = "new"
    AGAIN = "back"
    REMINDER = "still red"
    UNSILENCED = "still red after its silence"


_TITLES = {
    Why.NEW: ("new group of failures", "new groups of failures"),
    Why.AGAIN: ("group of failures is back", "groups of failures are back"),
    Why.REMINDER: ("group still red", "groups still red"),
    Why.UNSILENCED: ("group still red after its silence", "groups still red after their silence"),
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A group of failures of the run, or a finding.

    `group`: the key of the group, empty for a finding. `cases`: all red cases of the group in this run. `outcomes`:
    their verdicts. `since`: the night in which it began, for a reminder. `owner`: the owner of the first case.
    """

    why: Why
    group: str
    title: str
    cases: tuple[str, ...]
    message: str
    reproduce: str = ""
    since: date | None = None
    owner: str = ""
    outcomes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Past:
    """A group in the earlier runs of the lane.

    It has the last night with the group, the night in which its spell began, and the day on which the last run with the
    group ended, when it was reported.
    """

    last: date
    since: date
    reported: date


@dataclass(frozen=True, slots=True)
class Bulletin:
    """The report on one run. `silenced`: groups that a silence covers; `known`: red groups that were reported before.

    `changes`: the differences from the previous run, as text. `before`: the id of that run; empty for a lane's first
    run.
    """

    run: str
    lane: str
    night: date
    profile: str
    red: int
    cases: int
    complete: bool
    before: str
    changes: str
    page: str
    topics: tuple[Topic, ...]
    fixed: tuple[str, ...]
    silenced: int = 0
    known: int = 0


def why_reported(
    past: Past | None, night: date, previous: date | None, rules: Rules, silences: Sequence[Silence] = ()
) -> Why | None:
    """Return why a red group is reported, or None if it is known.

    `past`: the group in earlier runs. `previous`: the night of the lane's previous run; None without one. `silences`:
    those that cover the group, and have ended.
    """
    if past is None or previous is None:
        return Why.NEW
    if any(past.reported <= silence.until for silence in silences):
        return Why.UNSILENCED
    if past.last < previous:  # the group was not in the previous run
        return Why.AGAIN if (night - past.last).days > rules.again else None
    if not rules.remind:
        return None
    open_for, open_before = (night - past.since).days, (previous - past.since).days
    return Why.REMINDER if open_for // rules.remind > open_before // rules.remind else None


def bulletin(answers: Answers, run: Mapping[str, Any], rules: Rules, today: date) -> Bulletin:
    """Return the report on a run, a row of `answers.runs`."""
    news = answers.news(run["run"])
    before = answers.runs[news.previous] if news.previous is not None else None
    groups: dict[str, list[HistoryFailure]] = {}
    for failure in answers.failures(run["run"]):
        if failure.outcome.is_red:
            groups.setdefault(failure.group, []).append(failure)
    past = {key: Past(*days) for key, *days in answers.past(run, list(groups))}
    topics, silenced, still_red = [], 0, 0
    for key, failures in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        cases = tuple(sorted({failure.case for failure in failures}))
        covering = [silence for silence in rules.silences if silence.covers(key, cases)]
        ended = [silence for silence in covering if silence.until < today]
        why = why_reported(past.get(key), run["night"], before["night"] if before else None, rules, ended)
        if len(ended) < len(covering):
            silenced += 1
        elif why is None:
            still_red += 1
        else:
            first = min(failures, key=lambda failure: failure.case)
            since = past[key].since if why in (Why.REMINDER, Why.UNSILENCED) else None
            owner = rules.owner(first.case)
            outcomes = tuple(sorted({failure.outcome.value for failure in failures}))
            topics.append(Topic(why, key, first.title, cases, first.message, first.reproduce, since, owner, outcomes))
    topics += [Topic(Why.NEW, "", kind, (), message) for kind, message in news.findings]
    return Bulletin(
        run=run["run_id"],
        lane=run["lane"],
        night=run["night"],
        profile=run["profile"] or "",
        red=run["red"],
        cases=run["cases"],
        complete=bool(run["complete"]),
        before=before["run_id"] if before else "",
        changes=changes_text(before, run) if before else "",
        page=run["page"] or "",
        topics=tuple(topics),
        fixed=news.fixed,
        silenced=silenced,
        known=still_red,
    )


# ---- routes ----


def by_channel(whole: Bulletin, rules: Rules) -> Iterator[tuple[str, Bulletin]]:
    """Yield each channel that has something to report, with its bulletin.

    Findings go to every channel of the profile.
    """
    every = rules.channels_of((), whole.profile)
    of: dict[str, list[Topic]] = {}
    for topic in whole.topics:
        for name in rules.channels_of(topic.cases, whole.profile) if topic.cases else every:
            of.setdefault(name, []).append(topic)
    if not whole.complete and not of:
        of = {name: [] for name in every}
    for name, topics in of.items():
        yield name, replace(whole, topics=tuple(topics))


def without_route(whole: Bulletin, rules: Rules) -> list[Topic]:
    """Return the topics without a route."""
    reported = {id(topic) for _, routed in by_channel(whole, rules) for topic in routed.topics}
    return [topic for topic in whole.topics if id(topic) not in reported]


# ---- texts ----


def title(bulletin: Bulletin) -> str:
    """Return for example ``2 new groups of failures, 1 finding: gpu7 · H100 · nightly, 2026-03-02``."""
    groups = [topic for topic in bulletin.topics if topic.group]
    counted = {why: sum(group.why is why for group in groups) for why in Why}
    parts = [format_count(number, *_TITLES[why]) for why, number in counted.items() if number]
    if findings := len(bulletin.topics) - len(groups):
        parts.append(format_count(findings, "finding"))
    if not bulletin.complete:
        parts.append("the run did not end")
    return inert.inert_indented_line(f"{', '.join(parts) or 'nothing new'}: {bulletin.lane}, {bulletin.night}")


def body(bulletin: Bulletin, site: str = "") -> str:
    """Return the bulletin as plain text, without the title. `site`: the address of the exported pages."""
    address = f"{site.rstrip('/')}/" if site else ""
    links = {topic.group: address + page_file_name("groups", topic.group) for topic in bulletin.topics if address}
    return render_text("bulletin.txt", bulletin=bulletin, links=links).rstrip()


def text(bulletin: Bulletin, site: str = "") -> str:
    """Return the bulletin as plain text, the title first."""
    return f"{title(bulletin)}\n\n{body(bulletin, site)}\n"


def markdown(bulletin: Bulletin, site: str = "") -> str:
    """Return the bulletin as Markdown, without the title: a block of code, in which texts of a run have no effect."""
    written = body(bulletin, site)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", written)), default=0))
    return f"{fence}text\n{written}\n{fence}\n"


# ---- channels ----


class ChannelError(HarnessError):
    """A channel could not be reached, or refused the message."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a message must go only to the given address."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def send(channel: Channel, bulletin: Bulletin, site: str = "") -> None:
    """Send the bulletin through a channel. Raise ChannelError."""
    missing = missing_variables(channel)
    if missing:
        raise ChannelError(f"the environment variable {missing[0]} is not set")
    if isinstance(channel, Webhook):
        _post(os.environ[channel.url_env], channel.url_env, BODIES[channel.kind](bulletin, site))
    elif isinstance(channel, Program):
        written = markdown(bulletin, site) if channel.markdown else text(bulletin, site)
        _run([word.replace("{title}", title(bulletin)[:200]) for word in channel.run], written.encode())
    else:
        sys.stdout.write(text(bulletin, site))
        sys.stdout.flush()


# ---- webhooks ----


def slack(bulletin: Bulletin, site: str = "") -> dict[str, Any]:
    """Return the body of an incoming webhook of Slack."""
    return {"text": f"*{_slack(title(bulletin))}*\n```\n{_slack(body(bulletin, site))}\n```"}


def _slack(value: str) -> str:
    """Escape the three characters of Slack's control sequences, so that no text of a run is a mention or a link."""
    escaped = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("```", "'''")


def mattermost(bulletin: Bulletin, site: str = "") -> dict[str, Any]:
    """Return the body of an incoming webhook of Mattermost."""
    return {"text": f"**{escape_markdown(title(bulletin))}**\n{markdown(bulletin, site)}"}


def teams(bulletin: Bulletin, site: str = "") -> dict[str, Any]:
    """Return the body of a workflow of Teams: a message with an adaptive card."""
    run = {"type": "TextRun", "text": body(bulletin, site), "fontType": "Monospace"}
    heading = {"type": "TextBlock", "text": escape_markdown(title(bulletin)), "weight": "Bolder", "wrap": True}
    card = {
        "type": "AdaptiveCard",
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "version": "1.4",
        "body": [heading, {"type": "RichTextBlock", "inlines": [run]}],
    }
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def bulletin_json(bulletin: Bulletin, site: str = "") -> dict[str, Any]:
    """Return the bulletin as JSON values, for programs."""
    values = {"title": title(bulletin), "text": body(bulletin, site)}
    return {**values, **json.loads(msgspec.json.encode(bulletin))}


BODIES = {"slack": slack, "mattermost": mattermost, "teams": teams, "json": bulletin_json}


def _post(url: str, name: str, message: object) -> None:
    """Post JSON. Error messages name the variable and the host, but not the address, whose path is a secret."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise ChannelError(f"{name} is no address") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ChannelError(f"{name} is no address: expected https://…")
    data = json.dumps(message).encode()
    try:
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=LIMIT) as answer:
            answer.read(1000)
    except urllib.error.HTTPError as error:
        with error:
            said = _short(error.read(300).decode("utf-8", "replace"))
        raise ChannelError(f"{host} refused the message: HTTP {error.code}{f', {said}' if said else ''}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or type(error).__name__
        raise ChannelError(f"{host} cannot be reached: {_short(str(why))}") from None


# ---- programs ----


def _run(command: list[str], given: bytes) -> None:
    name = command[0]
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=LIMIT, check=False)
    except FileNotFoundError:
        raise ChannelError(f"the program {name} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ChannelError(f"{name} did not end within {LIMIT:.0f} s") from None
    except OSError as error:
        raise ChannelError(f"{name} cannot be run: {error.strerror}") from None
    if done.returncode:
        said = _short(done.stderr.decode("utf-8", "replace"))
        raise ChannelError(f"{name} ended with status {done.returncode}{f': {said}' if said else ''}")


def _short(value: str) -> str:
    return inert.inert_line(" ".join(value.split()), 200)
