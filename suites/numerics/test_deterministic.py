"""`torch.use_deterministic_algorithms`: what it says, refuses, warns of and fills."""

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
    torch.use_deterministic_algorithms(before > 0, warn_only=before == 1)  # which tells the compiler too
    torch.utils.deterministic.fill_uninitialized_memory = filling


@pytest.mark.parametrize(
    ("mode", "number", "on", "warns"),
    [("default", 0, False, False), ("warn", 1, True, True), ("error", 2, True, False)],
)
def test_use_deterministic_algorithms_and_debug_mode_are_one_setting(
    mode: str, number: int, on: bool, warns: bool
) -> None:
    """Contract: the debug mode, by name or number, and `use_deterministic_algorithms` with `warn_only` are one setting,
    whichever way it is set; another name or number is refused."""
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


@pytest.mark.requires(not_={"device": "soft"})  # which leaves new memory as it is
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.uint8], ids=str)
def test_fill_uninitialized_memory_fills_new_memory(device: torch.device, dtype: torch.dtype) -> None:
    """Contract: with deterministic algorithms and filling on, new memory is filled: with NaN for floating-point types
    and the largest number for whole ones, though tensors of that size full of zeros have just been freed. So is what
    `resize_` and `empty_like` add."""

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


#: Operations that have no deterministic form on CUDA, as torch documents.
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
def test_use_deterministic_algorithms_refuses_what_has_no_such_form(device: torch.device, operation: str) -> None:
    """Contract: on CUDA, an operation without a deterministic form is a RuntimeError that says so, or a warning with
    `warn_only`, and runs silently when nothing is asked."""
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
    found = json.loads(children.run(script + children.AT_ONCE, device).lines()[-1])

    assert found == [False, True, "error"]


@pytest.mark.requires(device="cuda", compute_capability="<9.0")
def test_cublas_workspace_config_is_needed_for_deterministic_products(device: torch.device) -> None:
    """Contract: on a GPU whose cuBLAS is deterministic only with a workspace of a set size, a product is a RuntimeError
    that names CUBLAS_WORKSPACE_CONFIG where that is not set, and works where it is."""
    script = """
import torch
torch.use_deterministic_algorithms(True)
x = torch.ones(8, 8, device=DEVICE)
try:
    print((x @ x).sum().item())
except RuntimeError as error:
    print("CUBLAS_WORKSPACE_CONFIG" in str(error))
"""
    assert children.run(script, device, environ={"CUBLAS_WORKSPACE_CONFIG": ""}).lines()[-1] in ("True", "512.0")
    assert children.run(script, device, environ={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}).lines()[-1] == "512.0"
