"""A cluster run on Kubernetes: the manifest of an indexed Job whose pods are the shards of the run, and their program.

Not all clusters let pods connect back to a head, so cases do not move between pods: each pod has its shard. If the
shards' run directories are on one volume, ``harness report merge`` makes one run of them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_USAGE

#: The names that DNS allows for a Job, with space for the suffix that Kubernetes adds.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")
RESULTS = "/results"
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class ManifestError(HarnessError):
    """The manifest cannot be made."""


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """The user's request. `claim`: the PersistentVolumeClaim for the run directories. `node_selector`: pairs."""

    image: str
    claim: str
    arguments: tuple[str, ...]
    shards: int = 2
    name: str = "conformance"
    namespace: str = ""
    gpus: int = 1
    resource: str = "nvidia.com/gpu"
    folder: str = ""
    deadline: int = 0
    seed: int | None = None
    node_selector: tuple[tuple[str, str], ...] = ()


def kubernetes_job(wanted: ManifestRequest) -> dict[str, Any]:
    """Return the Job in Kubernetes' format. Raise ManifestError."""
    if not _NAME.fullmatch(wanted.name):
        raise ManifestError(f"--name={wanted.name!r}: expected small letters, digits and hyphens, at most 52")
    command = [
        "python",
        "-m",
        "harness.tools.cluster.kubernetes",
        f"--shards={wanted.shards}",
        f"--results={RESULTS}",
        "--",
    ]
    arguments = [*wanted.arguments]
    if wanted.seed is not None:
        arguments.append(f"--seed={wanted.seed}")
    container: dict[str, Any] = {
        "name": "pytest",
        "image": wanted.image,
        "command": [*command, *arguments],
        "resources": {"limits": {wanted.resource: str(wanted.gpus)}} if wanted.gpus else {},
        # Not `runAsNonRoot`: the user is that of the image.
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "results", "mountPath": RESULTS}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    if wanted.folder:
        container["workingDir"] = wanted.folder
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [
            {"name": "results", "persistentVolumeClaim": {"claimName": wanted.claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if wanted.node_selector:
        pod["nodeSelector"] = dict(wanted.node_selector)
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": wanted.shards,
        "parallelism": wanted.shards,
        # A red shard is a result, so it must not run again. A shard whose node is drained continues elsewhere.
        "backoffLimitPerIndex": 0,
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        "template": {"metadata": {"labels": {"app": wanted.name}}, "spec": pod},
    }
    if wanted.deadline:
        spec["activeDeadlineSeconds"] = wanted.deadline
    metadata = {"name": wanted.name, **({"namespace": wanted.namespace} if wanted.namespace else {})}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def manifest_text(wanted: ManifestRequest) -> str:
    """Return the manifest as YAML, with the next commands as comments. Raise ManifestError."""
    shards = " ".join(f"{RESULTS}/shard-{number}" for number in range(1, wanted.shards + 1))
    head = [
        f"# A conformance run in {wanted.shards} shards, one per pod. Each leaves its run directory on the volume.",
        "#   kubectl apply -f FILE",
        f"#   kubectl get job/{wanted.name} --watch",
        "# A red case makes its pod, and so the job, fail. Afterwards, where the volume is, make one run of all:",
        f"#   harness report merge {shards} -o {RESULTS}/merged",
    ]
    body = yaml.dump(kubernetes_job(wanted), Dumper=_Dumper, sort_keys=False, width=100_000)
    return "\n".join(head) + f"\n{body}"


class _Dumper(yaml.SafeDumper):
    """Quotes every text that a YAML reader could take for another type, such as 1e3, yes or null."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def label_pairs(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return ``name=value`` words as pairs. Raise ManifestError."""
    pairs = [(name, value) for word in words for name, sep, value in [word.partition("=")] if sep and name]
    if len(pairs) != len(words):
        raise ManifestError(f"{', '.join(map(repr, words))}: expected NAME=VALUE")
    return tuple(pairs)


# One pod of an indexed Kubernetes Job.
#
# ``python -m harness.tools.cluster.kubernetes --shards=N --results=DIR -- ARGUMENTS``. The process becomes pytest with
# the pod's shard. A pod that replaces an evicted one resumes its run.

#: Kubernetes sets this variable in each pod of an indexed Job, from 0.
INDEX = "JOB_COMPLETION_INDEX"


class PodError(HarnessError):
    """This process is not a pod of an indexed Job, or its arguments are wrong."""


def command(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command of this pod's pytest. Raise PodError."""
    options = dict(word[2:].split("=", 1) for word in words[: _end(words)] if "=" in word)
    shards, results = options.get("shards", ""), options.get("results", "")
    if not shards.isdecimal() or not results or int(shards) < 1:
        raise PodError(f"{' '.join(words)!r}: expected --shards=N --results=DIR -- PYTEST-ARGUMENTS")
    index = environ.get(INDEX, "")
    if not index.isdecimal() or int(index) >= int(shards):
        raise PodError(f"{INDEX}={index!r}: expected a number from 0 to {int(shards) - 1}, as in an indexed Job")
    number = int(index) + 1
    run_dir = Path(results) / f"shard-{number}"
    shard = [f"--shard={number}/{shards}", f"--resume={run_dir}"]
    return [sys.executable, "-m", "pytest", *words[_end(words) + 1 :], *shard]


def _end(words: Sequence[str]) -> int:
    return list(words).index("--") if "--" in words else len(words)


def main(words: Sequence[str]) -> NoReturn:
    """Become pytest."""
    try:
        made = command(words, os.environ)
    except PodError as error:
        print(f"harness: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    os.execv(made[0], made)


if __name__ == "__main__":
    main(sys.argv[1:])
