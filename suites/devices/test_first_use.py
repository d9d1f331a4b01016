"""When a device is first touched, by what, and what a process that was forked then may do.

Each is asked in a process of its own, which has not used its device yet.
"""

from __future__ import annotations

import pytest
import torch

from .. import children

pytestmark = [pytest.mark.requires(accelerator=True), pytest.mark.timeout(150)]

MODULE = "import torch\nmodule = torch.get_device_module(DEVICE)\n"

#: What must not wake a device, as expressions.
ASKING = {
    "available": "torch.accelerator.is_available()",
    "count": "torch.accelerator.device_count()",
    "current_accelerator": "torch.accelerator.current_accelerator(check_available=True)",
    "module_available": "module.is_available()",
    "module_count": "module.device_count()",
    "seed": "torch.manual_seed(3)",
    "seed_all": "module.manual_seed_all(3)",
    "pinned": "torch.ones(1).is_pinned()",
    "device": "torch.device(DEVICE)",
    "meta": "torch.empty(3, device='meta').to('meta')",
}


@pytest.mark.covers("test_cuda::TestCuda::test_lazy_init")
@pytest.mark.parametrize("expression", ASKING.values(), ids=ASKING.keys())
def test_is_initialized_stays_false_until_the_first_tensor(device: torch.device, expression: str) -> None:
    """Contract: importing torch, asking about devices and seeding them for later leave the device uninitialised; the
    first tensor on it initialises it (the control)."""
    ended = children.run(
        f"{MODULE}print(module.is_initialized()); {expression}; print(module.is_initialized())\n"
        "torch.ones(1, device=DEVICE); print(module.is_initialized())",
        device,
    )

    assert ended.lines() == ["False", "False", "True"]


#: What CUDA does; the software device has an allocator of its own.
RAISES = pytest.mark.xfail(
    torch.__version__ < (2, 13),
    reason="torch up to 2.12 does not ask whether the device was used, and raises: Invalid device argument",
)

#: What is asked of the memory of a device, as expressions, and the answers before it is first used.
OF_MEMORY = {
    "memory_stats": ("dict(torch.accelerator.memory_stats())", "{}"),
    "memory_allocated": ("torch.accelerator.memory_allocated()", "0"),
    "max_memory_allocated": ("torch.accelerator.max_memory_allocated()", "0"),
    "memory_reserved": ("torch.accelerator.memory_reserved()", "0"),
    "max_memory_reserved": ("torch.accelerator.max_memory_reserved()", "0"),
    "empty_cache": ("torch.accelerator.empty_cache()", "None"),
    "reset_peak_memory_stats": ("torch.accelerator.reset_peak_memory_stats()", "None"),
    "reset_accumulated_memory_stats": ("torch.accelerator.reset_accumulated_memory_stats()", "None"),
}


@pytest.mark.parametrize("name", OF_MEMORY)
def test_memory_before_the_first_use_is_none(device: torch.device, name: str, request: pytest.FixtureRequest) -> None:
    """Contract: before the device is first used there are no statistics of its memory and no bytes; to empty its cache
    or to reset its statistics does nothing. None of this uses the device, which works afterwards.

    Source: the documentation of `torch.accelerator` ("a no-op if the memory allocator … has not been initialized").
    """
    if name.startswith("reset") and device.type == "cuda":
        request.applymarker(RAISES)
    expression, expected = OF_MEMORY[name]
    ended = children.run(
        f"{MODULE}print({expression}); print(module.is_initialized())\n"
        "x = torch.ones(3, device=DEVICE); print(x.sum().item(), torch.accelerator.memory_allocated() > 0)",
        device,
    )

    assert ended.lines() == [expected, "False", "3.0 True"]


@pytest.mark.covers("test_cuda::TestCuda::test_manual_seed", "test_cuda::TestCuda::test_lazy_init")
def test_manual_seed_before_the_first_use_counts(device: torch.device) -> None:
    """Contract: what was seeded before the device was first used is what it then draws from: as if seeded after."""
    script = f"""{MODULE}
torch.manual_seed(11)
before = torch.rand(5, device=DEVICE).tolist()
torch.manual_seed(11)
print(before == torch.rand(5, device=DEVICE).tolist(), module.initial_seed())
"""

    assert children.run(script, device).lines() == ["True 11"]


@pytest.mark.covers("test_cuda::TestCuda::test_lazy_init")
def test_fork_before_the_first_use_is_allowed(device: torch.device) -> None:
    """Contract: a process that has imported torch and not used its device can fork, and parent and child both use it.

    Each prints what it computed, and the parent the child's exit status.
    """
    script = """
import os, torch
child = os.fork()
total = torch.ones(4, device=DEVICE).sum().item()
os.write(1, f"sum {total}\\n".encode())  # in one piece: the other process writes to the same pipe
if child:
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    torch.accelerator.synchronize()
    os._exit(0)
"""

    assert sorted(children.run(script, device).lines()) == ["child 0", "sum 4.0", "sum 4.0"]


