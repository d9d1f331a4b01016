"""The verdict for NVSentinel: which events, on the wire, and a platform connector that is absent, refuses or hangs."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, timestamp_pb2

from harness.ready import health_event
from harness.ready.health_event import Connector, HealthEventError, health_events
from harness.ready.model import GpuReport, NodeReport, Problem, Step, Verdict, worst
from harness.ready.rules import RULES
from tests.ready.problems import make_problem

A, B, CARD = "GPU-a", "GPU-b", "GPU-card"
NODE = Connector("unix:///none.sock", "node-1")


def gpu(uuid: str, *problems: Problem, **fields: Any) -> GpuReport:
    verdict = worst(each.verdict for each in problems if each.gpu in (uuid, fields.get("mig_parent")))
    return GpuReport(**{"uuid": uuid, "pci": "00000000:3B:00.0", "verdict": verdict, **fields})


def report(*problems: Problem, gpus: tuple[GpuReport, ...] | None = None, mode: str = "active") -> NodeReport:
    verdict = worst(each.verdict for each in problems)
    devices = (gpu(A, *problems), gpu(B, *problems, pci="00000000:5E:00.0")) if gpus is None else gpus
    values: dict[str, Any] = {"gpus": devices, "problems": problems, "mode": mode, "verdict": verdict}
    return NodeReport(host="h", time=1000.0, budget=60, seconds=9.5, **values)


def bad(kind: str = "hang", uuid: str | None = A, **fields: str) -> Problem:
    words = {"check": "copies", "wanted": "bytes arrive", "found": "they do not", **fields}
    return make_problem(kind, gpu=uuid, **words)


def by_entity(made: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the events by UUID; "" for the node."""
    return {
        next((each["entityValue"] for each in event["entitiesImpacted"] if each["entityType"] == "GPU_UUID"), ""): event
        for event in made["events"]
    }


def test_a_ready_node_is_healthy_with_each_of_its_gpus() -> None:
    made = health_events(report(), NODE)

    assert made["version"] == 1
    assert [(event["isHealthy"], event["isFatal"], event["message"]) for event in made["events"]] == [
        (True, False, "ready")
    ] * 3
    assert by_entity(made)[B] == {
        "version": 1,
        "agent": "harness-ready",
        "componentClass": "GPU",
        "checkName": "HarnessReadyActiveGpu",
        "isFatal": False,
        "isHealthy": True,
        "message": "ready",
        "recommendedAction": "NONE",
        "errorCode": [],
        "entitiesImpacted": [
            {"entityType": "PCI", "entityValue": "0000:5e:00"},
            {"entityType": "GPU_UUID", "entityValue": B},
        ],
        "generatedTimestamp": "1970-01-01T00:16:49.500000+00:00",
        "nodeName": "node-1",
        "processingStrategy": "EXECUTE_REMEDIATION",
    }
    assert by_entity(made)[""]["checkName"] == "HarnessReadyActiveNode"


def test_a_gpu_that_is_not_ready_is_fatal_and_its_neighbour_is_not() -> None:
    made = by_entity(health_events(report(bad("xid_reset", code="48"), bad("hang")), NODE))

    assert (made[A]["isFatal"], made[A]["isHealthy"]) == (True, False)
    assert made[A]["recommendedAction"] == "COMPONENT_RESET"
    assert made[A]["errorCode"] == ["48", "hang"]
    assert made[A]["message"] == "not ready: copies: they do not, copies: they do not, next: reset the GPU"
    assert [made[uuid]["isHealthy"] for uuid in (B, "")] == [True, True]


