"""The manifest for Kubernetes, and the behaviour of its pods."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from harness.cli.main import app
from harness.tools.cluster import kubernetes
from harness.tools.cluster.kubernetes import ManifestError, ManifestRequest

HERE = Path(__file__).parent
GOLDEN = HERE / "job.golden.yaml"
COMMAND = (
    "cluster manifest --image reg/conf:1 --claim results --shards 3 --gpus 8 --node-selector gpu=h200 --namespace lab "
    "--folder /suites --deadline 3600 -- suites -n auto --profile nightly"
)


def test_golden() -> None:
    """After an intended change, write the output of COMMAND to the file."""
    assert CliRunner().invoke(app, COMMAND.split()).output == GOLDEN.read_text()


@pytest.mark.parametrize(
    "wanted",
    [
        ManifestRequest("image", "claim", ("suites",)),
        ManifestRequest("image", "claim", ("suites", "-k", "yes"), gpus=0, seed=7, deadline=60),
        ManifestRequest(
            "image", "claim", ("a: b", "- c", "null", "1", "ü", 'say "no"', "#"), node_selector=(("a/b", "true"),)
        ),
    ],
)
def test_the_text_is_the_job_and_the_job_is_valid(wanted: ManifestRequest) -> None:
    made = kubernetes.kubernetes_job(wanted)
    assert yaml.safe_load(kubernetes.manifest_text(wanted)) == made
    jsonschema.Draft202012Validator(json.loads((HERE / "job.schema.json").read_text())).validate(made)


def test_a_pod_gets_no_token_and_no_rights() -> None:
    pod = kubernetes.kubernetes_job(ManifestRequest("image", "claim", ("suites",)))["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_the_golden_file_is_valid() -> None:
    schema = json.loads((HERE / "job.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(GOLDEN.read_text()))


def test_a_bad_name() -> None:
    with pytest.raises(ManifestError, match="--name='No'"):
        kubernetes.kubernetes_job(ManifestRequest("image", "claim", (), name="No"))
    with pytest.raises(ManifestError, match="expected NAME=VALUE"):
        kubernetes.label_pairs(["a"])


def test_a_pod_runs_its_shard(tmp_path: Path) -> None:
    words = ["--shards=3", f"--results={tmp_path}", "--", "suites", "-k", "a"]
    shard = ["--shard=3/3", f"--resume={tmp_path}/shard-3"]
    assert kubernetes.command(words, {kubernetes.INDEX: "2"}) == [sys.executable, "-m", "pytest", *words[3:], *shard]


@pytest.mark.parametrize("index", ["", "3", "x", "-1"])
def test_no_pod(index: str) -> None:
    with pytest.raises(kubernetes.PodError, match=f"JOB_COMPLETION_INDEX='{index}'"):
        kubernetes.command(["--shards=3", "--results=/results", "--"], {kubernetes.INDEX: index})


def test_wrong_arguments() -> None:
    with pytest.raises(kubernetes.PodError, match="expected --shards=N"):
        kubernetes.command(["--shards=x"], {})
