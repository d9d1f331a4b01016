"""Send a bulletin. A channel that cannot be reached raises ChannelError, whose text contains no secret."""

from __future__ import annotations

import json
import os
import smtplib
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from email.message import EmailMessage
from urllib.parse import urlsplit

from harness.core.errors import HarnessError
from harness.fleet import bulletin_text as texts
from harness.fleet.bulletin import Bulletin
from harness.fleet.notify_rules import Channel, Email, GitHub, Webhook, missing_variables

#: Seconds that a server or a program has to answer.
LIMIT = 30.0


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
        _post(os.environ[channel.url_env], channel.url_env, texts.BODIES[channel.kind](bulletin, site))
    elif isinstance(channel, Email):
        _mail(channel, _letter(channel, bulletin, site))
    elif isinstance(channel, GitHub):
        _github(channel, bulletin, site)
    else:
        sys.stdout.write(texts.text(bulletin, site))
        sys.stdout.flush()


def _post(url: str, name: str, body: object) -> None:
    """Post JSON. Error messages name the variable and the host, but not the address, whose path is a secret."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise ChannelError(f"{name} is no address") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ChannelError(f"{name} is no address: expected https://…")
    data = json.dumps(body).encode()
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


def _letter(channel: Email, bulletin: Bulletin, site: str) -> EmailMessage:
    letter = EmailMessage()
    letter["Subject"] = texts.title(bulletin)[:200]
    letter["From"] = channel.sender
    letter["To"] = ", ".join(channel.to)
    letter.set_content(texts.text(bulletin, site))
    return letter


def _mail(channel: Email, letter: EmailMessage) -> None:
    if channel.smtp is None:
        _run(["sendmail", "-i", "-t"], letter.as_bytes())
        return
    host, _, port = channel.smtp.partition(":")
    try:
        with smtplib.SMTP(host, int(port or 587), timeout=LIMIT) as server:
            if channel.starttls:
                server.starttls(context=ssl.create_default_context())
            if channel.user_env and channel.password_env:
                server.login(os.environ[channel.user_env], os.environ[channel.password_env])
            server.send_message(letter)
    except smtplib.SMTPAuthenticationError as error:
        raise ChannelError(f"{host} refused {channel.user_env} and {channel.password_env}: {error.smtp_code}") from None
    except smtplib.SMTPResponseException as error:
        said = _short(_text(error.smtp_error))
        raise ChannelError(f"{host} refused the message: {error.smtp_code} {said}") from None
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise ChannelError(f"{host} cannot be reached: {_short(str(error)) or type(error).__name__}") from None


def _github(channel: GitHub, bulletin: Bulletin, site: str) -> None:
    body = texts.bulletin_markdown(bulletin, site)
    repository = ["--repo", channel.repository, "--body-file", "-"]
    if channel.comment_on is not None:
        title = texts.title(bulletin).translate(texts.MARKUP)
        _run(["gh", "issue", "comment", str(channel.comment_on), *repository], f"**{title}**\n{body}".encode())
        return
    labels = [word for label in channel.labels for word in ("--label", label)]
    _run(["gh", "issue", "create", "--title", texts.title(bulletin)[:200], *labels, *repository], body.encode())


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


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _short(value: str) -> str:
    from harness.reporting.page import inert

    return inert.inert_line(" ".join(value.split()), 200)
