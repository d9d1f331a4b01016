"""Sends the verdict to NVSentinel, as a preflight check does: health events by gRPC to the node's platform connector.

NVSentinel's webhook gives its init containers the connector's socket, the name of the node and a strategy by
environment (https://docs.nvidia.com/nvsentinel/configuration/preflight). The names and numbers of the fields are those
of its ``data-models/protobufs/health_event.proto``; only those that are sent are declared here.

NVSentinel sets a node condition for each check with a fatal event, and clears it with a healthy event of the same check
and entity. The checks therefore have the mode in their name: what a test has found, a later reading does not clear.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError
from harness.core.text import inert_line, single_line
from harness.ready.judge_node import pci_slot
from harness.ready.model import NodeReport, Problem, Step, Verdict, worst

AGENT = "harness-ready"
#: The variables that NVSentinel sets in an init container.
SOCKET, NODE, STRATEGY = "PLATFORM_CONNECTOR_SOCKET", "NODE_NAME", "PROCESSING_STRATEGY"
TOKEN = "PLATFORM_CONNECTOR_TOKEN_PATH"
#: What NVSentinel does with an event: act on it, or only keep it. With the second, no check stops a pod.
ACT, STORE = "EXECUTE_REMEDIATION", "STORE_ONLY"
_METHOD = "/datamodels.PlatformConnector/HealthEventOccurredV1"
#: Seconds for all tries, and the tries while the connector does not listen: it restarts within seconds.
LIMIT = 30.0
_RETRIES = {
    "maxAttempts": 4,
    "initialBackoff": "0.5s",
    "maxBackoff": "4s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_MOST_TOKEN = 64 << 10
#: Characters of a message: NVSentinel joins those of all GPUs to one node condition, of 1,024 characters.
_MESSAGE = 300
_ACTIONS = {
    Step.NOTHING: "NONE",
    Step.END_PROCESSES: "CONTACT_SUPPORT",
    Step.FIX_CONFIGURATION: "CONTACT_SUPPORT",
    Step.RESET_GPU: "COMPONENT_RESET",
    Step.REBOOT: "RESTART_BM",
    Step.VENDOR_TICKET: "CONTACT_SUPPORT",
    Step.LOOK: "CONTACT_SUPPORT",
}
#: Fields by message: number and type; a list is a repeated field.
_NUMBERS: dict[str, dict[str, tuple[int, Any]]] = {
    "Entity": {"entityType": (1, "string"), "entityValue": (2, "string")},
    "HealthEvent": {
        "version": (1, "uint32"),
        "agent": (2, "string"),
        "componentClass": (3, "string"),
        "checkName": (4, "string"),
        "isFatal": (5, "bool"),
        "isHealthy": (6, "bool"),
        "message": (7, "string"),
        "recommendedAction": (8, ".datamodels.RecommendedAction"),
        "errorCode": (9, ["string"]),
        "entitiesImpacted": (10, [".datamodels.Entity"]),
        "generatedTimestamp": (12, ".google.protobuf.Timestamp"),
        "nodeName": (13, "string"),
        "processingStrategy": (16, ".datamodels.ProcessingStrategy"),
    },
    "HealthEvents": {"version": (1, "uint32"), "events": (2, [".datamodels.HealthEvent"])},
}
_ENUMS = {
    "RecommendedAction": {"NONE": 0, "COMPONENT_RESET": 2, "CONTACT_SUPPORT": 5, "RESTART_BM": 24},
    "ProcessingStrategy": {"UNSPECIFIED": 0, ACT: 1, STORE: 2},
}


class HealthEventError(HarnessError):
    """The connector cannot be asked, or did not take the events."""


@dataclass(frozen=True, slots=True)
class Connector:
    """The platform connector of this node. `token`: the file with the token of the pod's account; None for none."""

    address: str
    node: str
    strategy: str = ACT
    token: Path | None = None

    @classmethod
    def find(cls, address: str, environ: Mapping[str, str], host: str) -> Connector:
        """Return the connector at `address`, ``unix:///path``; ``auto`` for that of the environment.

        `host`: the name of the node if the environment has none. Raise HealthEventError.
        """
        if any(importlib.util.find_spec(name) is None for name in ("grpc", "google.protobuf")):
            raise HealthEventError("--health-event needs grpcio: pip install 'gpu-conformance-harness[nvsentinel]'")
        if address == "auto" and not environ.get(SOCKET):
            raise HealthEventError(f"--health-event=auto: ${SOCKET} is not set: name the socket, unix:///path")
        where = environ[SOCKET] if address == "auto" else address
        # An address on a network would get the token of the pod, unencrypted.
        path = where.removeprefix("unix://")
        if not path.startswith("/") or not path.isprintable() or not 1 < len(path.encode()) <= 107:
            raise HealthEventError(f"--health-event={where!r}: expected auto or unix:///path, of at most 107 bytes")
        strategy = environ.get(STRATEGY) or ACT
        if strategy not in (ACT, STORE):
            raise HealthEventError(f"${STRATEGY}={strategy!r}: expected {ACT} or {STORE}")
        token = environ.get(TOKEN)
        return cls(f"unix://{path}", environ.get(NODE) or host, strategy, Path(token) if token else None)

    def send(self, events: Mapping[str, Any], limit: float = LIMIT) -> None:
        """Send a batch of events, and wait for its receipt, at most `limit` seconds. Raise HealthEventError."""
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would write to standard error
        import grpc
        from google.protobuf import json_format

        data = json_format.ParseDict(events, message_type("HealthEvents")()).SerializeToString()
        config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": _RETRIES}]})
        with grpc.insecure_channel(self.address, options=[("grpc.service_config", config)]) as channel:
            call = channel.unary_unary(_METHOD, request_serializer=bytes, response_deserializer=bytes)
            try:
                call(data, timeout=limit, metadata=self._credentials())
            except grpc.RpcError as error:
                why = f"{error.code().name}: {single_line(str(error.details()), 500)}"
                raise HealthEventError(f"NVSentinel has not got the verdict: {self.address} answers {why}") from None

    def _credentials(self) -> list[tuple[str, str]]:
        """Return the header with the token. A token that should be there and is not is an error, not an absence."""
        if self.token is None:
            return []
        try:
            with self.token.open(encoding="ascii") as file:
                token = file.read(_MOST_TOKEN).strip()
        except (OSError, ValueError) as error:
            raise HealthEventError(f"NVSentinel has not got the verdict: cannot read ${TOKEN}: {error}") from None
        if not token or not token.isprintable():
            raise HealthEventError(f"NVSentinel has not got the verdict: ${TOKEN} {str(self.token)!r} has no token")
        return [("authorization", f"Bearer {token}")]


