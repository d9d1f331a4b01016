"""The files of ``harness ready`` for Kubernetes: their commands are those of this project, and their settings fit."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from harness.cli.main import app
from harness.ready.steps_file import load_rules
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


def test_the_init_container_checks_the_gpus_that_the_pod_works_on() -> None:
    job, steps = documents("ready-init.yaml")
    pod = job["spec"]["template"]["spec"]
    (check,), (work,) = pod["initContainers"], pod["containers"]

    takes(check["command"])
    gpus = [container["resources"]["limits"]["nvidia.com/gpu"] for container in (check, work)]
    assert gpus[0] == gpus[1]
    assert {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume} == {
        steps["metadata"]["name"]
    }


def test_the_steps_of_the_init_container_are_a_valid_file(tmp_path: Path) -> None:
    _, steps = documents("ready-init.yaml")
    path = tmp_path / "steps.yaml"
    path.write_text(steps["data"]["steps.yaml"], encoding="utf-8")

    assert load_rules(path)["log_unreadable"].verdict.value == "degraded"


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
