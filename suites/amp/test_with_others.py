"""Autocast with checkpointing, TorchScript, modes, export, recurrent layers and training steps; deprecated names."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from suites import _torch_private_compiled as private
from suites.compiled import KEEPS, KEPT

from ..bfloat16 import BF16_PRODUCTS
from ._torch_private import onednn_lacks_bf16
from .lower import LOWER

pytestmark = pytest.mark.requires(autocast=True)

REENTRANT = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not_reentrant"])
#: TorchScript is deprecated and warns; on Python 3.14 it warns that it is not supported, and works.
SCRIPT_IS_OLD = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is", "ignore:.*torch.jit.trace.* is")


def layers(device: torch.device) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))).to(device)


# ---- checkpoints ----


@pytest.mark.covers("test_cuda::TestCuda::test_autocast_checkpointing")
@LOWER
@REENTRANT
def test_checkpoint_under_autocast_computes_the_same(device: torch.device, dtype: torch.dtype, reentrant: bool) -> None:
    """Checkpointed layers under autocast give the same results and gradients as without checkpoints.

    The layers are recomputed in a backward pass outside the region.
    """
    model = layers(device)
    x = torch.rand(8, 8, device=device, dtype=dtype, requires_grad=True)

    def step(*, checkpointed: bool) -> list[torch.Tensor]:
        model.zero_grad()
        x.grad = None
        with torch.autocast(device.type, dtype=dtype):
            out = checkpoint_sequential(model, 2, x, use_reentrant=reentrant) if checkpointed else model(x)
        assert (out.dtype, out.requires_grad) == (dtype, True)
        out.sum().backward()
        assert x.grad is not None
        return [out.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]

    plain, again = step(checkpointed=False), step(checkpointed=True)

    assert len(plain) == len(again) == 2 + 6
    assert all(map(torch.equal, plain, again))


@LOWER
@REENTRANT
def test_checkpoint_recomputes_in_the_autocast_state_of_the_first_time(
    device: torch.device, dtype: torch.dtype, reentrant: bool
) -> None:
    """The recomputation of a checkpoint runs in the autocast state of its first run, wherever `backward` is called."""
    seen: list[tuple[bool, torch.dtype, bool]] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(
            (
                torch.is_autocast_enabled(device.type),
                torch.get_autocast_dtype(device.type),
                torch.is_autocast_cache_enabled(),
            )
        )
        return (x @ x).float()

    x = torch.rand(4, 4, device=device, requires_grad=True)
    with torch.autocast(device.type, dtype=dtype, cache_enabled=False):
        inside = checkpoint(function, x, use_reentrant=reentrant)
    outside = checkpoint(function, x, use_reentrant=reentrant)
    first = list(seen)
    seen.clear()
    inside.sum().backward()
    with torch.autocast(device.type, dtype=dtype):
        outside.sum().backward()

    assert [found[0] for found in first] == [True, False]
    assert first[0] == (True, dtype, False)
    assert seen[0] == first[0]
    assert seen[1][0] is False


# ---- TorchScript ----


@pytest.mark.keeps("TorchScript keeps every class that it has compiled", host="256KiB")
@SCRIPT_IS_OLD
@pytest.mark.covers("test_cuda::TestCuda::test_autocast_cat_jit")
@LOWER
def test_jit_script_module_runs_under_autocast(device: torch.device, dtype: torch.dtype) -> None:
    """A scripted module gives the eager results under autocast in each run, profiled or optimized."""

    class Joining(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            joined = torch.cat((a, b), 0)
            return torch.stack([joined, joined], 0) @ a.t()

    model = Joining()
    scripted = torch.jit.script(model)
    a, b = (torch.randn(3, 3, device=device) for _ in range(2))

    with torch.autocast(device.type, dtype=dtype):
        expected = model(a, b)
        found = [scripted(a, b) for _ in range(4)]

    assert expected.dtype == dtype
    assert [result.dtype for result in found] == [dtype] * 4
    assert all(torch.equal(result, expected) for result in found)


@SCRIPT_IS_OLD
@LOWER
def test_jit_script_module_after_autocast_is_not_lowered(device: torch.device, dtype: torch.dtype) -> None:
    """A scripted module that has run under autocast uses its inputs' dtype after the region."""
    scripted = torch.jit.script(nn.Linear(3, 3).to(device).eval())
    x = torch.randn(2, 3, device=device)

    with torch.autocast(device.type, dtype=dtype), torch.no_grad():
        inside = scripted(x)
    with torch.no_grad():
        outside = scripted(x)

    assert [inside.dtype, outside.dtype] == [dtype, torch.float32]


