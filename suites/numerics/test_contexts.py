"""Contexts restore the previous setting: at the end of the block, after an exception, and when nested.

Each context is entered twice, with two settings that both differ from the default. A context that restores the default,
or that only restores at the end of a block, therefore fails.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize

from ..compiled import KEEPS, KEPT
from ._torch_private import get_sdp_priority_order

# `mkldnn.flags` sets by default what only Intel's GPUs have.
pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")

B = torch.backends
Context = AbstractContextManager[Any]


class Setting(NamedTuple):
    """Two ways to enter a context, and the value that `read` returns within each. `read` gets the kind of device."""

    first: Callable[[], Context]
    second: Callable[[], Context]
    read: Callable[[], object]
    within: tuple[object, object]


class InterruptedBlockError(Exception):
    """Leaves a block."""


def autocast(kind: str = "cpu") -> tuple[object, ...]:
    return (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())


def grad_modes() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def backends_of_attention() -> tuple[bool, ...]:
    return (
        B.cuda.flash_sdp_enabled(),
        B.cuda.mem_efficient_sdp_enabled(),
        B.cuda.math_sdp_enabled(),
        B.cuda.cudnn_sdp_enabled(),
    )


def draws() -> float:
    """Return the next random number without changing the generator."""
    return torch.rand((), generator=torch.Generator().set_state(torch.get_rng_state())).item()


def saves() -> object:
    """Return the gradient of x * x at 3, which is computed from saved tensors, so that the block's hooks change it."""
    x = torch.tensor(3.0, requires_grad=True)
    try:
        y = x * x
    except RuntimeError as error:
        return str(error)
    return torch.autograd.grad(y, x)[0].item()


def packed(factor: float) -> Context:
    return torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * factor, lambda saved: saved)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def drawn_after(seed: int) -> float:
    return torch.rand((), generator=torch.Generator().manual_seed(seed)).item()


def mapped() -> object:
    return torch.serialization.get_default_mmap_options()


def safe() -> list[object]:
    return list(torch.serialization.get_safe_globals())


class One:
    """A class that may be loaded."""


class Two:
    """Another class that may be loaded."""