@pytest.mark.parametrize(
    ("verdict", "strict", "fatal", "healthy"),
    [
        (Verdict.READY, True, False, True),
        (Verdict.DEGRADED, False, False, True),
        (Verdict.DEGRADED, True, True, False),
        (Verdict.UNKNOWN, True, False, False),
        (Verdict.NOT_READY, False, True, False),
    ],
)
def test_what_a_verdict_means(verdict: Verdict, strict: bool, fatal: bool, healthy: bool) -> None:
    kinds = {rule.verdict: kind for kind, rule in RULES.items()}
    problems = () if verdict is Verdict.READY else (bad(kinds[verdict]),)
    event = by_entity(health_events(report(*problems), NODE, strict=strict))[A]

    assert (event["isFatal"], event["isHealthy"]) == (fatal, healthy)
    assert (event["recommendedAction"] != "NONE", bool(event["errorCode"])) == (fatal, fatal)
    assert event["message"].startswith(verdict.text)


@pytest.mark.parametrize("step", Step)
def test_every_step_is_an_action(step: Step) -> None:
    kind = next((kind for kind, rule in RULES.items() if (rule.step, rule.verdict.value) == (step, "not_ready")), None)
    if kind is None:
        assert step in (Step.NOTHING, Step.END_PROCESSES)
        assert health_event._ACTIONS[step] in health_event._ENUMS["RecommendedAction"]
        return
    action = by_entity(health_events(report(bad(kind)), NODE))[A]["recommendedAction"]
    assert action in health_event._ENUMS["RecommendedAction"]
    assert action != "NONE"


def test_a_gpu_that_cannot_be_named_is_not_reset_alone() -> None:
    for made in (
        health_events(report(bad(), gpus=(gpu(A, bad(), pci=""),)), NODE),
        health_events(report(bad(uuid=None)), NODE),
    ):
        assert [event["recommendedAction"] for event in made["events"] if event["isFatal"]] == ["RESTART_BM"]


def test_the_instances_of_a_card_are_one_entity() -> None:
    problem = bad(uuid=CARD)
    gpus = tuple(gpu(f"MIG-{number}", problem, mig_parent=CARD) for number in range(3))
    made = by_entity(health_events(report(problem, gpus=gpus), NODE))

    assert set(made) == {"", CARD}
    assert made[CARD]["isFatal"]
    assert made[""]["isHealthy"]


def test_a_problem_of_one_instance_is_one_of_its_card() -> None:
    problem = bad("wrong_result", uuid="MIG-1")
    gpus = tuple(gpu(f"MIG-{number}", problem, mig_parent=CARD) for number in range(3))
    made = by_entity(health_events(report(problem, gpus=gpus), NODE))

    assert set(made) == {"", CARD}
    assert (made[CARD]["isFatal"], made[CARD]["errorCode"]) == (True, ["wrong_result"])
    assert made[""]["isHealthy"]


def test_a_reading_does_not_clear_what_a_test_has_found() -> None:
    names = [{event["checkName"] for event in health_events(report(mode=mode), NODE)["events"]} for mode in MODES]

    assert len(set.union(*names)) == sum(map(len, names))


MODES = ("passive", "active", "deep")


def test_a_message_is_short_and_has_no_separator_of_conditions() -> None:
    problems = [bad("xid_look", found="a; b\n\x1b[31m" + "x" * 400), bad("hang", found="later")]
    message = by_entity(health_events(report(*problems), NODE))[A]["message"]

    assert len(message) <= 300
    assert ";" not in message
    assert message.isprintable()
    assert message.endswith("..., next: look by hand")


# The connector of the environment.


@pytest.mark.parametrize(
    ("address", "environ", "found"),
    [
        ("unix:///run/a.sock", {}, Connector("unix:///run/a.sock", "host")),
        ("/run/a.sock", {}, Connector("unix:///run/a.sock", "host")),
        (
            "auto",
            {
                "PLATFORM_CONNECTOR_SOCKET": "unix:///var/run/nvsentinel.sock",
                "NODE_NAME": "node-1",
                "PROCESSING_STRATEGY": "STORE_ONLY",
                "PLATFORM_CONNECTOR_TOKEN_PATH": "/var/run/secrets/token",
            },
            Connector("unix:///var/run/nvsentinel.sock", "node-1", "STORE_ONLY", Path("/var/run/secrets/token")),
        ),
    ],
)
def test_the_connector_is_that_of_the_environment(address: str, environ: dict[str, str], found: Connector) -> None:
    assert Connector.find(address, environ, "host") == found