# ---- modes of functions, and export ----


class Noting(torch.overrides.TorchFunctionMode):
    """Records the names of the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@LOWER
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_autocast_within_a_mode_of_functions_is_as_without(
    device: torch.device, dtype: torch.dtype, fails: bool
) -> None:
    """Within a `TorchFunctionMode`, a region lowers products, ends, and propagates an exception, as without the mode.

    The mode sees the called functions, and not the region itself.
    """
    a = torch.ones(4, 4, device=device)
    seen: list[torch.dtype] = []
    with Noting() as mode:
        with pytest.raises(KeyError) if fails else nullcontext(), torch.autocast(device.type, dtype=dtype):
            seen.append(torch.mm(a, a).dtype)
            if fails:
                raise KeyError
        seen.append(torch.mm(a, a).dtype)
    assert seen == [dtype, torch.float32]
    assert [name for name in mode.names if name != "__get__"] == ["mm", "mm"]


@pytest.mark.keeps(KEEPS, **KEPT)
@LOWER
def test_export_keeps_the_region_of_autocast(device: torch.device, dtype: torch.dtype) -> None:
    """A program from `torch.export` keeps the regions of its module: each product has the dtype that it had there."""

    class Products(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            before = x @ x
            with torch.autocast(device.type, dtype=dtype):
                within = x @ x
                with torch.autocast(device.type, enabled=False):
                    inner = x @ x
            return before, within, inner, x @ x

    x = torch.arange(9.0, device=device).reshape(3, 3)
    with private.compiler_warnings_ignored():
        program = torch.export.export(Products(), (x,), strict=False).module()
        found = program(x)
    private.reset_compiler()
    assert [each.dtype for each in found] == [torch.float32, dtype, torch.float32, torch.float32]
    assert all(torch.equal(each.float(), (x @ x)) for each in found)
    assert not torch.is_autocast_enabled(device.type)


# ---- recurrent layers ----

RNN = pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])


def outputs(
    result: tuple[torch.Tensor | PackedSequence, torch.Tensor | tuple[torch.Tensor, ...]],
) -> list[torch.Tensor]:
    """Return the tensors in a recurrent layer's result: its outputs and its last state."""
    out, state = result
    return [out.data if isinstance(out, PackedSequence) else out, *(state if isinstance(state, tuple) else [state])]


@pytest.mark.covers("test_cuda::TestCudaAutocast::test_autocast_rnn")
@RNN
@pytest.mark.requires(device="cuda", cudnn=True)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one_way", "both_ways"])
def test_recurrent_layer_under_autocast_equals_float16(
    device: torch.device, kind: str, packed: bool, bidirectional: bool
) -> None:
    """A recurrent layer under autocast gives the results and gradients of the same layer in float16.

    The tolerance is 1e-3, twice float16's rounding at the outputs' size, because cuDNN may choose another algorithm for
    the repacked weights.
    """
    layer = getattr(nn, kind)(16, 16, num_layers=2, bidirectional=bidirectional).to(device)
    half = getattr(nn, kind)(16, 16, num_layers=2, bidirectional=bidirectional).to(device)
    half.load_state_dict(layer.state_dict())
    half = half.half()
    x = torch.randn(5, 3, 16, device=device)

    def given(data: torch.Tensor) -> torch.Tensor | PackedSequence:
        return pack_padded_sequence(data, torch.tensor([5, 4, 2])) if packed else data

    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        with torch.autocast(device.type, dtype=torch.float16):
            found = outputs(layer(given(x)))
        expected = outputs(half(given(x.half())))
        found[0].float().sum().backward()
        expected[0].float().sum().backward()

    assert [result.dtype for result in found] == [torch.float16] * len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    for one, other in zip(layer.parameters(), half.parameters(), strict=True):
        assert one.grad is not None
        assert one.grad.dtype == torch.float32
        # Sums of 15 such terms.
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-2, atol=1.5e-2, check_dtype=False)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("RNN", marks=pytest.mark.requires(not_={"device": "cuda"})),
        # On an accelerator, these have fused cells.
        pytest.param("GRU", marks=pytest.mark.requires(accelerator=False)),
        pytest.param(
            "LSTM",
            marks=[
                pytest.mark.requires(accelerator=False),
                pytest.mark.xfail(
                    onednn_lacks_bf16(),
                    raises=RuntimeError,
                    reason="torch passes BF16 LSTMs to oneDNN on every processor, and oneDNN has none without "
                    "AVX-512 (seen with 2.11, 2.13 and 2.15)",
                ),
            ],
        ),
    ],
)
@BF16_PRODUCTS
def test_recurrent_layer_under_autocast_without_cudnn_gives_the_lower_type(device: torch.device, kind: str) -> None:
    """Without cuDNN, a recurrent layer consists of operations that autocast handles.

    Its results are finite and within 0.05 of float32 (eight bits are about 0.004 at 1, over 5 steps of 2 layers), and
    its float32 parameters get float32 gradients.
    """
    layer = getattr(nn, kind)(8, 8, num_layers=2).to(device)
    x = torch.randn(5, 3, 8, device=device)

    expected = outputs(layer(x))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        found = outputs(layer(x))
    found[0].float().sum().backward()

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0.05, check_dtype=False)
    assert not all(map(torch.equal, found, expected)), "nothing ran in lower precision"
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32