partial = functools.partial
SETTINGS: dict[str, Setting] = {
    "no_grad": Setting(torch.no_grad, torch.enable_grad, grad_modes, ((False, False), (True, False))),
    "enable_grad": Setting(torch.no_grad, torch.enable_grad, grad_modes, ((False, False), (True, False))),
    "set_grad_enabled": Setting(
        partial(torch.set_grad_enabled, False),
        partial(torch.set_grad_enabled, True),
        grad_modes,
        ((False, False), (True, False)),
    ),
    "inference_mode": Setting(
        torch.inference_mode, partial(torch.inference_mode, False), grad_modes, ((False, True), (True, False))
    ),
    "detect_anomaly": Setting(
        partial(torch.autograd.set_detect_anomaly, True, check_nan=False),
        partial(torch.autograd.set_detect_anomaly, False),
        anomaly,
        ((True, False), (False, True)),
    ),
    "autocast": Setting(
        partial(torch.autocast, "cpu", torch.float16, cache_enabled=False),
        partial(torch.autocast, "cpu", torch.bfloat16, enabled=False, cache_enabled=True),
        autocast,
        ((True, torch.float16, False), (False, torch.bfloat16, True)),
    ),
    "saved_tensors_hooks": Setting(partial(packed, 2.0), partial(packed, 5.0), saves, (12.0, 30.0)),
    "disable_saved_tensors_hooks": Setting(
        partial(torch.autograd.graph.disable_saved_tensors_hooks, "first"),
        partial(torch.autograd.graph.disable_saved_tensors_hooks, "second"),
        lambda: hooks_refused(),
        ("first", "second"),
    ),
    "fork_rng": Setting(partial(seeded, 3), partial(seeded, 4), draws, (drawn_after(3), drawn_after(4))),
    "default_device": Setting(
        lambda: torch.device("meta"),
        lambda: torch.device("cpu"),
        lambda: torch.empty(()).device.type,
        ("meta", "cpu"),
    ),
    "check_sparse_tensor_invariants": Setting(
        partial(torch.sparse.check_sparse_tensor_invariants, True),
        partial(torch.sparse.check_sparse_tensor_invariants, False),
        lambda: torch.sparse.check_sparse_tensor_invariants.is_enabled(),
        (True, False),
    ),
    "cudnn.flags": Setting(
        partial(B.cudnn.flags, enabled=False, benchmark=True, deterministic=True),
        partial(B.cudnn.flags, enabled=True, benchmark=False, deterministic=False),
        lambda: (B.cudnn.enabled, B.cudnn.benchmark, B.cudnn.deterministic),
        ((False, True, True), (True, False, False)),
    ),
    "cudnn.flags_defaults": Setting(
        partial(B.cudnn.flags, enabled=True, benchmark=True, deterministic=True, allow_tf32=False),
        B.cudnn.flags,
        lambda: (B.cudnn.enabled, B.cudnn.benchmark, B.cudnn.deterministic, B.cudnn.allow_tf32),
        ((True, True, True, False), (False, False, False, True)),
    ),
    "mkldnn.flags": Setting(
        partial(B.mkldnn.flags, enabled=False, deterministic=True),
        partial(B.mkldnn.flags, enabled=True, deterministic=False),
        lambda: (B.mkldnn.enabled, B.mkldnn.deterministic),
        ((False, True), (True, False)),
    ),
    "nnpack.flags": Setting(
        partial(B.nnpack.flags, True),
        partial(B.nnpack.flags, False),
        lambda: nnpack_is_on(),
        (True, False),
    ),
    "sdpa_kernel": Setting(
        partial(sdpa_kernel, [SDPBackend.FLASH_ATTENTION]),
        partial(sdpa_kernel, [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]),
        backends_of_attention,
        ((True, False, False, False), (False, True, False, True)),
    ),
    "sdpa_kernel_of_one": Setting(
        partial(sdpa_kernel, SDPBackend.MATH),
        partial(sdpa_kernel, SDPBackend.CUDNN_ATTENTION),
        backends_of_attention,
        ((False, False, True, False), (False, False, False, True)),
    ),
    "set_default_mmap_options": Setting(
        partial(torch.serialization.set_default_mmap_options, mmap.MAP_SHARED),
        partial(torch.serialization.set_default_mmap_options, mmap.MAP_PRIVATE),
        mapped,
        (mmap.MAP_SHARED, mmap.MAP_PRIVATE),
    ),
    "safe_globals": Setting(
        partial(torch.serialization.safe_globals, [One]),
        partial(torch.serialization.safe_globals, [Two]),
        lambda: (One in safe(), Two in safe()),
        ((True, False), (True, True)),
    ),
}


def nnpack_is_on() -> bool:
    before: bool = B.nnpack.set_flags(False)[0]
    B.nnpack.set_flags(before)
    return before


def hooks_refused() -> str:
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
            return ""
    except RuntimeError as error:
        return str(error)


@pytest.fixture
def setting(request: pytest.FixtureRequest) -> Setting:
    found: Setting = SETTINGS[request.param]
    return found


NAMES = pytest.mark.parametrize("setting", SETTINGS, indirect=True)


@NAMES
def test_contexts_restore_what_the_block_around_has_set(setting: Setting) -> None:
    """Each block has its own setting; its end restores the outer block's setting, or the original one."""
    before = setting.read()
    with setting.first():
        assert setting.read() == setting.within[0]
        with setting.second():
            assert setting.read() == setting.within[1]
        assert setting.read() == setting.within[0]
        with setting.second():
            pass
        assert setting.read() == setting.within[0]
    assert setting.read() == before


@NAMES
def test_contexts_restore_after_an_exception(setting: Setting) -> None:
    """An exception leaves the blocks and propagates, and each block restores the setting that it found."""
    before = setting.read()
    with setting.first():
        with pytest.raises(InterruptedBlockError), setting.second():
            raise InterruptedBlockError
        assert setting.read() == setting.within[0]
    with pytest.raises(InterruptedBlockError), setting.first(), setting.second():
        raise InterruptedBlockError
    assert setting.read() == before


