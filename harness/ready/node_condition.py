"""Writes the verdict of ``harness ready`` into the conditions of a Kubernetes node, again and again.

    python -m harness.ready.node_condition --every 600 -- --passive --steps /etc/ready/steps.yaml

runs in a pod of each node (``ci/k8s/ready-daemonset.yaml``). The condition `GPUReady` is True for a node that may get
work, False for one that is not ready, and Unknown if that is not known. A condition alone keeps no pod away: what acts
on it is the operator's. The API is called with the account of the pod, which may change the status of nodes alone.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.core.disposable import LADDER, run_disposable
from harness.core.errors import HarnessError
from harness.ready.fleet import MOST_ANSWER, NodeAnswer, read_answer
from harness.ready.model import Verdict

TYPE = "GPUReady"
#: The files of the pod's account, and the variables with the address of the API.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST, PORT, NODE = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "NODE_NAME"
#: Characters of a message of a condition, which has a line in ``kubectl describe node``.
_MESSAGE = 1024
#: Seconds for an answer of the API, and for a check beyond which it is killed.
_API_LIMIT, _CHECK_LIMIT = 30.0, 1800.0
_MOST_BODY = 4 << 20
_STATUS = {Verdict.READY: "True", Verdict.DEGRADED: "True", Verdict.UNKNOWN: "Unknown", Verdict.NOT_READY: "False"}
_REASONS = {
    Verdict.READY: "AllChecksPassed",
    Verdict.DEGRADED: "Degraded",
    Verdict.UNKNOWN: "NoVerdict",
    Verdict.NOT_READY: "CheckFailed",
}


class ConditionError(HarnessError):
    """The condition cannot be written."""


def condition(answer: NodeAnswer, now: datetime, before: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the condition for an answer. Pure. `before`: the condition that the node has, or None.

    The time of the last transition stays while the status does.
    """
    moment = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = _STATUS[answer.verdict]
    kept = before.get("lastTransitionTime") if before is not None and before.get("status") == status else None
    step = f"; next step: {answer.step}" if answer.step else ""
    return {
        "type": TYPE,
        "status": status,
        "reason": _REASONS[answer.verdict],
        "message": f"{answer.verdict.text}{f': {answer.reason}' if answer.reason else ''}{step}"[:_MESSAGE],
        "lastHeartbeatTime": moment,
        "lastTransitionTime": kept if isinstance(kept, str) and kept else moment,
    }


@dataclass(frozen=True, slots=True)
class Api:
    """The API of the cluster, as a pod sees it. `certificate`: None for plain HTTP, in tests."""

    address: str
    token: str
    certificate: Path | None

    @classmethod
    def of_pod(cls, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Api:
        """Return the API of this pod. Raise ConditionError outside of one."""
        host, port = environ.get(HOST, ""), environ.get(PORT, "443")
        try:
            token = (account / "token").read_text(encoding="ascii").strip()
        except OSError as error:
            raise ConditionError(
                f"cannot read {str(account / 'token')!r}: run this in a pod with an account"
            ) from error
        if not host:
            raise ConditionError(f"${HOST} is not set: run this in a pod")
        address = f"[{host}]" if ":" in host else host
        return cls(f"https://{address}:{port}", token, account / "ca.crt")

    def conditions(self, node: str) -> list[Mapping[str, Any]]:
        """Return the conditions of a node. Raise ConditionError."""
        status = self._call("GET", node).get("status")
        found = status.get("conditions") if isinstance(status, dict) else None
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def write(self, node: str, new: Mapping[str, str]) -> None:
        """Add or replace a condition of a node. Raise ConditionError."""
        self._call("PATCH", node, {"status": {"conditions": [dict(new)]}})

    def _call(self, method: str, node: str, body: object = None) -> dict[str, Any]:
        part = "/status" if method == "PATCH" else ""
        url = f"{self.address}/api/v1/nodes/{urllib.parse.quote(node, safe='')}{part}"
        # Conditions are merged by their type, so that those of others stay.
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/strategic-merge-patch+json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        context = None if self.certificate is None else ssl.create_default_context(cafile=str(self.certificate))
        try:
            with urllib.request.urlopen(request, timeout=_API_LIMIT, context=context) as answer:
                found = json.loads(answer.read(_MOST_BODY))
        except urllib.error.HTTPError as error:
            error.close()
            raise ConditionError(f"{method} of {url} is answered with status {error.code}: check the role") from None
        except (OSError, ValueError) as error:
            raise ConditionError(f"{method} of {url} fails: {error}") from None
        return found if isinstance(found, dict) else {}


def check(node: str, options: Sequence[str]) -> NodeAnswer:
    """Run ``harness ready`` on this node, and return its answer."""
    command = [sys.executable, "-m", "harness", "ready", "--json", *options]
    run = run_disposable(command, _CHECK_LIMIT, ladder=LADDER, kept=MOST_ANSWER + 1, most=MOST_ANSWER)
    return read_answer(node, run, "harness ready", _CHECK_LIMIT)


def publish(api: Api, node: str, answer: NodeAnswer, now: datetime) -> dict[str, str]:
    """Write the condition of an answer, and return it. Raise ConditionError."""
    before = next((each for each in api.conditions(node) if each.get("type") == TYPE), None)
    made = condition(answer, now, before)
    api.write(node, made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Check and write, once or for ever. Return 1 if the only time failed."""
    parser = argparse.ArgumentParser(prog="python -m harness.ready.node_condition", description="Publish the verdict.")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two checks; without it, one check")
    parser.add_argument("options", nargs="*", help="after --: those of `harness ready`")
    chosen = parser.parse_args(arguments)
    while True:
        try:
            node = os.environ.get(NODE, "")
            if not node:
                raise ConditionError(f"${NODE} is not set: set it from spec.nodeName (ci/k8s/ready-daemonset.yaml)")
            made = publish(Api.of_pod(), node, check(node, chosen.options), datetime.now(UTC))
            print(f"{TYPE} is {made['status']}: {made['message']}", flush=True)
            status = 0
        except HarnessError as error:
            print(f"harness: {error}", file=sys.stderr, flush=True)
            status = 1
        if not chosen.every:
            return status
        time.sleep(chosen.every)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