@pytest.mark.covers("test_cuda::TestCudaAutocast::test_rnn_packed_sequence_batch_sizes_must_be_cpu")
@pytest.mark.requires(device="cuda", cudnn=True)
@RNN
def test_packed_sequence_refuses_batch_sizes_on_the_device_under_autocast(device: torch.device, kind: str) -> None:
    """A packed sequence with batch sizes on the device raises RuntimeError, with and without autocast."""
    layer = getattr(nn, kind)(4, 4).to(device)
    good = pack_padded_sequence(torch.randn(3, 2, 4, device=device), torch.tensor([3, 2]))
    data, sizes = good.data, good.batch_sizes

    def run(batch_sizes: torch.Tensor) -> torch.Tensor:
        states = torch.zeros(1, 2, 4, device=device)
        state = (states, states) if kind == "LSTM" else states
        function = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}[kind]
        flat = list(layer.parameters())
        result: torch.Tensor = function(data, batch_sizes, state, flat, True, 1, 0.0, False, False)[0]
        return result

    for autocast in (False, True):
        with torch.autocast(device.type, dtype=torch.float16, enabled=autocast):
            assert run(sizes).isfinite().all()
            with pytest.raises(RuntimeError, match=r"(?i)batch_sizes|cpu"):
                run(sizes.to(device))


# ---- a whole training run ----


@LOWER
def test_autocast_training_is_close_to_float32(device: torch.device, dtype: torch.dtype) -> None:
    """Twenty training steps under autocast reduce the loss as far as in float32, within a tenth of the reduction.

    Weights and their updates stay in float32, so forward errors do not accumulate.
    """

    def train(*, autocast: bool) -> tuple[float, float]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(32, 4).to(device)
        target = x.sum(1, keepdim=True).tanh()
        losses: list[float] = []
        for _ in range(20):
            optimiser.zero_grad()
            with torch.autocast(device.type, dtype=dtype, enabled=autocast):
                loss = nn.functional.mse_loss(model(x), target)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            assert loss.dtype == torch.float32
        return losses[0], losses[-1]

    first, last = train(autocast=False)
    lowered_first, lowered_last = train(autocast=True)

    assert last < first / 2
    assert (lowered_first, lowered_last) != (first, last), "nothing ran in lower precision"
    assert abs(lowered_last - last) < (first - last) / 10


# ---- deprecated names ----


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_autocast_deprecated_warning")
@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize(("module", "of"), [(torch.cuda.amp, "cuda"), (torch.cpu.amp, "cpu")], ids=["cuda", "cpu"])
def test_autocast_old_names_warn_and_work(module: object, of: str) -> None:
    """The deprecated `autocast` names work, with a FutureWarning that names the replacement."""
    with pytest.warns(FutureWarning, match=rf"torch\.{of}\.amp\.autocast.*torch\.amp\.autocast\('{of}'"):
        region = module.autocast()  # type: ignore[attr-defined]
    assert isinstance(region, torch.autocast)

    with region:
        there = torch.is_autocast_enabled(of)
        if of == "cpu":
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert there == (of == "cpu" or torch.cuda.is_available())
    assert not torch.is_autocast_enabled(of)


@pytest.mark.requires(device="cpu", not_={"device": "cuda"})
def test_autocast_for_cuda_without_a_gpu_warns_and_is_off() -> None:
    """Without a GPU, a region for CUDA warns that it is disabled, and has no effect."""
    with pytest.warns(UserWarning, match="CUDA is not available"):
        region = torch.autocast("cuda")

    with region:
        assert not torch.is_autocast_enabled("cuda")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
