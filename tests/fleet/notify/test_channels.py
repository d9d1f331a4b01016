"""Channels, with servers and programs on this machine that use the real protocols."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.fleet import notify as texts
from harness.fleet.notify import Bulletin, ChannelError, Program, Topic, Webhook, Why, send

SECRET = "T0000/B0000/very-secret"
CASE = "suites/a/test_a.py::one"
FOUND = Bulletin(
    run="run-7",
    lane="gpu7 · H100 · nightly",
    night=date(2026, 3, 2),
    profile="nightly",
    red=2,
    cases=6000,
    complete=True,
    before="run-6",
    changes="driver was '570.1' and is '580.1'",
    page="results/run-7/report.html",
    topics=(
        Topic(
            Why.NEW,
            "abcd",
            "AssertionError: wrong <!channel> @here",
            (CASE,),
            "wrong ``` sum",
            f"pytest {CASE}",
            outcomes=("failed",),
        ),
        Topic(Why.NEW, "", "batch_leak", (), "executor gw0-e1 leaks"),
    ),
    fixed=("suites/a/test_a.py::two",),
    known=1,
)


class _Hook(BaseHTTPRequestHandler):
    """A server of webhooks."""

    status = 200
    received: list[tuple[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, json.loads(body)))
        self.send_response(self.status)
        if self.status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(b"invalid_payload" if self.status >= 400 else b"ok")

    def log_message(self, *_: object) -> None:
        """Suppress the log."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Hook]]:
    handler = type("Hook", (_Hook,), {"received": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_address[1]}/{SECRET}")
        yield handler
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ["slack", "teams", "mattermost", "json"])
def test_a_webhook_gets_the_message(hook: type[_Hook], kind: Any) -> None:
    send(Webhook(kind=kind, url_env="HOOK"), FOUND)
    ((path, body),) = hook.received
    assert path == f"/{SECRET}"
    assert CASE in json.dumps(body)


def test_slack_sees_no_mention_and_no_end_of_the_block() -> None:
    text = texts.slack(FOUND)["text"]
    assert "&lt;!channel&gt;" in text
    assert "<" not in text
    assert text.count("```") == 2


def test_a_block_of_markdown_is_longer_than_what_it_holds() -> None:
    text = texts.markdown(FOUND)
    assert text.startswith("````text\n")
    assert text.endswith("\n````\n")


def test_json_has_every_value() -> None:
    value = texts.bulletin_json(FOUND)
    assert [topic["group"] for topic in value["topics"]] == ["abcd", ""]
    assert (value["red"], value["before"], value["fixed"]) == (2, "run-6", ["suites/a/test_a.py::two"])
    assert json.loads(json.dumps(value)) == value


def test_text_is_what_a_person_reads() -> None:
    assert texts.text(FOUND, "https://example.org/nights/").splitlines() == [
        "1 new group of failures, 1 finding: gpu7 · H100 · nightly, 2026-03-02",
        "",
        "2 red of 6000 cases in run run-7",
        "since run-6: driver was '570.1' and is '580.1'",
        "",
        "new: AssertionError: wrong <!channel> @here",
        "  1 case, failed:",
        f"    {CASE}",
        "  wrong ``` sum",
        f"  pytest {CASE}",
        "  https://example.org/nights/groups/88d4266fd4e6338d.html",
        "",
        "finding: batch_leak: executor gw0-e1 leaks",
        "fixed: 1 case",
        "red as before, not listed: 1 group",
        "report: results/run-7/report.html",
    ]


@pytest.mark.parametrize(
    ("status", "said"), [(400, "HTTP 400, invalid_payload"), (302, "HTTP 302, ok"), (503, "HTTP 503, invalid_payload")]
)
def test_a_refusal_is_one_line_without_the_secret(hook: type[_Hook], status: int, said: str) -> None:
    hook.status = status
    with pytest.raises(ChannelError) as caught:
        send(Webhook(kind="slack", url_env="HOOK"), FOUND)
    assert str(caught.value) == f"127.0.0.1 refused the message: {said}"
    assert len(hook.received) == 1  # a redirection is not followed


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"http://127.0.0.1:9/{SECRET}", "127.0.0.1 cannot be reached: .*refused"),
        (f"file:///etc/{SECRET}", "HOOK is no address: expected https"),
        (SECRET, "HOOK is no address"),
        (f"http://[::1/{SECRET}", "HOOK is no address"),
        ("", "the environment variable HOOK is not set"),
    ],
)
def test_an_address_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch, url: str, said: str) -> None:
    monkeypatch.setenv("HOOK", url)
    with pytest.raises(ChannelError, match=said) as caught:
        send(Webhook(kind="json", url_env="HOOK"), FOUND)
    assert SECRET not in str(caught.value)


def program(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> Path:
    """Create a program of this name that stores its arguments and its input. Return the file with them."""
    seen = folder / f"{name}.txt"
    script = folder / name
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{seen}\ncat >>{seen}\necho "no   way" >&2\nexit {status}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return seen


def test_a_program_gets_the_title_and_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = program(tmp_path, "apprise", monkeypatch)
    send(Program(kind="program", run=("apprise", "--title={title}", "{title}s")), FOUND)
    title = texts.title(FOUND)
    assert seen.read_text() == f"--title={title}\n{title}s\n{texts.text(FOUND)}"


def test_a_program_gets_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = program(tmp_path, "gh", monkeypatch)
    send(Program(kind="program", run=("gh", "issue", "create"), markdown=True), FOUND)
    words, _, body = seen.read_text().partition("````text")
    assert words.splitlines() == ["issue", "create"]
    assert CASE in body


def test_a_program_needs_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APPRISE_URLS", raising=False)
    with pytest.raises(ChannelError, match="the environment variable APPRISE_URLS is not set"):
        send(Program(kind="program", run=("apprise",), env=("APPRISE_URLS",)), FOUND)


def test_a_program_that_fails_or_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "gh", monkeypatch, status=3)
    channel = Program(kind="program", run=("gh", "issue", "create"))
    with pytest.raises(ChannelError, match="gh ended with status 3: no way"):
        send(channel, FOUND)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(ChannelError, match="the program gh is not installed"):
        send(channel, FOUND)
