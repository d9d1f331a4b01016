"""A bulletin as text, as Markdown, and as the bodies of webhooks. Pure functions; every text of a run is inert."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from harness.core.text import format_count
from harness.fleet.bulletin import Bulletin, Topic, Why
from harness.reporting.page import inert

#: Maximum groups and findings of a message, and named cases of a group.
MOST_GROUPS = 12
MOST_FINDINGS = 40
MOST_CASES = 3
#: Escapes characters with a meaning in Markdown.
MARKUP = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>()#+-.!|~@"})


def title(bulletin: Bulletin) -> str:
    """Return for example ``2 new groups of failures, 1 finding: gpu7 · H100 · nightly, 2026-03-02``."""
    groups = [topic for topic in bulletin.topics if topic.key]
    parts = []
    for why, noun in (
        (Why.NEW, "new group of failures"),
        (Why.AGAIN, "group of failures is back"),
        (Why.REMINDER, "group still red"),
        (Why.UNSILENCED, "group still red after its silence"),
    ):
        number = sum(group.why is why for group in groups)
        if number:
            parts.append(format_count(number, noun, _plural(why)))
    findings = len(bulletin.topics) - len(groups)
    if findings:
        parts.append(format_count(findings, "finding"))
    if not bulletin.complete:
        parts.append("the run did not end")
    return inert.inert_indented_line(f"{', '.join(parts) or 'nothing new'}: {bulletin.lane}, {bulletin.night}")


def _plural(why: Why) -> str:
    return {
        Why.NEW: "new groups of failures",
        Why.AGAIN: "groups of failures are back",
        Why.REMINDER: "groups still red",
        Why.UNSILENCED: "groups still red after their silence",
    }[why]


def bulletin_lines(bulletin: Bulletin, site: str = "") -> Iterator[str]:
    """Yield the bulletin as lines of text, without the title."""
    state = f"{bulletin.red} red of {format_count(bulletin.cases, 'case')} in run {bulletin.run_id}"
    yield inert.inert_indented_line(f"{state}{'' if bulletin.complete else ', which did not end'}")
    if bulletin.before:
        yield inert.inert_indented_line(f"since {bulletin.before}: {bulletin.changes}")
    else:
        yield "the first run of this machine"
    groups = [topic for topic in bulletin.topics if topic.key]
    findings = [topic for topic in bulletin.topics if not topic.key]
    for topic in groups[:MOST_GROUPS]:
        yield ""
        yield from _group(topic, site)
    if len(groups) > MOST_GROUPS:
        yield f"and {format_count(len(groups) - MOST_GROUPS, 'more group')}"
    yield ""
    for topic in findings[:MOST_FINDINGS]:
        yield inert.inert_indented_line(f"finding: {topic.title}: {topic.message}")
    if len(findings) > MOST_FINDINGS:
        yield f"and {format_count(len(findings) - MOST_FINDINGS, 'more finding')}"
    if bulletin.fixed:
        yield f"fixed: {format_count(len(bulletin.fixed), 'case')}"
    if bulletin.known:
        yield f"red as before, not listed: {format_count(bulletin.known, 'group')}"
    if bulletin.silenced:
        yield f"silenced: {format_count(bulletin.silenced, 'group')}"
    if bulletin.page:
        yield inert.inert_indented_line(f"report: {bulletin.page}")


def _group(topic: Topic, site: str) -> Iterator[str]:
    since = f" since {topic.since}" if topic.since else ""
    owner = f" ({topic.owner})" if topic.owner else ""
    yield inert.inert_indented_line(f"{topic.why}{since}: {topic.title}{owner}")
    yield f"  {format_count(len(topic.cases), 'case')}, {' and '.join(topic.outcomes) or 'red'}:"
    yield from (inert.inert_indented_line(f"    {case}") for case in topic.cases[:MOST_CASES])
    if len(topic.cases) > MOST_CASES:
        yield f"    and {len(topic.cases) - MOST_CASES} more"
    yield inert.inert_indented_line(f"  {topic.message}")
    if topic.reproduce:
        yield inert.inert_indented_line(f"  {topic.reproduce}")
    if site:
        from harness.fleet.pages import page_file_name

        yield inert.inert_indented_line(f"  {site.rstrip('/')}/{page_file_name('groups', topic.key)}")


def text(bulletin: Bulletin, site: str = "") -> str:
    """Return the bulletin as plain text, the title first."""
    return "\n".join([title(bulletin), "", *bulletin_lines(bulletin, site)]).rstrip() + "\n"


def bulletin_markdown(bulletin: Bulletin, site: str = "") -> str:
    """Return the bulletin as Markdown, without the title: a block of code, in which texts of a run have no effect."""
    body = "\n".join(bulletin_lines(bulletin, site)).rstrip()
    fence = "`" * max(3, 1 + max((len(run) for run in _runs_of_backticks(body)), default=0))
    return f"{fence}text\n{body}\n{fence}\n"


def _runs_of_backticks(body: str) -> list[str]:
    return re.findall("`+", body)


def slack(bulletin: Bulletin, site: str = "") -> dict[str, Any]:
    """Return the body of an incoming webhook of Slack."""
    return {"text": f"*{_slack(title(bulletin))}*\n```\n{_slack(_body(bulletin, site))}\n```"}


def _slack(value: str) -> str:
    """Escape the three characters of Slack's control sequences, so that no text of a run is a mention or a link."""
    escaped = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("```", "'''")


def mattermost(bulletin: Bulletin, site: str = "") -> dict[str, Any]:
    """Return the body of an incoming webhook of Mattermost."""
    return {"text": f"**{title(bulletin).translate(MARKUP)}**\n{bulletin_markdown(bulletin, site)}"}


def teams(bulletin: Bulletin, site: str = "") -> dict[str, Any]:
    """Return the body of a workflow of Teams: a message with an adaptive card."""
    card = {
        "type": "AdaptiveCard",
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": title(bulletin).translate(MARKUP), "weight": "Bolder", "wrap": True},
            {
                "type": "RichTextBlock",
                "inlines": [{"type": "TextRun", "text": _body(bulletin, site), "fontType": "Monospace"}],
            },
        ],
    }
    return {
        "type": "message",
        "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}],
    }


def bulletin_json(bulletin: Bulletin, site: str = "") -> dict[str, Any]:
    """Return the bulletin as JSON values, for programs."""
    return {
        "title": title(bulletin),
        "text": _body(bulletin, site),
        "run": bulletin.run_id,
        "lane": bulletin.lane,
        "night": bulletin.night.isoformat(),
        "profile": bulletin.profile,
        "red": bulletin.red,
        "cases": bulletin.cases,
        "complete": bulletin.complete,
        "before": bulletin.before,
        "changes": bulletin.changes,
        "fixed": list(bulletin.fixed),
        "known": bulletin.known,
        "silenced": bulletin.silenced,
        "topics": [
            {
                "why": topic.why.value,
                "group": topic.key,
                "title": topic.title,
                "cases": list(topic.cases),
                "outcomes": list(topic.outcomes),
                "message": topic.message,
                "reproduce": topic.reproduce,
                "since": topic.since.isoformat() if topic.since else None,
                "owner": topic.owner,
            }
            for topic in bulletin.topics
        ],
    }


BODIES = {"slack": slack, "mattermost": mattermost, "teams": teams, "json": bulletin_json}


def _body(bulletin: Bulletin, site: str) -> str:
    return "\n".join(bulletin_lines(bulletin, site)).rstrip()