@pytest.mark.parametrize(
    "use",
    [
        "torch.ones(2, device=DEVICE)",
        "x + x",
        "x.cpu()",
        "torch.accelerator.synchronize()",
        "torch.accelerator.current_stream().synchronize()",
    ],
    ids=["make", "compute", "copy", "synchronize", "stream"],
)
def test_fork_after_the_first_use_is_an_error_in_the_child(device: torch.device, use: str) -> None:
    """Contract: in a process forked from one that has used its device, using it is an error, not a hang or a crash;
    the parent goes on as if nothing had been.

    To make a tensor, the usual first use, must be told with a word of forking.
    """
    script = f"""
import os, torch
x = torch.ones(4, device=DEVICE)
torch.accelerator.synchronize()
child = os.fork()
if not child:
    try:
        {use}
        print("went through", flush=True)
    except RuntimeError as error:
        print("forked" if "fork" in str(error) else "refused", flush=True)
    finally:
        os._exit(7)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("sum", (x + x).sum().item())
"""
    said, status, total = children.run(script, device).lines()[:3]

    assert (status, total) == ("child 7", "sum 8.0")
    assert said == "forked" if use.startswith("torch.ones") else said != "went through"


@pytest.mark.requires(device="cuda")
@pytest.mark.covers("test_cuda::TestCuda::test_is_pinned_no_context")
def test_is_pinned_makes_no_context(device: torch.device) -> None:
    """Contract: `is_pinned` of host memory does not create the context that would forbid a fork: the child uses the
    device after both have asked."""
    script = """
import os, torch
torch.ones(3).is_pinned()
child = os.fork()
if not child:
    status = 1
    try:
        status = 0 if torch.ones(3, device=DEVICE).sum().item() == 3 else 2
    finally:
        os._exit(status)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

    assert children.run(script, device).lines() == ["0"]


@pytest.mark.requires(device="cuda")
@pytest.mark.covers("test_cuda::TestCuda::test_lazy_init", "test_cuda::TestCuda::test_device_count_not_cached_pre_init")
def test_cuda_visible_devices_set_after_the_import_counts() -> None:
    """Contract: what is visible is decided at the first use, not by the import: a variable set in between counts, and
    the count is not kept from before."""
    script = """
import os, torch
name = "HIP_VISIBLE_DEVICES" if torch.version.hip else "CUDA_VISIBLE_DEVICES"
shown = os.environ.get(name)
counts = [torch.cuda.device_count()]
os.environ[name] = ""
counts.append(torch.cuda.device_count())
if shown is None:
    del os.environ[name]
else:
    os.environ[name] = shown
counts.append(torch.cuda.device_count())
torch.empty(10, device="cuda")
counts.append(torch.cuda.device_count())
print(*counts)
"""
    first, hidden, shown, used = map(int, children.run(script).lines()[0].split())

    assert first >= 1
    assert (hidden, shown, used) == (0, first, first)


@pytest.mark.requires(device="cuda")
@pytest.mark.covers("test_cuda::TestCuda::test_device_count_not_cached_pre_init")
def test_device_count_is_kept_after_the_first_use() -> None:
    """Contract: after the first use what is visible can no longer change: hiding everything then changes no count, and
    the device works."""
    script = """
import os, torch
x = torch.ones(4, device="cuda")
before = torch.cuda.device_count()
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""
print(torch.cuda.device_count() == before, (x + 1).sum().item())
"""

    assert children.run(script).lines() == ["True 8.0"]


@pytest.mark.requires(device="cuda", rocm=False)
@pytest.mark.covers("test_cuda::TestCuda::test_lazy_init")
def test_import_torch_does_not_initialise_the_driver() -> None:
    """Contract: the driver is not initialised by the import: asked for its devices it says so (3,
    CUDA_ERROR_NOT_INITIALIZED), and after the first use it counts them (the control)."""
    script = """
import ctypes, torch
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1)
print(driver.cuDeviceGetCount(ctypes.byref(count)))
torch.ones(1, device="cuda")
print(driver.cuDeviceGetCount(ctypes.byref(count)), count.value >= 1)
"""

    assert children.run(script).lines() == ["3", "0 True"]


@pytest.mark.covers("test_cuda::TestBlockStateAbsorption::test_no_triton_on_import")
def test_import_torch_and_rand_do_not_import_triton(device: torch.device) -> None:
    """Contract: importing torch and drawing on the device does not bring in Triton, nor the compiler."""
    script = """
import sys, torch
torch.rand(2, device=DEVICE)
print(*(name in sys.modules for name in ("torch", "triton", "torch._inductor")))
"""

    assert children.run(script, device).lines() == ["True False False"]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_children_use_the_device(device: torch.device, method: str) -> None:
    """Contract: processes that multiprocessing starts anew may use the device although the parent has used it."""
    use = children.bring(device) + "import torch\nprint(torch.ones(4, device=DEVICE).sum().item(), flush=True)"
    script = f"""
import multiprocessing, torch
def main():
    torch.ones(1, device=DEVICE)
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        pool.apply(exec, ({use!r},))
    print((torch.ones(4, device=DEVICE) * 2).sum().item())
main()
"""

    assert children.run(script, device).lines() == ["4.0", "8.0"]
