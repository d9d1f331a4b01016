"""The files of ``harness ready`` for Kubernetes: their commands are those of this project, and their settings fit."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from harness.cli.main import app
from harness.ready.health_event import AGENT
from harness.ready.steps import load_rules
from tests.ci.checkout import ROOT

K8S = ROOT / "ci" / "k8s"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((K8S / name).read_text(encoding="utf-8")))


def takes(words: list[str]) -> None:
    """Assert that the command exists and knows its options: with ``--help`` it does nothing."""
    assert words[0] == "harness"
    names = [word.partition("=")[0] for word in words[2:]]
    shown = CliRunner().invoke(app, [words[1], "--help"], env={"COLUMNS": "300"})
    assert shown.exit_code == 0, shown.output
    assert all(name in shown.output for name in names), names


def steps_of(container: dict[str, Any]) -> Path:
    """Return the file of `--steps`, which the image has at the place of a checkout."""
    (path,) = [word.partition("=")[2] for word in container["command"] if word.startswith("--steps=")]
    return ROOT / Path(path).relative_to("/conformance")


def test_the_init_container_checks_the_gpus_that_the_pod_works_on() -> None:
    (job,) = documents("ready-init.yaml")
    pod = job["spec"]["template"]["spec"]
    (check,), (work,) = pod["initContainers"], pod["containers"]

    takes(check["command"])
    gpus = [container["resources"]["limits"]["nvidia.com/gpu"] for container in (check, work)]
    assert gpus[0] == gpus[1]
    assert load_rules(steps_of(check))["log_unreadable"].verdict.value == "degraded"
    dockerfile = (ROOT / "ci" / "Dockerfile").read_text(encoding="utf-8")
    assert "WORKDIR /conformance\n" in dockerfile
    assert "!configs" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()


def test_the_check_of_nvsentinel_is_a_container_with_its_socket() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    path = ROOT / "ci" / "nvsentinel" / "preflight-values.yaml"
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    (check,) = values["preflight"]["initContainers"]

    takes(check["command"])
    assert load_rules(steps_of(check))["log_unreadable"].verdict.value == "degraded"
    assert {"name": "nvsentinel-socket", "mountPath": "/var/run"} in check["volumeMounts"]
    assert "'.[nvsentinel]'" in (ROOT / "ci" / "Dockerfile").read_text(encoding="utf-8")
    # The chart makes the image's name of two parts, and keeps `defaultEnabled` for itself; the rest is Kubernetes'.
    image = check.pop("image")
    assert (set(image), check.pop("defaultEnabled")) == ({"repository", "tag"}, False)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"initContainers": [{**check, "image": "a"}], "containers": [{"name": "b", "image": "b"}]},
    }
    kubernetes.validate(pod, kubernetes.latest_version(), strict=True)
    (rules,) = values["fault-quarantine"]["ruleSets"]
    (rule,) = rules["match"]["all"]
    assert f"event.agent == '{AGENT}'" in rule["expression"]


def test_the_daemon_set_has_the_rights_that_its_program_needs_and_no_more() -> None:
    account, role, binding, daemons = documents("ready-daemonset.yaml")
    pod = daemons["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert container["command"][:3] == ["python3", "-m", "harness.ready.node_condition"]
    assert importlib.util.find_spec("harness.ready.node_condition") is not None
    takes(["harness", "ready", *container["command"][container["command"].index("--") + 1 :]])
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    ]
    assert {pod["serviceAccountName"], account["metadata"]["name"], binding["subjects"][0]["name"]} == {"gpu-ready"}
    assert daemons["spec"]["selector"]["matchLabels"] == daemons["spec"]["template"]["metadata"]["labels"]
    assert container["env"][0]["name"] == "NODE_NAME"


def test_the_plugin_of_node_problem_detector_gets_a_line_that_fits_in_time() -> None:
    """Its exit statuses are those of `harness ready`: 0 no problem, 1 a problem, any other unknown."""
    plugin = json.loads((K8S / "node-problem-detector.json").read_text(encoding="utf-8"))
    (rule,) = plugin["rules"]

    takes([rule["path"], *rule["args"]])
    assert plugin["pluginConfig"]["max_output_length"] >= 200  # the longest line of `harness ready`
    assert int(rule["timeout"].removesuffix("s")) <= int(plugin["pluginConfig"]["timeout"].removesuffix("s"))
    assert {each["type"] for each in plugin["conditions"]} == {rule["condition"]}
