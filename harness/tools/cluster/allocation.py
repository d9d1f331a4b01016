"""Check whether Slurm can grant a new allocation: the request against the nodes of the partition.

Slurm also refuses such a request, but names neither the nodes nor their resources. If these functions do not understand
a request, they have no objection, and Slurm decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.core.text import format_count, list_first

_GRES = re.compile(r"(?:gres/)?([a-z_][a-z0-9_]*)(?::([A-Za-z_][A-Za-z0-9_.-]*))?(?:[:=](\d+))?")
_FEATURES = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*(?:&[A-Za-z_][A-Za-z0-9_.-]*)*")


@dataclass(frozen=True, slots=True)
class Resource:
    """A generic resource. `type`: empty for any."""

    name: str
    type: str = ""
    count: int = 1

    def __str__(self) -> str:
        return ":".join(filter(None, [self.name, self.type, str(self.count)]))

    def is_met_by(self, others: Iterable[Resource]) -> bool:
        """Return whether a node with these resources has this one."""
        same = [other for other in others if other.name == self.name and self.type in ("", other.type)]
        return sum(resource.count for resource in same) >= self.count


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """Slurm's facts about a node."""

    name: str
    partitions: tuple[str, ...] = ()
    gres: tuple[Resource, ...] = ()
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> SlurmNode:
        """Return a node from the fields of ``scontrol show node``."""
        return cls(
            fields.get("NodeName", ""),
            _words(fields.get("Partitions", "")),
            parse_resources(fields.get("Gres", "")) or (),
            _words(fields.get("AvailableFeatures", "")),
        )

    @property
    def has(self) -> str:
        """The node's resources and features as text."""
        return ", ".join([*map(str, self.gres), *self.features]) or "nothing"


@dataclass(frozen=True, slots=True)
class Request:
    """The per-node request of salloc options. None where it is not understood."""

    nodes: int
    partitions: tuple[str, ...] = ()
    gres: tuple[Resource, ...] | None = ()
    features: tuple[str, ...] | None = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: int, options: Sequence[str]) -> Request:
        given = _given(options)
        features = given.get("--constraint", "")
        return cls(
            nodes,
            _words(given.get("--partition", "")),
            parse_resources(given.get("--gres", "")),
            tuple(features.split("&")) if _FEATURES.fullmatch(features) else None if features else (),
            given,
        )


def parse_resources(text: str) -> tuple[Resource, ...] | None:
    """Return the resources in a Slurm text such as ``gpu:h200:8(S:0-1),shard:4``. None if it is not understood."""
    resources = []
    for word in _words(re.sub(r"\([^)]*\)", "", text)) if text != "none" else ():
        match = _GRES.fullmatch(word)
        if match is None:
            return None
        resources.append(Resource(match[1], match[2] or "", 1 if match[3] is None else int(match[3])))
    return tuple(resources)


def request_objection(request: Request, nodes: Sequence[SlurmNode], default: str = "") -> str:
    """Return why no nodes can satisfy a request; empty if there is no known reason.

    `default`: the default partition.
    """
    partitions = request.partitions or ((default,) if default else ())
    here = [node for node in nodes if not partitions or {*node.partitions} & {*partitions}]
    where = f"partition {', '.join(map(repr, partitions))}" if partitions else "the cluster"
    if not here:
        existing = sorted({name for node in nodes for name in node.partitions})
        return f"no node is in {where}; there {'is' if len(existing) == 1 else 'are'} {list_first(existing) or 'none'}"
    gres, features = request.gres, request.features
    for option, able in (
        ("--gres", [node for node in here if gres is None or all(resource.is_met_by(node.gres) for resource in gres)]),
        ("--constraint", [node for node in here if features is None or {*features} <= {*node.features}]),
    ):
        understood = (gres if option == "--gres" else features) is not None
        if len(able) < request.nodes and understood and option in request.options:
            asked = f"{option}={request.options[option]}"
            have = f"only {list_first([node.name for node in able])} of {where}" if able else f"no node of {where}"
            there = "; ".join(_there(here))
            wanted = format_count(request.nodes, "node")
            return (
                f"{asked}: {have} can meet that, and {wanted} {'is' if request.nodes == 1 else 'are'} wanted: {there}"
            )
    return ""


def _there(nodes: Iterable[SlurmNode]) -> Iterator[str]:
    """Yield the available resources, and their nodes."""
    names: dict[str, list[str]] = {}
    for node in nodes:
        names.setdefault(node.has, []).append(node.name)
    yield from (f"{list_first(node_names, 8)} ({has})" for has, node_names in names.items())


def _given(options: Sequence[str]) -> dict[str, str]:
    """Return long options with their values, and the relevant short options."""
    values: dict[str, str] = {}
    for word in options:
        name, _, value = word.partition("=")
        if name[:2] in ("-p", "-C") and not word.startswith("--"):
            name, value = {"-p": "--partition", "-C": "--constraint"}[word[:2]], word[2:].lstrip("= ")
        values[name] = value
    return values


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip() not in ("", "(null)", "N/A"))