def message_type(name: str) -> Any:
    """Return the class of a message of NVSentinel's interface."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="health_event.proto", package="datamodels", syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    for enum, values in _ENUMS.items():
        made = file.enum_type.add(name=enum)
        for value, number in values.items():
            made.value.add(name=value, number=number)
    for message, fields in _NUMBERS.items():
        added = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            one = kind[0] if isinstance(kind, list) else kind
            label = kinds.LABEL_REPEATED if isinstance(kind, list) else kinds.LABEL_OPTIONAL
            new = added.field.add(name=field, number=number, label=label)
            if not one.startswith("."):
                new.type = kinds.Type.Value(f"TYPE_{one.upper()}")
                continue
            new.type = kinds.TYPE_ENUM if one.rpartition(".")[2] in _ENUMS else kinds.TYPE_MESSAGE
            new.type_name = one
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"datamodels.{name}"))


def health_events(report: NodeReport, connector: Connector, *, strict: bool = False) -> dict[str, Any]:
    """Return the batch of events for a report: one of the node, and one per GPU. Pure.

    A GPU that is not ready is fatal; one that may get work is healthy; an unknown one is neither, so that it starts no
    repair and clears nothing. `strict`: a degraded one is fatal.
    """
    card_of = {gpu.uuid: gpu.mig_parent or gpu.uuid for gpu in report.gpus}
    card_of |= {card: card for card in card_of.values()}
    addresses = {card_of[gpu.uuid]: gpu.pci for gpu in report.gpus}
    events = []
    for uuid, address in ((None, ""), *addresses.items()):
        problems = [each for each in report.problems if card_of.get(each.gpu or "") == uuid]
        verdict = worst(each.verdict for each in problems)
        entities = {"PCI": pci_slot(address) if address else "", "GPU_UUID": uuid or ""}
        healthy = verdict.allows_work(strict=strict)
        fatal = not healthy and verdict is not Verdict.UNKNOWN
        of = "Node" if uuid is None else "Gpu"
        events.append(
            {
                "version": 1,
                "agent": AGENT,
                "componentClass": "Node" if uuid is None else "GPU",
                "checkName": f"HarnessReady{report.mode.title()}{of}",
                "isFatal": fatal,
                "isHealthy": healthy,
                "message": _message(verdict, problems),
                "recommendedAction": _action(problems, entities) if fatal else "NONE",
                "errorCode": list(dict.fromkeys(each.code or each.kind for each in problems if fatal)),
                "entitiesImpacted": [
                    {"entityType": kind, "entityValue": value} for kind, value in entities.items() if value
                ],
                "generatedTimestamp": datetime.fromtimestamp(report.time + report.seconds, UTC).isoformat(),
                "nodeName": connector.node,
                "processingStrategy": connector.strategy,
            }
        )
    return {"version": 1, "events": events}


def _message(verdict: Verdict, problems: list[Problem]) -> str:
    """Return the verdict with the problems. NVSentinel separates the messages of a condition by semicolons."""
    found = ", ".join(f"{each.check}: {each.found}" for each in problems)
    step = f", next: {problems[0].step.text}" if problems else ""
    text = inert_line(f"{verdict.text}{f': {found}' if found else ''}").replace(";", ",")
    room = _MESSAGE - len(step)
    return (text if len(text) <= room else f"{text[: room - 3]}...") + step


def _action(problems: list[Problem], entities: Mapping[str, str]) -> str:
    """Return what NVSentinel is to do. It resets one GPU, which it must be able to name; else the node restarts."""
    action = _ACTIONS[problems[0].step] if problems else "CONTACT_SUPPORT"
    return "RESTART_BM" if action == "COMPONENT_RESET" and not all(entities.values()) else action
