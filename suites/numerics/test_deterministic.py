"""`torch.use_deterministic_algorithms`: state, errors, warnings and memory filling."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from suites import children


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_deterministic_debug_mode()
    filling = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(before > 0, warn_only=before == 1)  # also sets the compiler's state
    torch.utils.deterministic.fill_uninitialized_memory = filling


@pytest.mark.parametrize(
    ("mode", "number", "on", "warns"),
    [("default", 0, False, False), ("warn", 1, True, True), ("error", 2, True, False)],
)
def test_use_deterministic_algorithms_and_debug_mode_are_one_setting(
    mode: str, number: int, on: bool, warns: bool
) -> None:
    """`set_deterministic_debug_mode` and `use_deterministic_algorithms` set the same state; invalid modes raise."""
    for before in {0, 1, 2} - {number}:
        for value in (mode, number):
            torch.set_deterministic_debug_mode(before)
            torch.set_deterministic_debug_mode(value)
            assert torch.get_deterministic_debug_mode() == number
            assert torch.are_deterministic_algorithms_enabled() == on
            assert torch.is_deterministic_algorithms_warn_only_enabled() == warns
        torch.set_deterministic_debug_mode(before)
        torch.use_deterministic_algorithms(on, warn_only=warns)
        assert torch.get_deterministic_debug_mode() == number
        assert torch.are_deterministic_algorithms_enabled() == on
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warns

    with pytest.raises(RuntimeError, match="invalid value"):
        torch.set_deterministic_debug_mode("often")
    with pytest.raises(RuntimeError, match="invalid value"):
        torch.set_deterministic_debug_mode(3)


@pytest.mark.requires(not_={"device": "soft"})  # leaves new memory uninitialized
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.uint8], ids=str)
def test_fill_uninitialized_memory_fills_new_memory(device: torch.device, dtype: torch.dtype) -> None:
    """With deterministic algorithms and filling enabled, new memory is filled with NaN or the largest integer.

    Freed tensors of zeros of the same size precede. Memory added by `resize_` and `empty_like` is filled too.
    """

    def is_filled(x: torch.Tensor) -> bool:
        if dtype.is_floating_point:
            return bool(x.isnan().all())
        return bool((x == torch.iinfo(dtype).max).all())

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    for _ in range(3):
        x = torch.empty(1000, dtype=dtype, device=device)
        assert is_filled(x)
        x.zero_()
        del x
    assert is_filled(torch.empty_like(torch.zeros(10, dtype=dtype, device=device)))
    assert is_filled(torch.empty_strided((4, 3), (1, 4), dtype=dtype, device=device))
    grown = torch.zeros(5, dtype=dtype, device=device).resize_(20)
    assert (grown[:5] == 0).all()
    assert is_filled(grown[5:])


#: Operations without a deterministic implementation on CUDA, as documented by torch.
NONE_ON_CUDA = {
    "avg_pool3d_backward": "torch.nn.functional.avg_pool3d(x.view(1, 1, 4, 4, 4), 2).sum().backward()",
    "adaptive_avg_pool2d_backward": "torch.nn.functional.adaptive_avg_pool2d(x.view(1, 1, 8, 8), 3).sum().backward()",
    "reflection_pad1d_backward": "torch.nn.functional.pad(x.view(1, 1, 64), (2, 2), mode='reflect').sum().backward()",
    "histc": "x.detach().histc(4)",
    "ctc_loss_backward": (
        "torch.nn.functional.ctc_loss(x.view(4, 4, 4).log_softmax(2), torch.ones(4, 2, dtype=torch.long,"
        " device=x.device), torch.full((4,), 4), torch.full((4,), 2)).backward()"
    ),
}


@pytest.mark.requires(device="cuda")
@pytest.mark.parametrize("operation", NONE_ON_CUDA)
@pytest.mark.own_process
def test_use_deterministic_algorithms_refuses_nondeterministic_operations(device: torch.device, operation: str) -> None:
    """On CUDA, an operation without a deterministic implementation raises, or warns with `warn_only`.

    By default it runs.
    """
    script = f"""
import json, warnings
import torch
told = []
for mode in ("default", "warn", "error"):
    torch.set_deterministic_debug_mode(mode)
    x = torch.rand(64, device=DEVICE, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            {NONE_ON_CUDA[operation]}
            torch.cuda.synchronize()
            told.append(any("deterministic" in str(warning.message) for warning in caught))
        except RuntimeError as error:
            told.append("deterministic" in str(error) and "error")
print(json.dumps(told))
"""
    found = json.loads(children.fork(script + children.AT_ONCE, device).lines()[-1])

    assert found == [False, True, "error"]


@pytest.mark.requires(device="cuda", compute_capability="<9.0")
@pytest.mark.own_process
def test_cublas_workspace_config_is_needed_for_deterministic_products(device: torch.device) -> None:
    """A product raises without CUBLAS_WORKSPACE_CONFIG, if cuBLAS is deterministic only with a configured workspace.

    The error names the variable, and the product works if the variable is set.
    """
    script = """
import torch
torch.use_deterministic_algorithms(True)
x = torch.ones(8, 8, device=DEVICE)
try:
    print((x @ x).sum().item())
except RuntimeError as error:
    print("CUBLAS_WORKSPACE_CONFIG" in str(error))
"""
    assert children.fork(script, device, environ={"CUBLAS_WORKSPACE_CONFIG": ""}).lines()[-1] in ("True", "512.0")
    assert children.fork(script, device, environ={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}).lines()[-1] == "512.0"
