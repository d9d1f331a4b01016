"""torch.profiler with a schedule and a trace file: kernels of the device appear in the table and in the trace."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule


def main() -> None:
    """Profile four steps of a model."""
    model = torch.nn.Linear(64, 64).cuda()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=2),
        record_shapes=True,
        profile_memory=True,
    ) as profiler:
        for _ in range(4):
            model(torch.randn(32, 64, device="cuda")).sum().backward()
            profiler.step()
    table = profiler.key_averages().table(sort_by="cuda_time_total")
    assert "aten::addmm" in table, table
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    assert {"kernel", "cuda_runtime", "gpu_memcpy"} & {event.get("cat") for event in events} >= {"kernel"}
    print("done")


if __name__ == "__main__":
    main()
