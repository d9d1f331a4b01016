"""The first use of a device: what triggers it, and what a forked process may do.

Each case uses a new process, which has not used its device yet. It is a fork if torch may already be imported.
"""

from __future__ import annotations

import pytest
import torch

from .. import children

pytestmark = [pytest.mark.requires(accelerator=True), pytest.mark.own_process, pytest.mark.timeout(150)]

MODULE = "import torch\nmodule = torch.get_device_module(DEVICE)\n"

#: Expressions that must not initialize a device.
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
    """Importing torch, device queries and seeding do not initialize the device; the first tensor does (control)."""
    ended = children.fork(
        f"{MODULE}print(module.is_initialized()); {expression}; print(module.is_initialized())\n"
        "torch.ones(1, device=DEVICE); print(module.is_initialized())",
        device,
    )

    assert ended.lines() == ["False", "False", "True"]


#: CUDA's behavior. The software device has another allocator.
RAISES = pytest.mark.xfail(
    torch.__version__ < (2, 13),
    reason="torch up to 2.12 does not check whether the device was used, and raises: Invalid device argument",
)

#: Queries of a device's memory, as expressions, and their results before its first use.
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


@pytest.mark.requires(caching_allocator=True)
@pytest.mark.parametrize("name", OF_MEMORY)
def test_memory_before_the_first_use_is_none(device: torch.device, name: str, request: pytest.FixtureRequest) -> None:
    """Before the first use of a device, memory statistics are empty, and emptying the cache or resetting has no effect.

    None of these calls initializes the device, which works afterwards. Source: the documentation of `torch.accelerator`
    ("a no-op if the memory allocator … has not been initialized").
    """
    if name.startswith("reset") and device.type == "cuda":
        request.applymarker(RAISES)
    expression, expected = OF_MEMORY[name]
    ended = children.fork(
        f"{MODULE}print({expression}); print(module.is_initialized())\n"
        "x = torch.ones(3, device=DEVICE); print(x.sum().item(), torch.accelerator.memory_allocated() > 0)",
        device,
    )

    assert ended.lines() == [expected, "False", "3.0 True"]


@pytest.mark.covers("test_cuda::TestCuda::test_manual_seed", "test_cuda::TestCuda::test_lazy_init")
def test_manual_seed_before_the_first_use_counts(device: torch.device) -> None:
    """A seed set before the first use has the same effect as a seed set afterwards."""
    script = f"""{MODULE}
torch.manual_seed(11)
before = torch.rand(5, device=DEVICE).tolist()
torch.manual_seed(11)
print(before == torch.rand(5, device=DEVICE).tolist(), module.initial_seed())
"""

    assert children.fork(script, device).lines() == ["True 11"]


@pytest.mark.covers("test_cuda::TestCuda::test_lazy_init")
def test_fork_before_the_first_use_is_allowed(device: torch.device) -> None:
    """A process that has imported torch but not used its device can fork, and parent and child can use the device.

    Each prints its result, and the parent prints the child's exit status.
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

    assert sorted(children.fork(script, device).lines()) == ["child 0", "sum 4.0", "sum 4.0"]


@pytest.mark.requires(refuses_forks=True)
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
    """Using the device raises in a process forked after the first use, without a hang or crash; the parent continues.

    Creating a tensor, the usual first use, raises an error that mentions forking.
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
    said, status, total = children.fork(script, device).lines()[:3]

    assert (status, total) == ("child 7", "sum 8.0")
    assert said == "forked" if use.startswith("torch.ones") else said != "went through"


@pytest.mark.requires(accelerator=True)
@pytest.mark.covers("test_cuda::TestCuda::test_is_pinned_no_context")
def test_is_pinned_makes_no_context(device: torch.device) -> None:
    """`is_pinned` of host memory creates no context, so that a process forked afterwards can use the device."""
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

    assert children.fork(script, device).lines() == ["0"]


@pytest.mark.requires(device="cuda")
@pytest.mark.covers("test_cuda::TestCuda::test_lazy_init", "test_cuda::TestCuda::test_device_count_not_cached_pre_init")
def test_cuda_visible_devices_set_after_the_import_counts() -> None:
    """CUDA_VISIBLE_DEVICES is read at the first use and not at the import, and no earlier count is cached."""
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
    first, hidden, shown, used = map(int, children.run(script + children.AT_ONCE).lines()[0].split())

    assert first >= 1
    assert (hidden, shown, used) == (0, first, first)


@pytest.mark.requires(device="cuda")
@pytest.mark.covers("test_cuda::TestCuda::test_device_count_not_cached_pre_init")
def test_device_count_is_kept_after_the_first_use(device: torch.device) -> None:
    """After the first use, changes to the variable do not change the count, and the device still works."""
    script = """
import os, torch
x = torch.ones(4, device="cuda")
before = torch.cuda.device_count()
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""
print(torch.cuda.device_count() == before, (x + 1).sum().item())
"""

    assert children.fork(script, device).lines() == ["True 8.0"]


@pytest.mark.requires(device="cuda", rocm=False)
@pytest.mark.covers("test_cuda::TestCuda::test_lazy_init")
def test_import_torch_does_not_initialise_the_driver() -> None:
    """The import does not initialize the driver, which returns error 3 (CUDA_ERROR_NOT_INITIALIZED) for a device count.

    After the first use it returns the count (control).
    """
    script = """
import ctypes, torch
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1)
print(driver.cuDeviceGetCount(ctypes.byref(count)))
torch.ones(1, device="cuda")
print(driver.cuDeviceGetCount(ctypes.byref(count)), count.value >= 1)
"""

    assert children.run(script + children.AT_ONCE).lines() == ["3", "0 True"]


@pytest.mark.covers("test_cuda::TestBlockStateAbsorption::test_no_triton_on_import")
def test_import_torch_and_rand_do_not_import_triton(device: torch.device) -> None:
    """Importing torch and drawing random numbers on the device do not import Triton or the compiler."""
    script = """
import sys, torch
torch.rand(2, device=DEVICE)
print(*(name in sys.modules for name in ("torch", "triton", "torch._inductor")))
"""

    assert children.run(script + children.AT_ONCE, device).lines() == ["True False False"]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_children_use_the_device(device: torch.device, method: str) -> None:
    """Processes started by multiprocessing's spawn or forkserver can use the device after the parent has used it."""
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