@pytest.mark.parametrize(
    ("address", "environ", "words"),
    [
        ("auto", {}, r"--health-event=auto: \$PLATFORM_CONNECTOR_SOCKET is not set"),
        ("auto", {"PLATFORM_CONNECTOR_SOCKET": "http://a"}, "--health-event='http://a': expected auto or unix:///path"),
        ("connector:50051", {}, "--health-event='connector:50051': expected auto or unix:///path"),
        ("unix:relative", {}, "expected auto or unix:///path"),
        ("unix:///a\0b", {}, "expected auto or unix:///path"),
        ("unix:///" + "a" * 107, {}, "at most 107 bytes"),
        ("/a", {"PROCESSING_STRATEGY": "REPAIR"}, r"\$PROCESSING_STRATEGY='REPAIR': expected EXECUTE_REMEDIATION or"),
    ],
)
def test_a_connector_that_cannot_be_is_refused(address: str, environ: dict[str, str], words: str) -> None:
    with pytest.raises(HealthEventError, match=words):
        Connector.find(address, environ, "host")


def test_without_its_packages_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(HealthEventError, match=r"pip install 'gpu-conformance-harness\[nvsentinel\]'"):
        Connector.find("/a", {}, "host")


# The wire.

#: The messages as NVSentinel declares them: number and type by field. Written apart from those of the harness.
SENTINEL: dict[str, list[tuple[int, str, str, bool]]] = {
    "Entity": [(1, "entityType", "STRING", False), (2, "entityValue", "STRING", False)],
    "HealthEvent": [
        (1, "version", "UINT32", False),
        (2, "agent", "STRING", False),
        (3, "componentClass", "STRING", False),
        (4, "checkName", "STRING", False),
        (5, "isFatal", "BOOL", False),
        (6, "isHealthy", "BOOL", False),
        (7, "message", "STRING", False),
        (8, "recommendedAction", "INT32", False),  # an enum, on the wire
        (9, "errorCode", "STRING", True),
        (10, "entitiesImpacted", ".Entity", True),
        (12, "generatedTimestamp", ".google.protobuf.Timestamp", False),
        (13, "nodeName", "STRING", False),
        (16, "processingStrategy", "INT32", False),  # an enum, on the wire
    ],
    "HealthEvents": [(1, "version", "UINT32", False), (2, "events", ".HealthEvent", True)],
}


