"""What PyTorch does on the simulated CUDA, by trying it: the program that ``harness sim doctor`` runs in a process of
its own.

It prints one line of JSON per probe, before and after it, so that a process that dies names the probe.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Probe:
    """One use of a device. `limit`: why it needs a GPU; empty if it should run on the simulated CUDA."""

    name: str
    run: Callable[[], object]
    limit: str = ""


def _operators() -> None:
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    y = torch.nn.functional.layer_norm((x @ x).relu(), (64,)).square().mean()
    y.backward()  # type: ignore[no-untyped-call]
    z = x.detach().cpu().requires_grad_()
    torch.nn.functional.layer_norm((z @ z).relu(), (64,)).square().mean().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(x.grad, z.grad, check_device=False, rtol=1e-3, atol=1e-4)


def _streams() -> None:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        begin.record()
        value = torch.ones(1 << 16, device="cuda").sum()
        end.record()
    torch.cuda.current_stream().wait_stream(side)
    assert value.item() == 1 << 16
    assert begin.elapsed_time(end) >= 0


def _graph() -> None:
    value, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value += 1
    for _ in range(3):
        graph.replay()
    assert value.tolist() == [3.0] * 4


def _pinned() -> None:
    source = torch.arange(1 << 16).pin_memory()
    there = source.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(there.cpu(), source)


def _attention() -> None:
    q = torch.randn(2, 4, 16, 32, device="cuda", dtype=torch.float16)
    assert torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).isfinite().all()


def _amp() -> None:
    model = torch.nn.Linear(8, 8, device="cuda")
    optimizer, scaler = torch.optim.AdamW(model.parameters(), fused=True), torch.amp.GradScaler("cuda")
    with torch.autocast("cuda"):
        loss = model(torch.ones(4, 8, device="cuda")).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def _snapshot() -> None:
    torch.cuda.memory._record_memory_history()
    kept = torch.ones(1 << 20, device="cuda")
    assert torch.cuda.memory._snapshot()["segments"]
    torch.cuda.memory._record_memory_history(enabled=None)
    del kept


def _profiler() -> None:
    with torch.profiler.profile() as profile:
        torch.ones(16, device="cuda").exp()
        torch.cuda.synchronize()
    assert any(event.device_type.name == "CUDA" for event in profile.events())


def _nccl() -> None:
    import torch.distributed as dist

    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("nccl", init_method=f"file://{store.name}", rank=0, world_size=1)
        value = torch.ones(4, device="cuda")
        dist.all_reduce(value)
        assert value.sum().item() == 4
        dist.destroy_process_group()
        open(store.name, "a").close()  # the store has removed it


def _nvml() -> None:
    import pynvml

    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() > 0
    pynvml.nvmlShutdown()


def _script() -> None:
    scripted = torch.jit.script(_scripted)
    x, i = torch.arange(8.0, device="cuda"), torch.tensor([1, 3], device="cuda")
    for _ in range(3):
        assert scripted(x.clone(), i).tolist() == [2.0, 4.0]


def _scripted(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x[i] = x[i] + 1
    return x[i]


def _compiled() -> None:
    def plain(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + 1).sum()

    x = torch.arange(64.0, device="cuda")
    torch.testing.assert_close(torch.compile(plain)(x), plain(x))


def _compile_kernel(body: str) -> torch.Tensor:
    x = torch.zeros(64, device="cuda")
    kernel = torch.cuda._compile_kernel(f'extern "C" __global__ void probe(float* x) {{ {body} }}', "probe")
    kernel((1, 1, 1), (64, 1, 1), (x,))
    return x


def _nvrtc() -> None:
    x = _compile_kernel(
        "__shared__ float s[64]; s[threadIdx.x] = threadIdx.x; __syncthreads(); x[threadIdx.x] = s[63 - threadIdx.x];"
    )
    assert x.tolist() == list(range(63, -1, -1))


def _assembly() -> None:
    _compile_kernel('unsigned y; asm("bfind.u32 %0, %1;" : "=r"(y) : "r"(threadIdx.x)); x[threadIdx.x] = y;')


def _jiterator() -> None:
    twice = torch.cuda.jiterator._create_jit_fn("template <typename T> T two(T x) { return x * 2; }")
    assert twice(torch.ones(4, device="cuda")).tolist() == [2.0] * 4


def _triton() -> None:
    triton = importlib.import_module("triton")
    importlib.import_module("triton.language")

    @triton.jit
    def one(x):  # type: ignore[no-untyped-def]
        triton.language.store(x, 1.0)

    value = torch.zeros(1, device="cuda")
    one[(1,)](value)
    assert value.item() == 1


PROBES = (
    Probe("operators and autograd", _operators),
    Probe("streams and events", _streams),
    Probe("CUDA graphs", _graph),
    Probe("pinned memory and asynchronous copies", _pinned),
    Probe("attention (SDPA)", _attention),
    Probe("autocast, GradScaler, fused AdamW", _amp),
    Probe("memory history and snapshots", _snapshot),
    Probe("profiler with a timeline of the device (CUPTI)", _profiler),
    Probe("collectives (NCCL)", _nccl),
    Probe("NVML", _nvml),
    Probe("TorchScript", _script),
    Probe("torch.compile (Inductor, by the C++ compiler)", _compiled),
    Probe("kernels of Triton, by its interpreter", _triton),
    Probe("kernels compiled at run time (NVRTC), by the C++ compiler", _nvrtc),
    Probe("torch.cuda.jiterator", _jiterator),
    Probe("inline PTX in a kernel", _assembly, "it is code for a GPU, and no C++"),
)


def main() -> None:
    """Run all probes."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for probe in PROBES:
        print(json.dumps({"begin": probe.name}), flush=True)
        try:
            probe.run()
        except Exception as error:  # noqa: BLE001 - whatever torch raises is the answer
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            print(json.dumps({"probe": probe.name, "error": text, "limit": probe.limit}), flush=True)
        else:
            print(json.dumps({"probe": probe.name, "error": None, "limit": probe.limit}), flush=True)


if __name__ == "__main__":
    main()
