"""A program of checks for simulated devices (see `checks`): each check launches kernels of Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.runtime import driver

from tests.sim.simcuda import triton_kernels as kernels

cuda: Any = torch.cuda  # partly untyped
N, BLOCK = 1000, 256
GRID = (4,)


def vectors(count: int = 2, dtype: torch.dtype = torch.float32, n: int = N) -> Any:
    return torch.randn(count, n, device="cuda").to(dtype)


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    kernels.add[GRID](x, y, out, N, BLOCK=BLOCK)


def check_a_kernel_calls_another_function() -> None:
    x, y = vectors()
    out = torch.full((N + 24,), 7.0, device="cuda")
    add(x, y, out)
    torch.testing.assert_close(out[:N], x + y)
    assert out[N:].eq(7).all()


def check_reductions() -> None:
    x = torch.randn(8, 50, device="cuda")
    out = torch.empty_like(x)
    kernels.softmax[(8,)](x, out, 50, BLOCK=64)
    torch.testing.assert_close(out, x.softmax(-1))


def check_products() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, y = torch.randn(2, 16, 16, device="cuda").to(dtype)
        out = torch.empty_like(x)
        kernels.product[(1,)](x, y, out, SIZE=16)
        torch.testing.assert_close(out, (x.float() @ y.float()).to(dtype))


def check_products_in_each_precision() -> None:
    for precision in ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"):
        x, y = torch.randn(2, 16, 16, device="cuda")
        out = torch.empty_like(x)
        kernels.product[(1,)](x, y, out, SIZE=16, PRECISION=precision)
        torch.testing.assert_close(out, x @ y)


def check_bfloat16() -> None:
    x, y = vectors(dtype=torch.bfloat16, n=256)
    out = torch.empty_like(x)
    kernels.choose[(1,)](x, y, out, BLOCK=256)
    torch.testing.assert_close(out, torch.where(x > y, x * y + 1.5, x - y))


def check_sums_in_bfloat16() -> None:
    x = torch.randn(8, 64, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(8, device="cuda", dtype=torch.bfloat16)
    kernels.sums[(8,)](x, out, BLOCK=64)
    torch.testing.assert_close(out, x.sum(-1))


def check_libdevice() -> None:
    x = torch.linspace(-1, 1, 64, device="cuda")
    out = torch.empty_like(x)
    kernels.sine[(1,)](x, out, BLOCK=64)
    torch.testing.assert_close(out, x.asin())


def check_order_of_the_stream() -> None:
    x, y = vectors()
    out, side = torch.zeros(N, device="cuda"), cuda.Stream()
    add(x, y, out)  # compiled
    out.zero_()
    cuda.synchronize()
    with cuda.stream(side):
        cuda._sleep(500_000_000)
        add(x, y, out)
        assert not side.query()
        doubled = out * 2
    assert out.eq(0).all()
    side.synchronize()
    torch.testing.assert_close(doubled, (x + y) * 2)


def check_a_freed_tensor() -> None:
    x, y = vectors()
    expected = x + y
    out = torch.empty_like(x)
    cuda._sleep(200_000_000)
    add(x, y, out)
    del x, y
    torch.testing.assert_close(out, expected)


def check_graph() -> None:
    x, y = vectors()
    out, graph = torch.empty_like(x), cuda.CUDAGraph()
    add(x, y, out)
    out.zero_()
    with cuda.graph(graph):
        add(x, y, out)
        more = out + 1
    assert out.eq(0).all()
    for value in (2.0, 3.0):
        x.fill_(value)
        graph.replay()
        torch.testing.assert_close(more, x + y + 1)


def check_autotune() -> None:
    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 256) for warps in (2, 4)]
    tuned = triton.autotune(configs=configs, key=["n"])(kernels.add)
    x, y = vectors()
    out = torch.empty_like(x)
    tuned[lambda meta: (triton.cdiv(N, meta["BLOCK"]),)](x, y, out, N)
    torch.testing.assert_close(out, x + y)
    assert tuned.best_config in configs


def check_benchmark() -> None:
    x, y = vectors()
    out = torch.empty_like(x)
    assert triton.testing.do_bench(lambda: add(x, y, out), warmup=1, rep=1) > 0


def check_target() -> None:
    target = driver.active.get_current_target()
    major, minor = cuda.get_device_capability()
    assert (target.backend, target.arch) == ("cuda", major * 10 + minor)
    assert driver.active.get_active_torch_device() == torch.device("cuda", 0)


def check_compiled_stages_and_resources() -> None:
    x, y = vectors()
    compiled = kernels.add[GRID](x, y, torch.empty_like(x), N, BLOCK=BLOCK)
    assert {"ttir", "ttgir", "llir", "ptx", "cubin"} <= set(compiled.asm)
    assert 0 < compiled.n_regs <= 255
    assert compiled.n_spills == 0


def check_operator_in_compiled_code() -> None:
    @torch.library.triton_op("simulated::add", mutates_args={})
    def operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(kernels.add)[GRID](x, y, out, N, BLOCK=BLOCK)
        return out

    x, y = vectors()
    torch.testing.assert_close(operator(x, y), x + y)
    torch.testing.assert_close(torch.compile(lambda: operator(x.sin(), y) * 2)(), (x.sin() + y) * 2)


def check_kernel_in_compiled_code() -> None:
    def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add(x.sin(), y, out)
        return out.cos()

    x, y = vectors()
    for mode in (None, "reduce-overhead"):
        fast = torch.compile(work, mode=mode)
        for _ in range(4):
            torch.testing.assert_close(fast(x, y), (x.sin() + y).cos())


def refusal(work: Callable[[], object], kind: type[Exception] = Exception) -> str:
    try:
        work()
    except kind as error:
        return str(error)
    raise AssertionError(f"nothing was raised, instead of {kind.__name__}")


def check_host_memory_is_refused() -> None:
    x, y = vectors()
    assert "cpu tensor?" in refusal(lambda: add(x.cpu(), y, torch.empty_like(x)), ValueError)
    out = torch.empty_like(x)
    add(x.cpu().pin_memory(), y, out)
    torch.testing.assert_close(out, x + y)


def check_inline_assembly_is_refused_at_the_launch() -> None:
    x = torch.zeros(1, device="cuda")
    text = refusal(lambda: kernels.assembly[(1,)](x), RuntimeError)
    assert "'assembly'" in text
    assert "inline_asm_elementwise" in text
    assert x.item() == 0


def check_an_empty_grid() -> None:
    x, y = vectors()
    out = torch.zeros_like(x)
    kernels.add[(0,)](x, y, out, N, BLOCK=BLOCK)
    assert out.eq(0).all()


def check_a_module_of_kernels_stays_what_it_is() -> None:
    names = set(vars(kernels))
    check_a_kernel_calls_another_function()
    assert set(vars(kernels)) == names
    assert "Cannot call" in refusal(lambda: kernels.plus(1, 2), RuntimeError)


# The last one: the device fails.
def check_z_a_device_assertion() -> None:
    kernels.expect[(1,)](torch.ones(1, device="cuda"))
    cuda.synchronize()
    kernels.expect[(1,)](torch.zeros(1, device="cuda"))
    assert "device-side assert" in refusal(cuda.synchronize)


def run(check: Callable[[], None]) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    check()
    if "assertion" not in check.__name__:
        cuda.synchronize()
