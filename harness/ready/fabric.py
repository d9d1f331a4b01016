"""The part of one node in a collective of several nodes: the program that ``harness ready --fabric`` starts there.

``python -m harness.ready.fabric WORD`` tests all GPUs of the node as ranks beside those of other nodes. The word is an
order without spaces, so that it passes through any shell::

    kind=cuda,first=8,world=16,gpus=8,address=n1,port=29511,limit=60

The exit status is 0 if each rank saw the right values in time; the last line of stderr says why not.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from harness.controller import machine
from harness.core.errors import HarnessError
from harness.core.text import list_first
from harness.devices.device import CPU, Device, masks_for
from harness.ready import quick_tests
from harness.ready.active import carry_out, label_of
from harness.ready.quick_tests import Fabric, Line
from harness.sim.native import provider

#: The test that the ranks run.
TEST = "collectives"


class FabricError(HarnessError):
    """The order cannot be carried out."""


def run_node(order: Fabric) -> str:
    """Run the ranks of this node. Return what is wrong; empty if nothing is. Raise HarnessError."""
    devices, environ = _devices(order.kind)
    if len(devices) != order.gpus:
        raise FabricError(f"the node has {len(devices)} GPUs, expected {order.gpus} as a moment ago")
    with tempfile.TemporaryDirectory(prefix="harness-fabric-", ignore_cleanup_errors=True) as folder:
        written = quick_tests.Order(
            kind=order.kind,
            gpus=tuple(quick_tests.Gpu(each.uuid, label_of(each), masks_for([each])) for each in devices),
            solo=(),
            group=(TEST,),
            folder=folder,
            start_until=order.limit,
            hang=order.limit,
            end=3.0 * order.limit,
            seed=0,
            full=devices[0].backend.hardware,
            whole_exit=False,
            fabric=order,
        )
        lines, _ = carry_out(written, Path(folder), environ)
    return judge_ranks(lines, {each.uuid: label_of(each) for each in devices})


def judge_ranks(lines: Sequence[Line], labels: Mapping[str, str]) -> str:
    """Return what is wrong with the ranks of a node; empty if nothing is. Pure. `labels`: of the GPUs."""
    if failed := next((line.text for line in lines if line.what == "failed"), ""):
        return failed
    passed = {line.gpu for line in lines if line.what == "done" and line.state == "ok"}
    wrong = [gpu for gpu in labels if gpu not in passed]
    if not wrong:
        return ""
    text = next((line.text for line in lines if line.what == "done" and line.gpu in wrong and line.text), "")
    places = [line.text for line in lines if line.what == "place" and line.gpu == wrong[0]]
    where = f"no end at {places[-1] if places else 'its start'}"
    return f"{list_first([labels[gpu] for gpu in wrong])}: {text or where}"


def _devices(kind: str) -> tuple[tuple[Device, ...], dict[str, str]]:
    """Return the devices of this node, and the variables of processes that use them."""
    if kind == CPU.kind:
        return (CPU,), dict(os.environ)
    devices = machine.inventory(kind).accelerators
    backend = devices[0].backend if devices else None
    variables = provider.provider_of(backend).provide().variables if backend is not None and backend.provider else {}
    return tuple(each for each in devices if each.mig_parent is None), {**os.environ, **variables}


def main(arguments: Sequence[str]) -> int:
    """Carry out the order of the command line. Return 0 if all is well."""
    try:
        wrong = run_node(Fabric.parse(arguments[0] if arguments else ""))
    except (HarnessError, msgspec.ValidationError) as error:
        wrong = str(error)
    if wrong:
        print(f"harness: {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
