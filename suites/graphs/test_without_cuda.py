"""Graphs where there is no GPU: what can be asked, and errors that say what is missing."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.requires(not_={"device": "cuda"})

SAYS_WHY = r"(?i)cuda|driver|dummy base class"


def test_cudagraph_without_a_gpu_is_an_error_that_says_why() -> None:
    """Contract: without a GPU a graph cannot be made; the error says that CUDA, or its driver, is what is missing."""
    with pytest.raises(RuntimeError, match=SAYS_WHY):
        torch.cuda.CUDAGraph()


def test_graph_pool_handle_without_cuda_is_an_error_that_says_why() -> None:
    """Contract: the same for a pool's handle, where torch is not built for CUDA; a build for CUDA may give one, which
    needs no driver."""
    try:
        handle = torch.cuda.graph_pool_handle()
    except RuntimeError as refused:
        assert "CUDA" in str(refused) or "dummy" in str(refused)  # noqa: PT017
    else:
        assert torch.version.cuda is not None
        assert len(handle) == 2


@pytest.mark.requires(cuda=False)
def test_is_current_stream_capturing_is_an_error_without_cuda() -> None:
    """Contract: in a build without CUDA there is no stream to ask about, and no capture is claimed."""
    with pytest.raises(RuntimeError, match=SAYS_WHY):
        torch.cuda.is_current_stream_capturing()


def test_make_graphed_callables_on_the_cpu_is_an_error() -> None:
    """Contract: `make_graphed_callables` cannot be had for the host: it raises before it has changed the module."""
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
    """Contract: sample arguments must be tensors, which is checked before a device is needed."""
    with pytest.raises(AssertionError, match=says):
        torch.cuda.make_graphed_callables(lambda *_: None, arguments)  # type: ignore[arg-type]


def test_make_graphed_callables_refuses_modules_with_hooks() -> None:
    """Contract: a module that has hooks already cannot be graphed, and one whose buffer wants a gradient neither; both
    are said before a device is needed."""
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
    """Contract: under autocast that keeps its casts, whose memory a graph could not own, callables are refused, with
    what to do."""
    module = torch.nn.Linear(4, 4)
    previous = torch.is_autocast_cache_enabled()
    with (
        torch.autocast("cuda", enabled=False),
        torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(torch, "is_autocast_enabled", lambda *_: True)  # for CUDA it switches itself off here
        with pytest.raises(RuntimeError, match="cache_enabled=False"):
            torch.cuda.make_graphed_callables(module, (torch.ones(2, 4),))
    assert torch.is_autocast_cache_enabled() == previous


@pytest.mark.requires(torch=">=2.13", accelerator=False)
def test_accelerator_graph_without_an_accelerator_is_an_error() -> None:
    """Contract: `torch.accelerator.Graph` without an accelerator is an error that says that there is none, or, in a
    build for CUDA, that there are no graphs for CUDA."""
    with pytest.raises(RuntimeError, match=r"(?i)accelerator|Graph is not supported on device type: cuda"):
        torch.accelerator.Graph()