def sentinel_reads(data: bytes) -> dict[str, Any]:
    """Return a batch as NVSentinel reads it."""
    file = descriptor_pb2.FileDescriptorProto(name="sentinel.proto", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    for name, fields in SENTINEL.items():
        message = file.message_type.add(name=name)
        for number, field, kind, repeated in fields:
            kinds = descriptor_pb2.FieldDescriptorProto
            new = message.field.add(name=field, number=number)
            new.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            new.type = kinds.TYPE_MESSAGE if kind.startswith(".") else kinds.Type.Value(f"TYPE_{kind}")
            if kind.startswith("."):
                new.type_name = kind
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    batch = message_factory.GetMessageClass(pool.FindMessageTypeByName("HealthEvents"))()
    batch.ParseFromString(data)
    found: dict[str, Any] = json_format.MessageToDict(batch, preserving_proto_field_name=True)
    return found


class PlatformConnector:
    """A platform connector on a socket. `answer`: what it answers with in place of the receipt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.batches: list[dict[str, Any]] = []
        self.headers: list[dict[str, Any]] = []
        self.methods: list[str] = []
        self.refusals: list[grpc.StatusCode] = []

    def receive(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        self.headers.append(dict(context.invocation_metadata()))
        self.batches.append(sentinel_reads(data))
        if self.refusals:
            context.abort(self.refusals.pop(0), "this node\nis not yours")
        return b""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.methods.append(details.method)
        return grpc.unary_unary_rpc_method_handler(self.receive)

    @contextlib.contextmanager
    def served(self) -> Iterator[Connector]:
        server = grpc.server(ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers([type("Handler", (grpc.GenericRpcHandler,), {"service": self._handle})()])
        server.add_insecure_port(f"unix://{self.path}")
        server.start()
        try:
            yield Connector(f"unix://{self.path}", "node-1")
        finally:
            server.stop(None).wait()

    @property
    def _handle(self) -> Any:
        return lambda _, details: self.service(details)


@pytest.fixture
def connector(tmp_path: Path) -> PlatformConnector:
    return PlatformConnector(tmp_path / "c.sock")


def test_the_connector_gets_the_batch(connector: PlatformConnector) -> None:
    problem = bad("xid_reset", code="48")
    with connector.served() as found:
        found.send(health_events(report(problem), found))

    assert connector.methods == ["/datamodels.PlatformConnector/HealthEventOccurredV1"]
    (batch,) = connector.batches
    assert batch["version"] == 1
    assert len(batch["events"]) == 3
    assert batch["events"][1] == {
        "version": 1,
        "agent": "harness-ready",
        "componentClass": "GPU",
        "checkName": "HarnessReadyActiveGpu",
        "isFatal": True,
        "message": "not ready: copies: they do not, next: reset the GPU",
        "recommendedAction": 2,
        "errorCode": ["48"],
        "entitiesImpacted": [
            {"entityType": "PCI", "entityValue": "0000:3b:00"},
            {"entityType": "GPU_UUID", "entityValue": A},
        ],
        "generatedTimestamp": "1970-01-01T00:16:49.500Z",
        "nodeName": "node-1",
        "processingStrategy": 1,
    }


def test_the_token_of_the_pod_goes_with_the_batch(connector: PlatformConnector, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with connector.served() as found:
        Connector(found.address, "n", token=tmp_path / "token").send(health_events(report(), found))

    assert connector.headers[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize("content", [None, b"", b"\n", b"a\nb", b"\xff"], ids=["none", "empty", "line", "two", "bytes"])
def test_without_its_token_nothing_is_sent(connector: PlatformConnector, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with connector.served() as found, pytest.raises(HealthEventError, match="PLATFORM_CONNECTOR_TOKEN_PATH"):
        Connector(found.address, "n", token=tmp_path / "token").send(health_events(report(), found))

    assert not connector.batches


def test_a_connector_that_starts_again_is_asked_again(connector: PlatformConnector) -> None:
    connector.refusals = [grpc.StatusCode.UNAVAILABLE]
    with connector.served() as found:
        found.send(health_events(report(), found))

    assert len(connector.batches) == 2


def test_a_connector_that_refuses_is_asked_once(connector: PlatformConnector) -> None:
    connector.refusals = [grpc.StatusCode.PERMISSION_DENIED]
    with connector.served() as found, pytest.raises(HealthEventError) as raised:
        found.send(health_events(report(), found))

    assert str(raised.value) == (
        f"NVSentinel has not got the verdict: unix://{connector.path} answers PERMISSION_DENIED: this node"
    )
    assert len(connector.batches) == 1


def test_a_connector_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    found = Connector(f"unix://{tmp_path / 'c.sock'}", "n")
    with pytest.raises(HealthEventError, match=r"answers UNAVAILABLE: .*No such file or directory"):
        found.send(health_events(report(), found))


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "no HTTP/2"])
def test_a_connector_that_does_not_answer_has_a_deadline(tmp_path: Path, greeting: bytes) -> None:
    found = Connector(f"unix://{tmp_path / 'c.sock'}", "n")
    with socket.socket(socket.AF_UNIX) as server, ThreadPoolExecutor(1) as pool:
        server.bind(str(tmp_path / "c.sock"))
        server.listen()
        sending = pool.submit(found.send, health_events(report(), found), 2.0)
        first = server.accept()[0]
        first.sendall(greeting)
        with pytest.raises(HealthEventError, match=r"answers (DEADLINE_EXCEEDED|UNAVAILABLE)"):
            sending.result()
        first.close()
