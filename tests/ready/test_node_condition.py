"""The condition of a Kubernetes node: from a report, through the API of a cluster, which is a server here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.ready.fleet import NodeAnswer
from harness.ready.model import Verdict
from harness.ready.node_condition import Api, ConditionError, condition, publish
from tests.ready.test_fleet import bad, report

NOW = datetime(2026, 11, 30, 6, 0, 0, tzinfo=UTC)
THEN = "2026-11-01T00:00:00Z"
READY = NodeAnswer("n", report())


@pytest.mark.parametrize(
    ("answer", "status", "reason", "message"),
    [
        (READY, "True", "AllChecksPassed", "ready"),
        (
            NodeAnswer("n", report(Verdict.DEGRADED, bad("slow"))),
            "True",
            "Degraded",
            "degraded: GPU 3: they do not; next step: look by hand",
        ),
        (
            NodeAnswer("n", report(Verdict.NOT_READY, bad())),
            "False",
            "CheckFailed",
            "not ready: GPU 3: they do not; next step: reset the GPU",
        ),
        (
            NodeAnswer("n", None, "no report"),
            "Unknown",
            "NoVerdict",
            "unknown: no report; next step: look by hand",
        ),
    ],
    ids=["ready", "degraded", "not ready", "unknown"],
)
def test_condition(answer: NodeAnswer, status: str, reason: str, message: str) -> None:
    made = condition(answer, NOW, None)

    assert made == {
        "type": "GPUReady",
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": "2026-11-30T06:00:00Z",
        "lastTransitionTime": "2026-11-30T06:00:00Z",
    }


@pytest.mark.parametrize(("before", "since"), [("True", THEN), ("False", "2026-11-30T06:00:00Z")])
def test_the_time_of_the_transition_stays_while_the_status_does(before: str, since: str) -> None:
    made = condition(READY, NOW, {"type": "GPUReady", "status": before, "lastTransitionTime": THEN})

    assert made["lastTransitionTime"] == since


class Cluster:
    """An API that has one node. It answers with `status` if that is set."""

    def __init__(self) -> None:
        self.conditions: list[dict[str, Any]] = [{"type": "Ready", "status": "True"}]
        self.requests: list[tuple[str, str, str, str]] = []
        self.status = 0
        self.body: bytes | None = None


@contextmanager
def served(cluster: Cluster) -> Iterator[Api]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_PATCH(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for new in sent["status"]["conditions"]:  # a strategic merge, by the type
                kept = [each for each in cluster.conditions if each["type"] != new["type"]]
                cluster.conditions = [*kept, new]
            self._answer()

        def _answer(self) -> None:
            words = self.command, self.path, self.headers["Authorization"], self.headers["Content-Type"]
            cluster.requests.append(words)
            self.send_response(cluster.status or 200)
            self.end_headers()
            self.wfile.write(cluster.body or json.dumps({"status": {"conditions": cluster.conditions}}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Api(f"http://127.0.0.1:{server.server_port}", "secret", None)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_condition_of_a_node_is_added_and_then_replaced() -> None:
    cluster = Cluster()
    with served(cluster) as api:
        publish(api, "node-1", READY, NOW)
        publish(api, "node-1", NodeAnswer("n", None, "no report"), NOW)

    assert [(each["type"], each["status"]) for each in cluster.conditions] == [
        ("Ready", "True"),
        ("GPUReady", "Unknown"),
    ]
    assert [request[:2] for request in cluster.requests] == [
        ("GET", "/api/v1/nodes/node-1"),
        ("PATCH", "/api/v1/nodes/node-1/status"),
    ] * 2
    assert {request[2] for request in cluster.requests} == {"Bearer secret"}
    assert cluster.requests[1][3] == "application/strategic-merge-patch+json"


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [(403, None, "is answered with status 403: check the role"), (0, b"<html>", "fails: Expecting value")],
    ids=["forbidden", "no JSON"],
)
def test_an_api_that_refuses_is_one_sentence(status: int, body: bytes | None, words: str) -> None:
    cluster = Cluster()
    cluster.status, cluster.body = status, body
    with served(cluster) as api, pytest.raises(ConditionError) as raised:
        publish(api, "node-1", READY, NOW)

    assert words in str(raised.value)


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"status": 1}', b'{"status": {"conditions": [1, {"type": 2}]}}'])
def test_an_api_that_answers_otherwise_has_no_condition_yet(body: bytes) -> None:
    cluster = Cluster()
    cluster.body = body
    with served(cluster) as api:
        assert publish(api, "node-1", READY, NOW)["status"] == "True"


def test_an_api_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConditionError, match=r"GET of http://127.0.0.1:1/api/v1/nodes/n fails: "):
        publish(Api("http://127.0.0.1:1", "secret", None), "n", READY, NOW)


def test_outside_of_a_pod_the_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConditionError, match="run this in a pod with an account"):
        Api.of_pod({}, tmp_path)
    (tmp_path / "token").write_text("secret\n")
    with pytest.raises(ConditionError, match="KUBERNETES_SERVICE_HOST is not set"):
        Api.of_pod({}, tmp_path)

    api = Api.of_pod({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert (api.address, api.token) == ("https://[fd00::1]:6443", "secret")


@pytest.mark.parametrize(
    ("environ", "words"),
    [({}, "$NODE_NAME is not set"), ({"NODE_NAME": "n"}, "run this in a pod with an account")],
    ids=["no name", "no account"],
)
def test_the_program_ends_with_a_sentence(environ: dict[str, str], words: str) -> None:
    command = [sys.executable, "-m", "harness.ready.node_condition", "--", "--passive"]
    rest = {name: value for name, value in os.environ.items() if name != "NODE_NAME"}
    done = subprocess.run(command, env=rest | environ, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
