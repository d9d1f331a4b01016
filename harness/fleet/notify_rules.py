"""The rules of `harness notify`: channels, owners of cases, routes, and silences. A YAML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from harness.core.models import StrictModel
from harness.gating import configfile
from harness.gating.configfile import ConfigError, Loaded
from harness.gating.patterns import matches_pattern

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


class Email(StrictModel):
    """A message through an SMTP server, or, if no server is named, through the program ``sendmail``."""

    kind: Literal["email"]
    sender: Text
    to: Annotated[tuple[Text, ...], Field(min_length=1)]
    smtp: Text | None = None
    starttls: bool = True
    user_env: Variable | None = None
    password_env: Variable | None = None


class GitHub(StrictModel):
    """An issue per message, or a comment on the issue `comment_on`, through the program ``gh``."""

    kind: Literal["github"]
    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+/[A-Za-z0-9._-]+$")]
    comment_on: Annotated[int, Field(ge=1)] | None = None
    labels: tuple[Text, ...] = ()


class Stdout(StrictModel):
    """Standard output."""

    kind: Literal["stdout"]


Channel = Annotated[Webhook | Email | GitHub | Stdout, Field(discriminator="kind")]


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
        """Return the channels for any of these cases, each once, in the order of the routes."""
        names = (
            name
            for route in self.routes
            if route.profile in (None, profile) and any(matches_pattern(route.cases, case) for case in cases)
            for name in route.to
        )
        return tuple(dict.fromkeys(names))


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
    for name, channel in rules.channels.items():
        if isinstance(channel, Email) and channel.smtp is None and (channel.user_env or channel.password_env):
            problems.append(loaded.problem("user_env and password_env need smtp", "channels", name))
        if isinstance(channel, Email) and (channel.user_env is None) != (channel.password_env is None):
            problems.append(loaded.problem("user_env and password_env must be given together", "channels", name))
    if problems:
        raise ConfigError("\n".join(problems))
    return loaded


def variables_of(channel: Channel) -> tuple[str, ...]:
    """Return the environment variables that a channel needs."""
    if isinstance(channel, Webhook):
        return (channel.url_env,)
    if isinstance(channel, Email):
        return tuple(name for name in (channel.user_env, channel.password_env) if name)
    return ()


def missing_variables(channel: Channel, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the variables that a channel needs but that are unset or empty."""
    variables = os.environ if environ is None else environ
    return tuple(name for name in variables_of(channel) if not variables.get(name))
