"""Channels, with servers and programs on this machine that use the real protocols."""

from __future__ import annotations

import contextlib
import json
import shutil
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import date
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.fleet import bulletin_text as texts
from harness.fleet.bulletin import Bulletin, Topic, Why
from harness.fleet.channels import ChannelError, send
from harness.fleet.notify_rules import Email, GitHub, Webhook

SECRET = "T0000/B0000/very-secret"
CASE = "suites/a/test_a.py::one"
FOUND = Bulletin(
    run_id="run-7",
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
    text = texts.bulletin_markdown(FOUND)
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


class _Post(socketserver.StreamRequestHandler):
    """A server of SMTP (RFC 5321). It accepts messages; with AUTH PLAIN, only those of one user."""

    letters: list[bytes]
    logins: list[bytes]
    #: The certificate for STARTTLS (RFC 3207); "refused": the server offers it but declines.
    certificate: str = ""

    def _encrypt(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        with contextlib.suppress(OSError):  # the client may not trust the certificate
            self.request = context.wrap_socket(self.request, server_side=True)
        self.rfile, self.wfile = self.request.makefile("rb"), self.request.makefile("wb", 0)

    def finish(self) -> None:
        super().finish()
        self.request.close()

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def handle(self) -> None:
        self._say("220 fake")
        while line := self.rfile.readline():
            word = line.split(b" ")[0].strip().upper()
            if word == b"EHLO":
                plain = self.certificate and not isinstance(self.request, ssl.SSLSocket)
                self._say(f"250-fake\r\n250 {'STARTTLS' if plain else 'AUTH PLAIN'}")
            elif word == b"STARTTLS" and self.certificate == "refused":
                self._say("454 TLS is not available")
            elif word == b"STARTTLS":
                self._say("220 go on")
                self._encrypt()
            elif word == b"AUTH":
                self.logins.append(line)
                self._say("235 ok" if b"AHVzZXIAcmlnaHQ=" in line else "535 no")  # user, right
            elif word == b"DATA":
                self._say("354 go on")
                parts = []
                while (part := self.rfile.readline()) != b".\r\n":
                    parts.append(part)
                self.letters.append(b"".join(parts))
                self._say("250 taken")
            elif word == b"QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")


@pytest.fixture
def post() -> Iterator[tuple[type[_Post], str]]:
    handler = type("Post", (_Post,), {"letters": [], "logins": []})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield handler, f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def email(**changes: Any) -> Email:
    return Email(kind="email", sender="gpu@example.org", to=("ops@example.org", "b@example.org"), **changes)


def test_a_letter_is_sent(post: tuple[type[_Post], str]) -> None:
    server, address = post
    send(email(smtp=address, starttls=False), FOUND)
    (letter,) = server.letters
    read = message_from_bytes(letter, policy=policy.default)
    assert read["Subject"] == texts.title(FOUND)
    assert read["To"] == "ops@example.org, b@example.org"
    assert read.get_content().replace("\r\n", "\n") == texts.text(FOUND)


@pytest.mark.parametrize(("password", "taken"), [("right", 1), ("wrong", 0)])
def test_a_server_that_asks_for_a_login(
    post: tuple[type[_Post], str], monkeypatch: pytest.MonkeyPatch, password: str, taken: int
) -> None:
    server, address = post
    monkeypatch.setenv("MAIL_USER", "user")
    monkeypatch.setenv("MAIL_PASSWORD", password)
    channel = email(smtp=address, starttls=False, user_env="MAIL_USER", password_env="MAIL_PASSWORD")
    if taken:
        send(channel, FOUND)
    else:
        with pytest.raises(ChannelError, match=r"127\.0\.0\.1 refused MAIL_USER and MAIL_PASSWORD: 535"):
            send(channel, FOUND)
    assert len(server.letters) == taken


def test_a_server_without_encryption_gets_no_letter(post: tuple[type[_Post], str]) -> None:
    server, address = post
    with pytest.raises(ChannelError, match="STARTTLS"):
        send(email(smtp=address), FOUND)
    assert server.letters == []


def certificate(folder: Path) -> str:
    """Create a self-signed certificate for 127.0.0.1 with its key."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=fake"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run([*command.split(), *files], cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "certificate.pem").read_text())
    return str(both)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl is installed")
@pytest.mark.parametrize("trusted", [True, False])
def test_starttls_comes_before_login_and_letter(
    post: tuple[type[_Post], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    server, address = post
    server.certificate = certificate(tmp_path)
    monkeypatch.setenv("MAIL_USER", "user")
    monkeypatch.setenv("MAIL_PASSWORD", "right")
    channel = email(smtp=address, user_env="MAIL_USER", password_env="MAIL_PASSWORD")
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        send(channel, FOUND)
    else:
        with pytest.raises(ChannelError, match=r"127\.0\.0\.1 cannot be reached: .*certificate"):
            send(channel, FOUND)
    assert (len(server.logins), len(server.letters)) == ((1, 1) if trusted else (0, 0))


def test_a_server_that_refuses_starttls_gets_no_letter(post: tuple[type[_Post], str]) -> None:
    server, address = post
    server.certificate = "refused"
    with pytest.raises(ChannelError, match=r"127\.0\.0\.1 refused the message: 454 TLS is not available"):
        send(email(smtp=address), FOUND)
    assert server.letters == []


@pytest.mark.parametrize("address", ["127.0.0.1:9", "127.0.0.1:no"])
def test_a_server_that_is_not_there(address: str) -> None:
    with pytest.raises(ChannelError, match=r"127\.0\.0\.1 cannot be reached: "):
        send(email(smtp=address), FOUND)


def program(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> Path:
    """Create a program of this name that stores its arguments and its input. Return the file with them."""
    seen = folder / f"{name}.txt"
    script = folder / name
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{seen}\ncat >>{seen}\necho "no   way" >&2\nexit {status}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return seen


def test_sendmail_gets_the_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = program(tmp_path, "sendmail", monkeypatch)
    send(email(), FOUND)
    assert seen.read_text().startswith("-i\n-t\nSubject: ")


def test_github_gets_an_issue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = program(tmp_path, "gh", monkeypatch)
    send(GitHub(kind="github", repository="example/gpu", labels=("red",)), FOUND)
    words, _, body = seen.read_text().partition("````text")
    assert words.splitlines() == [
        "issue", "create", "--title", texts.title(FOUND), "--label", "red", "--repo", "example/gpu",
        "--body-file", "-",
    ]  # fmt: skip
    assert CASE in body


def test_github_gets_a_comment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = program(tmp_path, "gh", monkeypatch)
    send(GitHub(kind="github", repository="example/gpu", comment_on=12), FOUND)
    assert seen.read_text().startswith("issue\ncomment\n12\n--repo\nexample/gpu\n--body-file\n-\n**1 new group")


def test_a_program_that_fails_or_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "gh", monkeypatch, status=3)
    channel = GitHub(kind="github", repository="example/gpu")
    with pytest.raises(ChannelError, match="gh ended with status 3: no way"):
        send(channel, FOUND)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(ChannelError, match="the program gh is not installed"):
        send(channel, FOUND)
