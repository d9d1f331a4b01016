"""Models over several processes: captured passes with each of torch's two DDP reducers, and with sharded weights.

Each case runs in child processes, because a process group starts threads and changes process state permanently.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suites import children
from suites.compiled import WRAPPED_SUITES

#: Each process imports the compiler and `torch.distributed`, which takes longer than the tested work.
pytestmark = pytest.mark.extended

ROW = "test_compiled_autograd::TestCompiledAutograd::"

#: The start and end of each script: two processes that form a group. The processes exit without interpreter shutdown,
#: during which torch 2.13 sometimes aborts (because of a thread that was not joined) after both have reported; the exit
#: of a process with a group is not under test here. Slow modules are imported once, before the fork; none of them
#: starts a Python thread.
BEGIN = """
import os
import torch
import torch._dynamo
import torch.distributed as dist
import torch.nn.parallel
from torch.distributed import tensor

rank = 0 if (other := os.fork()) else 1
dist.init_process_group("gloo", rank=rank, world_size=2, init_method="file://" + {store!r})
torch.manual_seed(3)
"""
END = """
print(line + chr(10), end="", flush=True)
dist.barrier()
if other:
    _, status = os.waitpid(other, 0)
    os._exit(os.waitstatus_to_exitcode(status) != 0)
os._exit(0)
"""

#: Each process has its own rows. The gradients of the group are the mean of those of the processes.
REDUCED = """
from torch.nn.parallel import DistributedDataParallel

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 2))
rows = torch.randn(2, 5, 4)
(sum(model(part).square().sum() for part in rows) / 2).backward()
expected = [parameter.grad.clone() for parameter in model.parameters()]
model.zero_grad()
with torch._dynamo.config.patch(optimize_ddp={reducer!r}, compiled_autograd=True):
    parallel = DistributedDataParallel(model)
    try:
        torch.compile(lambda: parallel(rows[rank]).square().sum().backward(), backend="aot_eager")()
    except Exception as error:
        line = type(error).__name__ + " " + " ".join(str(error).split())[:300]
    else:
        same = [torch.allclose(found.grad, wanted) for found, wanted in zip(model.parameters(), expected)]
        captures = torch._dynamo.utils.counters["compiled_autograd"]["captures"]
        line = "same " * all(same) + "different " * (not all(same)) + str(captures)
"""

#: Each process has half of the rows of a weight.
SHARDED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from suites.compiled import compiled_backward

weight, x = torch.randn(6, 4), torch.randn(5, 4)
whole = weight.clone().requires_grad_()
(x @ whole.t()).sigmoid().square().sum().backward()

mesh = init_device_mesh("cpu", (2,))
given = distribute_tensor(x, mesh, [Replicate()])
line = ""
for compiled in (False, True):
    sharded = distribute_tensor(weight, mesh, [Shard(0)]).requires_grad_()
    loss = lambda: (given @ sharded.t()).sigmoid().square().sum()
    with compiled_backward("aot_eager", fullgraph=False) as recording:
        (torch.compile(loss, backend="aot_eager") if compiled else loss)().backward()
    own = sharded.grad.to_local()
    right = torch.allclose(own, whole.grad[3 * rank : 3 * rank + 3])
    line += f"{'right' if right else 'wrong'} {tuple(own.shape)} {recording.captures};"
"""


def ended(store: Path, script: str) -> list[str]:
    """Return the output of both processes, one line each."""
    lines = children.run(BEGIN.format(store=str(store)) + script + END, limit=250).lines()
    assert len(lines) == 2, lines
    return lines


@pytest.mark.covers(f"{ROW}test_ddp_cpp_reducer_error")
def test_ddp_cpp_reducer_is_refused(tmp_path: Path) -> None:
    """The C++ reducer, whose hooks the compiler cannot trace, raises with its name instead of reducing incorrectly."""
    for line in ended(tmp_path / "store", REDUCED.format(reducer=True)):
        assert "compiled autograd" in line.lower().replace("_", " ")
        assert "c++ ddp reducer" in line.lower()
        assert line.split()[0] not in ("same", "different")


@pytest.mark.covers(f"{ROW}test_ddp_python_reducer")
def test_ddp_python_reducer_reduces_within_the_pass(tmp_path: Path) -> None:
    """With the Python reducer, a DDP model's pass is captured, and both processes have the mean of the gradients."""
    for line in ended(tmp_path / "store", REDUCED.format(reducer="python_reducer")):
        what, captures = line.split()[:2]
        assert what == "same", line
        assert int(captures) >= 1


@pytest.mark.covers(WRAPPED_SUITES)
def test_dtensor_gradient_of_a_sharded_weight(tmp_path: Path) -> None:
    """A product with a row-sharded weight is captured once per process, with or without a compiled forward.

    Each process has the gradient of its rows.
    """
    assert ended(tmp_path / "store", SHARDED) == ["right (3, 4) 1;" * 2] * 2
