"""cuBLAS workspaces: allocator memory that matrix products keep for the life of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from ._torch_private import clear_workspaces
from .answers import ask
from .limits import MIB, settle

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.timeout(300)]

KIB = 1024
#: The side of matrices so small that nearly all of the additional memory is workspace.
SIDE = 64


@pytest.fixture(autouse=True)
def no_workspaces(device: torch.device) -> Iterator[None]:
    """Clear the workspaces before and after the case."""
    clear_workspaces()
    settle(device)
    yield
    clear_workspaces()
    settle(device)


def peak_of(device: torch.device, work: Callable[[], object]) -> int:
    """Return the peak of allocated bytes during `work`, relative to the value before."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


#: Prints the bytes that stay allocated after the first product, and the additional bytes after the second.
PRODUCT = """
torch._C._cuda_clearCublasWorkspaces()
x = torch.ones(64, 64, device=DEVICE)
y = torch.empty(64, 64, device=DEVICE)
before = counter("allocated_bytes")
torch.mm(x, x, out=y)
first = counter("allocated_bytes") - before
torch.mm(x, x, out=y)
second = counter("allocated_bytes") - before
torch._C._cuda_clearCublasWorkspaces()
tell([first, second, counter("allocated_bytes") - before])
"""


@pytest.mark.requires(silicon=True)
@pytest.mark.covers("test_cuda::TestCuda::test_cublas_workspace_explicit_allocation")
@pytest.mark.parametrize(("config", "size"), [(":4096:2:16:8", 8320), (":4096:8", 32768), (":16:8", 128)], ids=str)
@pytest.mark.own_process
def test_cublas_workspace_config_sets_the_size_of_a_workspace(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, config: str, size: int
) -> None:
    """CUBLAS_WORKSPACE_CONFIG (pairs of KiB and a count) determines the memory that the first product allocates.

    Later products allocate no more, and clearing the workspaces frees it.
    """
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    first, second, cleared = ask(PRODUCT, device)

    assert size * KIB <= first <= size * KIB + 2 * MIB
    assert second == first
    assert cleared == 0


@pytest.mark.covers("test_cuda::TestCuda::test_matmul_memory_use")
def test_matmul_of_expanded_matrices_needs_no_copies(device: torch.device) -> None:
    """`matmul` with an expanded matrix needs no more memory than equivalent operations.

    The matrix is not copied per batch.
    """
    a = torch.randn(1, 64, 512, device=device)
    b = torch.randn(512, 64, 512, device=device)
    left = a.expand(512, 64, 512)
    torch.matmul(a[0], b[0].T)

    matmul = peak_of(device, lambda: torch.matmul(left, b.mT))
    broadcast = peak_of(device, lambda: torch.matmul(a, b.mT))
    bmm = peak_of(device, lambda: torch.bmm(left, b.mT))
    output = 512 * 64 * 64 * 4

    assert output <= broadcast
    assert matmul <= bmm
    assert broadcast <= bmm
    assert bmm < output + left.numel() * 4


def has(name: str) -> Callable[..., int]:
    found: Callable[..., int] | None = getattr(torch.backends.cuda, name, None)
    if found is None:
        pytest.skip(f"torch {torch.__version__} has no torch.backends.cuda.{name}")
    return found


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.covers("test_cuda::TestCuda::test_cublas_workspace_size_api")
@pytest.mark.parametrize("name", ["cublas_workspace_size", "cublaslt_workspace_size"])
def test_cublas_workspace_size_can_be_set(name: str) -> None:
    """The workspace size, in bytes, can be set and read; a negative size raises and changes nothing."""
    size = has(name)
    before = size()
    try:
        assert size(3 * MIB) == 3 * MIB
        assert size() == 3 * MIB
        with pytest.raises(RuntimeError, match="non-negative"):
            size(-1)
        assert size() == 3 * MIB
    finally:
        size(before)
    assert size() == before


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.covers("test_cuda::TestCuda::test_blas_workspace_size_api")
@pytest.mark.parametrize("backend", ["cublas", "cublaslt"])
def test_cublas_workspace_size_can_be_set_by_back_end_name(backend: str) -> None:
    """The generic interface sets and returns the same size as the backend's own.

    An unknown backend raises with its name.
    """
    generic, own = has("blas_workspace_size"), has(f"{backend}_workspace_size")
    before = own()
    try:
        assert generic(5 * MIB, backend) == 5 * MIB == own()
        own(6 * MIB)
        assert generic(backend=backend) == 6 * MIB
        with pytest.raises(RuntimeError, match=r"(?i)unknown|choose"):
            generic(backend="no_such_back_end")
    finally:
        own(before)


