"""Data-parallel models: which of torch's two ways to reduce gradients works in a captured pass.

Each in a process of its own: a process group starts threads and sets environment and state for good.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suites import children

ROW = "test_compiled_autograd::TestCompiledAutograd::"

#: Two processes, each with rows of its own; the gradients of the group are the mean of what each would have alone.
#: They end without taking the interpreter down: torch 2.13 aborts there now and then (a thread that nobody joined),
#: after both have said what they found, and how a process with a group ends is not what these cases are about.
SCRIPT = """
import os
rank = 0 if (other := os.fork()) else 1
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

store, reducer = {store!r}, {reducer!r}
dist.init_process_group("gloo", rank=rank, world_size=2, init_method="file://" + store)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 2))
rows = torch.randn(2, 5, 4)
(sum(model(part).square().sum() for part in rows) / 2).backward()
expected = [parameter.grad.clone() for parameter in model.parameters()]
model.zero_grad()
with torch._dynamo.config.patch(optimize_ddp=reducer, compiled_autograd=True):
    parallel = DistributedDataParallel(model)
    try:
        torch.compile(lambda: parallel(rows[rank]).square().sum().backward(), backend="aot_eager")()
    except Exception as error:
        line = type(error).__name__ + " " + " ".join(str(error).split())[:300]
    else:
        same = [torch.allclose(found.grad, wanted) for found, wanted in zip(model.parameters(), expected)]
        captures = torch._dynamo.utils.counters["compiled_autograd"]["captures"]
        line = "same " * all(same) + "different " * (not all(same)) + str(captures)
    print(line + chr(10), end="", flush=True)
dist.barrier()
if other:
    _, status = os.waitpid(other, 0)
    os._exit(os.waitstatus_to_exitcode(status) != 0)
os._exit(0)
"""


def ended(store: Path, reducer: str | bool) -> list[str]:
    """A line of each of the two processes."""
    lines = children.run(SCRIPT.format(store=str(store), reducer=reducer), limit=250).lines()
    assert len(lines) == 2, lines
    return lines


@pytest.mark.covers(f"{ROW}test_ddp_cpp_reducer_error")
def test_the_reducer_in_cpp_is_refused(tmp_path: Path) -> None:
    """Contract: the reducer in C++, whose hooks the compiler cannot see, is refused with an error that names it, and
    does not reduce something silently."""
    for line in ended(tmp_path / "store", True):
        assert "compiled autograd" in line.lower().replace("_", " ")
        assert line.split()[0] not in ("same", "different")


@pytest.mark.covers(f"{ROW}test_ddp_python_reducer")
def test_the_reducer_in_python_reduces_within_the_pass(tmp_path: Path) -> None:
    """Contract: with the reducer in Python a data-parallel model's pass is captured, and both processes have the mean
    of the gradients of each one's rows."""
    for line in ended(tmp_path / "store", "python_reducer"):
        what, captures = line.split()[:2]
        assert what == "same", line
        assert int(captures) >= 1