@NAMES
def test_contexts_restore_when_a_generator_is_closed(setting: Setting) -> None:
    """Closing a generator leaves the block in it."""

    def block() -> Iterator[object]:
        with setting.second():
            yield setting.read()

    before = setting.read()
    with setting.first():
        running = block()
        assert next(running) == setting.within[1]
        running.close()  # type: ignore[attr-defined]
        assert setting.read() == setting.within[0]
    assert setting.read() == before


DECORATORS = ("no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "autocast", "sdpa_kernel")


@pytest.mark.parametrize("setting", DECORATORS, indirect=True)
def test_contexts_as_decorators_hold_during_each_call(setting: Setting) -> None:
    """A decorated function runs with the setting at each call, and restores it also after an exception."""
    before = setting.read()
    decorator: Any = setting.second()

    @decorator
    def inner(fails: bool = False) -> object:
        if fails:
            raise InterruptedBlockError
        return setting.read()

    with setting.first():
        for _ in range(2):
            assert inner() == setting.within[1]
            assert setting.read() == setting.within[0]
        with pytest.raises(InterruptedBlockError):
            inner(fails=True)
        assert setting.read() == setting.within[0]
    assert setting.read() == before


def test_parametrize_cached_computes_a_weight_once_in_the_outermost_block(device: torch.device) -> None:
    """A parametrized weight is computed once until the outermost block of `cached` ends, also by an exception.

    After it, the weight follows its parameter again, also in the next block.
    """
    layer = torch.nn.Linear(1, 1, bias=False, device=device)
    parametrize.register_parametrization(layer, "weight", torch.nn.ReLU())
    original = layer.parametrizations["weight"].original

    def seen(value: float) -> float:
        with torch.no_grad():
            original.fill_(value)
        return layer.weight.item()

    for fails, first in ((False, 10.0), (True, 20.0)):
        assert [seen(1.0), seen(2.0)] == [1.0, 2.0]
        with contextlib.suppress(InterruptedBlockError), parametrize.cached():
            assert [seen(first), seen(4.0)] == [first, first]
            with contextlib.suppress(InterruptedBlockError), parametrize.cached():
                assert seen(5.0) == first
                if fails:
                    raise InterruptedBlockError
            assert seen(6.0) == first
            if fails:
                raise InterruptedBlockError
        assert [seen(7.0), seen(8.0)] == [7.0, 8.0]
    with parametrize.cached():
        assert seen(30.0) == 30.0


def test_sdpa_kernel_set_priority_restores_the_order() -> None:
    """With `set_priority`, the backends have the order of the list in the block, and the earlier order after it."""
    order = get_sdp_priority_order
    before = order()
    first = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    second = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    enabled = backends_of_attention()
    with sdpa_kernel(first, set_priority=True):
        assert order()[:2] == [int(each) for each in first]
        with sdpa_kernel(second, set_priority=True):
            assert order()[:3] == [int(each) for each in second]
        assert order()[:2] == [int(each) for each in first]
        with sdpa_kernel(second):
            assert order()[:2] == [int(each) for each in first]  # without it the order does not change
        with pytest.raises(InterruptedBlockError), sdpa_kernel(second, set_priority=True):
            raise InterruptedBlockError
        assert order()[:2] == [int(each) for each in first]
        assert sorted(order()) == sorted(before)
    with sdpa_kernel([*first, first[0]], set_priority=True):  # the first of equal entries counts
        assert order()[:2] == [int(each) for each in first]
        assert sorted(order()) == sorted(before)
    assert order() == before
    assert backends_of_attention() == enabled


@pytest.mark.keeps(KEEPS, **KEPT)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # from Dynamo's import of it
def test_sdpa_kernel_set_priority_holds_within_compiled_code(request: pytest.FixtureRequest) -> None:
    """A compiled function runs attention with the order and the backends of its block, and restores both."""
    torch.compiler.reset()
    request.addfinalizer(torch.compiler.reset)
    before = get_sdp_priority_order(), backends_of_attention()
    seen: list[tuple[list[int], tuple[bool, ...]]] = []

    class Noting(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if getattr(target, "__name__", "") == "scaled_dot_product_attention":
                seen.append((get_sdp_priority_order()[:2], backends_of_attention()))
            return super().call_function(target, args, kwargs)

    chosen = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]

    @torch.compile(backend=lambda graph, _: Noting(graph).run, fullgraph=True)
    def attend(x: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(chosen, set_priority=True):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.rand(1, 1, 4, 8)
    torch.testing.assert_close(attend(x), torch.nn.functional.scaled_dot_product_attention(x, x, x))
    assert seen == [([int(each) for each in chosen], (True, False, True, False))]
    assert (get_sdp_priority_order(), backends_of_attention()) == before


@pytest.mark.parametrize("place", range(4), ids=["flash", "mem_efficient", "math", "cudnn"])
def test_enable_sdp_turns_one_backend_on_and_off(request: pytest.FixtureRequest, place: int) -> None:
    """`enable_flash_sdp` and its siblings only change their own backend, and `*_sdp_enabled` reads the setting."""
    name = ("flash", "mem_efficient", "math", "cudnn")[place]
    enable = getattr(B.cuda, f"enable_{name}_sdp")
    before = backends_of_attention()
    request.addfinalizer(lambda: enable(before[place]))
    for wanted in (False, True, False):
        enable(wanted)
        assert backends_of_attention() == (*before[:place], wanted, *before[place + 1 :])


@pytest.mark.filterwarnings("ignore:.*sdp_kernel.*:FutureWarning")
def test_sdp_kernel_of_torch_backends_restores_too() -> None:
    """The old `torch.backends.cuda.sdp_kernel` takes a flag per backend, by default on, and restores the setting."""
    with sdpa_kernel([SDPBackend.MATH]):
        before = backends_of_attention()
        with B.cuda.sdp_kernel():
            assert backends_of_attention() == (True, True, True, True)
        with B.cuda.sdp_kernel(enable_flash=False, enable_math=True, enable_mem_efficient=False, enable_cudnn=True):
            assert backends_of_attention() == (False, False, True, True)
        with pytest.raises(InterruptedBlockError), B.cuda.sdp_kernel():
            raise InterruptedBlockError
        assert backends_of_attention() == before


def test_fp16_bf16_reduction_math_sdp_reads_back(request: pytest.FixtureRequest) -> None:
    """`allow_fp16_bf16_reduction_math_sdp` is off by default, and reads back as set."""
    read = B.cuda.fp16_bf16_reduction_math_sdp_allowed
    request.addfinalizer(lambda: B.cuda.allow_fp16_bf16_reduction_math_sdp(False))
    assert read() is False
    for wanted in (True, False):
        B.cuda.allow_fp16_bf16_reduction_math_sdp(wanted)
        assert read() is wanted


def test_sdpa_kernel_refuses_what_is_no_backend() -> None:
    """`sdpa_kernel` accepts a backend or a list of backends, and refuses all other arguments."""
    before = backends_of_attention()
    with pytest.raises(AssertionError, match="tuple"), sdpa_kernel((SDPBackend.MATH,)):  # type: ignore[arg-type]
        pass
    assert backends_of_attention() == before


def test_nnpack_flags_turn_nnpack_off_by_default() -> None:
    """`nnpack.flags` without an argument disables NNPACK in its block."""
    with B.nnpack.flags(True):
        with B.nnpack.flags():
            assert not nnpack_is_on()
        assert nnpack_is_on()


@pytest.mark.requires(any=[{"device": "cuda"}, {"accelerator": True}])
def test_fork_rng_restores_the_generators_of_the_devices(device: torch.device) -> None:
    """`fork_rng` restores the generators of the CPU and of the devices, also after an exception."""
    module = torch.get_device_module(device)
    torch.manual_seed(5)
    states = torch.get_rng_state(), module.get_rng_state(0)
    for fails in (False, True):
        with contextlib.suppress(InterruptedBlockError), torch.random.fork_rng(devices=[0], device_type=device.type):
            torch.rand(8, device=device)
            torch.rand(8)
            if fails:
                raise InterruptedBlockError
        assert torch.equal(torch.get_rng_state(), states[0])
        assert torch.equal(module.get_rng_state(0), states[1])


def test_fork_rng_that_is_not_enabled_restores_nothing() -> None:
    """With `enabled=False`, draws in the block advance the generators as without it."""
    torch.manual_seed(5)
    with torch.random.fork_rng(devices=[], enabled=False):
        first = torch.rand(()).item()
    torch.manual_seed(5)
    assert torch.rand(()).item() == first
    assert torch.rand(()).item() != first