@pytest.mark.requires(torch=">=2.13", rocm=False)
def test_blas_workspace_size_takes_every_way_to_name_a_back_end() -> None:
    """A name and its value select the same backend; without an argument, the preferred backend is selected.

    CK has no workspace, and all other arguments are refused.
    """
    generic, own, lt = has("blas_workspace_size"), has("cublas_workspace_size"), has("cublaslt_workspace_size")
    before = own(), lt()
    kind = type(torch.backends.cuda.preferred_blas_library())
    try:
        own(5 * MIB)
        lt(3 * MIB)
        for back_end in (None, "default", "cublas", kind.Default, kind.Cublas):
            assert generic(backend=back_end) == 5 * MIB, back_end
        for back_end in ("cublaslt", kind.Cublaslt):
            assert generic(backend=back_end) == 3 * MIB, back_end
        assert generic(7 * MIB) == 7 * MIB == own()
        assert lt() == 3 * MIB
        for wrong in ("ck", kind.Ck, 3):
            with pytest.raises(RuntimeError, match=r"CK|Unknown"):
                generic(1 * MIB, wrong)
        assert (own(), lt()) == (7 * MIB, 3 * MIB)
    finally:
        own(before[0])
        lt(before[1])


@pytest.mark.requires(torch=">=2.13", silicon=True)
@pytest.mark.covers("test_cuda::TestCuda::test_cublas_workspace_lazy_reallocation")
def test_cublas_workspace_size_holds_from_the_next_product(device: torch.device) -> None:
    """Setting a size allocates nothing.

    The next product replaces the workspace with one of that size, and is correct.
    """
    size = has("cublas_workspace_size")
    before = size()
    x = torch.ones(SIDE, SIDE, device=device)
    y = torch.empty(SIDE, SIDE, device=device)
    try:
        size(2 * MIB)
        torch.mm(x, x, out=y)
        small = torch.cuda.memory_allocated(device)
        size(24 * MIB)
        assert torch.cuda.memory_allocated(device) == small
        torch.mm(x, x, out=y)
        large = torch.cuda.memory_allocated(device)
    finally:
        size(before)

    assert 20 * MIB <= large - small <= 26 * MIB
    assert bool((y == SIDE).all())


@pytest.mark.requires(torch=">=2.13", silicon=True)
@pytest.mark.covers("test_cuda::TestCuda::test_cublas_unified_workspace")
@pytest.mark.own_process
def test_cublas_and_cublaslt_share_a_workspace(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the unified workspace, a cuBLASLt product (with a bias) after a cuBLAS one allocates no second workspace."""
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1")
    script = """
torch._C._cuda_clearCublasWorkspaces()
x = torch.ones(64, 64, device=DEVICE)
bias = torch.ones(64, device=DEVICE)
torch.mm(x, x)
first = counter("allocated_bytes")
y = torch.nn.functional.linear(x, x, bias)
torch.cuda.synchronize()
grown = counter("allocated_bytes") - first - y.nbytes
tell([grown, bool((y == 65).all())])
"""
    grown, right = ask(script, device)

    assert grown < MIB
    assert right
