"""Graph APIs without a GPU: queries, and errors that name what is missing."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.requires(not_={"device": "cuda"})

SAYS_WHY = r"(?i)cuda|driver|dummy base class"


def test_cudagraph_without_a_gpu_raises_with_the_reason() -> None:
    """Without a GPU, creating a graph raises, and the error names CUDA or its driver."""
    with pytest.raises(RuntimeError, match=SAYS_WHY):
        torch.cuda.CUDAGraph()


def test_graph_pool_handle_without_cuda_raises_with_the_reason() -> None:
    """`graph_pool_handle` raises in a build without CUDA; a build for CUDA may return one without a driver."""
    try:
        handle = torch.cuda.graph_pool_handle()
    except RuntimeError as refused:
        assert "CUDA" in str(refused) or "dummy" in str(refused)  # noqa: PT017
    else:
        assert torch.version.cuda is not None
        assert len(handle) == 2


@pytest.mark.requires(cuda=False)
def test_is_current_stream_capturing_is_an_error_without_cuda() -> None:
    """In a build without CUDA, `is_current_stream_capturing` raises."""
    with pytest.raises(RuntimeError, match=SAYS_WHY):
        torch.cuda.is_current_stream_capturing()


def test_make_graphed_callables_on_the_cpu_is_an_error() -> None:
    """`make_graphed_callables` on the CPU raises before it changes the module."""
    module = torch.nn.Linear(4, 4)
    forward = module.forward
    with pytest.raises((RuntimeError, AssertionError), match=SAYS_WHY):
        torch.cuda.make_graphed_callables(module, (torch.ones(2, 4),))
    assert module.forward == forward
    assert torch.isfinite(module(torch.ones(2, 4))).all()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param((3,), "only Tensors", id="a_number"),
        pytest.param((torch.zeros(1), "text"), "only Tensors", id="a_text"),
    ],
)
def test_make_graphed_callables_sample_args_must_be_tensors(arguments: tuple[object, ...], says: str) -> None:
    """Sample arguments that are not tensors raise before a device is needed."""
    with pytest.raises(AssertionError, match=says):
        torch.cuda.make_graphed_callables(lambda *_: None, arguments)  # type: ignore[arg-type]


def test_make_graphed_callables_refuses_modules_with_hooks() -> None:
    """A module with hooks, or with a buffer that requires grad, raises before a device is needed."""
    for register in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"):
        hooked = torch.nn.Linear(4, 4)
        getattr(hooked, register)(lambda *_: None)
        with pytest.raises(AssertionError, match="hooks"):
            torch.cuda.make_graphed_callables(hooked, (torch.ones(2, 4),))
    buffered = torch.nn.Linear(4, 4)
    buffered.register_buffer("trainable", torch.ones(1, requires_grad=True))
    with pytest.raises(AssertionError, match="requires_grad"):
        torch.cuda.make_graphed_callables(buffered, (torch.ones(2, 4),))


def test_make_graphed_callables_refuses_autocast_with_a_cache_without_a_gpu() -> None:
    """`make_graphed_callables` raises under autocast with a cache and names the remedy."""
    module = torch.nn.Linear(4, 4)
    previous = torch.is_autocast_cache_enabled()
    with (
        torch.autocast("cuda", enabled=False),
        torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(torch, "is_autocast_enabled", lambda *_: True)  # for CUDA, autocast disables itself here
        with pytest.raises(RuntimeError, match="cache_enabled=False"):
            torch.cuda.make_graphed_callables(module, (torch.ones(2, 4),))
    assert torch.is_autocast_cache_enabled() == previous


@pytest.mark.requires(torch=">=2.13", accelerator=False)
def test_accelerator_graph_without_an_accelerator_is_an_error() -> None:
    """`torch.accelerator.Graph` raises without an accelerator.

    In a build for CUDA, the error says that there are no graphs for CUDA.
    """
    with pytest.raises(RuntimeError, match=r"(?i)accelerator|Graph is not supported on device type: cuda"):
        torch.accelerator.Graph()
