"""A program of checks for simulated devices (see `checks`): each check launches kernels of Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.runtime import driver

from tests.sim.simcuda import gluon_kernels
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


def tuned(*blocks: int, warps: int = 4, **options: Any) -> Any:
    hooks = options.pop("hooks", {})
    configs = [triton.Config({"BLOCK": block}, num_warps=warps, pre_hook=hooks.get(block)) for block in blocks]
    return triton.autotune(configs=configs, key=["n"], **options)(kernels.increase)


def tuned_grid(meta: dict[str, int]) -> tuple[int]:
    return (triton.cdiv(N, meta["BLOCK"]),)


def check_autotune_takes_the_first_configuration_that_runs() -> None:
    for blocks in ((64, 128, 256), (256, 128, 64)):
        kernel = tuned(*blocks)
        kernel[tuned_grid](torch.zeros(N, device="cuda"), N)
        assert kernel.best_config.kwargs == {"BLOCK": blocks[0]}
    too_many = triton.Config({"BLOCK": 64}, num_warps=64)
    works = triton.Config({"BLOCK": 64}, num_warps=2)
    kernel = triton.autotune(configs=[too_many, works], key=["n"])(kernels.increase)
    kernel[tuned_grid](torch.zeros(N, device="cuda"), N)
    assert kernel.best_config is works


def check_autotune_with_pruning() -> None:
    def early(configs: list[Any], arguments: dict[str, Any], **_: Any) -> list[Any]:
        assert arguments["n"] == N
        return [config for config in configs if config.kwargs["BLOCK"] > 64]

    kernel = tuned(64, 128, 256, prune_configs_by={"early_config_prune": early})
    kernel[tuned_grid](torch.zeros(N, device="cuda"), N)
    assert kernel.best_config.kwargs == {"BLOCK": 128}

    def model(BLOCK: int, **_: Any) -> float:  # noqa: N803
        return {64: 3.0, 128: 2.0, 256: 1.0}[BLOCK]

    kernel = tuned(64, 128, 256, prune_configs_by={"perf_model": model, "top_k": 2})
    kernel[tuned_grid](torch.zeros(N, device="cuda"), N)
    assert [config.kwargs["BLOCK"] for config in kernel.configs_timings] == [256, 128]
    assert kernel.best_config.kwargs == {"BLOCK": 256}


def check_autotune_resets_and_restores() -> None:
    """Each trial begins with the values before it, and the last launch counts alone."""
    x = torch.full((N,), 5.0, device="cuda")
    tuned(64, 128, 256, reset_to_zero=["x"])[tuned_grid](x, N)
    assert x.eq(1).all()
    x.fill_(5)
    tuned(64, 128, 256, restore_value=["x"])[tuned_grid](x, N)
    assert x.eq(6).all()
    x.fill_(5)
    tuned(64, 128, 256)[tuned_grid](x, N)
    assert x.eq(9).all()  # three trials and a launch


def check_autotune_calls_its_hooks() -> None:
    called = []
    hooks = {block: lambda arguments: called.append(arguments["BLOCK"]) for block in (64, 128)}
    x = torch.zeros(N, device="cuda")
    tuned(64, 128, hooks=hooks)[tuned_grid](x, N)
    assert called == [64, 128, 64]  # trials, and the launch
    called.clear()

    def before(arguments: dict[str, Any], reset_only: bool = False) -> None:
        called.append(("before", arguments["BLOCK"], reset_only))

    def after(arguments: dict[str, Any], exception: Exception | None) -> None:
        called.append(("after", arguments["BLOCK"], exception))

    tuned(64, 128, pre_hook=before, post_hook=after)[tuned_grid](x, N)
    trials = [(name, block, last) for block in (64, 128) for name, last in (("before", False), ("after", None))]
    assert called == [*trials, ("before", 64, True)]


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


def check_limits_of_a_launch() -> None:
    x = torch.zeros(N, device="cuda")
    for grid in ((1, 65536), (1, 1, 65536), (2**31,)):
        text = refusal(lambda: kernels.increase[grid](x, 0, BLOCK=16), RuntimeError)  # noqa: B023
        assert text.startswith("Triton Error [CUDA]: invalid argument (the simulated CUDA: a grid of (")
    text = refusal(lambda: kernels.increase[GRID](x, N, BLOCK=BLOCK, num_warps=64))
    assert "threads" in text
    assert "Hardware limit: 1024" in text
    big = torch.zeros(512 * 512, device="cuda")
    assert "shared memory" in refusal(lambda: kernels.share[(1,)](big, SIZE=256))
    assert x.eq(0).all()


def check_a_cooperative_launch_must_fit_the_device() -> None:
    x, most = torch.zeros(16, device="cuda"), 2 * cuda.get_device_properties().multi_processor_count
    options = {"BLOCK": 16, "num_warps": 32, "launch_cooperative_grid": True}
    kernels.increase[(most,)](x, 16, **options)
    text = refusal(lambda: kernels.increase[(most + 1,)](x, 16, **options), RuntimeError)
    assert text == (
        f"Triton Error [CUDA]: too many blocks in cooperative launch (the simulated CUDA: {most + 1}, at most {most})"
    )
    kernels.increase[(most + 1,)](x, 0, BLOCK=16, num_warps=32)
    assert x.eq(1).all()


def check_sizes_of_the_block() -> None:
    out = torch.zeros(2, dtype=torch.int32, device="cuda")
    for warps in (1, 8):
        kernels.sizes[(1,)](out, num_warps=warps)
        assert out.tolist() == [32 * warps, warps]


def check_what_the_interpreter_does_not_have_is_refused_at_the_launch() -> None:
    x = torch.zeros(64, device="cuda")
    small = torch.zeros(32, 32, device="cuda", dtype=torch.float8_e5m2)
    scale, out = torch.zeros(32, device="cuda", dtype=torch.uint8), torch.zeros(32, 32, device="cuda")
    triton.set_allocator(lambda size, *_: torch.empty(size, device="cuda", dtype=torch.int8))
    uses: dict[str, tuple[Callable[[], object], str]] = {
        "scaled": (lambda: kernels.scaled[(1,)](small, small, scale, out), "dot_scaled"),
        "mapped": (lambda: kernels.mapped[(1,)](x), "map_elementwise"),
        "describe": (lambda: kernels.describe[(1,)](x), "an atomic operation of a tensor descriptor"),
        "add_in_bfloat16": (lambda: kernels.add_in_bfloat16[(1,)](x.bfloat16()), "an atomic operation in bfloat16"),
        "now": (lambda: kernels.now[(1,)](x), "inline_asm_elementwise"),
        "grown": (lambda: gluon_kernels.grown[(1,)](x), "Gluon"),
    }
    for name, (work, what) in uses.items():
        assert refusal(work, RuntimeError) == (
            f"the simulated CUDA cannot run the kernel {name!r} of Triton: it uses {what}, which Triton's interpreter "
            "does not have; run it on a GPU"
        )
    cuda.synchronize()  # the device has not failed


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
