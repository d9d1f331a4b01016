"""What eager code refuses or undoes holds in compiled code: changes between the passes, and contexts after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from suites import _torch_private_compiled as private
from suites.compiled import KEEPS, KEPT
from suites.synchronizing import synchronize

from ._torch_private import allow_saved_tensors_hooks

pytestmark = pytest.mark.keeps(KEEPS, **KEPT)

BACK_ENDS = ["eager", "aot_eager", "inductor"]
ISSUE = "https://github.com/pytorch/pytorch/issues/"
VIEW_REBUILT = pytest.mark.xfail(
    raises=AssertionError,
    strict=True,
    reason=f"Inductor saves a view of an input as a new tensor, without the input's version: {ISSUE}197887",
)
ALIAS_MADE = pytest.mark.xfail(
    raises=AssertionError,
    strict=True,
    reason=f"AOTAutograd makes a view that is returned anew, without the version of what it saves: {ISSUE}197887",
)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    with private.fresh_compiler():
        yield


# In-place changes of saved tensors


@dataclass(frozen=True)
class Program:
    """A function of an input and a weight. `changed` is what the program of the user changes between the passes."""

    run: Callable[[Tensor, Tensor], Tensor]
    changed: str = "input"
    #: The back ends on which the change passes without an error, with the mark of the reason.
    wrong: tuple[str, ...] = ()
    mark: Any = None


_INDUCTOR = ("inductor",)
#: By the kind of saved tensor: an input or a view of it, in each product, and a result or a view of it.
PROGRAMS: dict[str, Program] = {
    "mul": Program(lambda x, w: x * w),
    "transpose": Program(lambda x, w: x.t() * w),
    "view": Program(lambda x, w: x.view(-1) * w.view(-1)),
    "slice": Program(lambda x, w: x[:2] * w[:2], wrong=_INDUCTOR, mark=VIEW_REBUILT),
    "mm": Program(lambda x, w: x @ w, wrong=_INDUCTOR, mark=VIEW_REBUILT),
    "bmm": Program(lambda x, w: torch.bmm(x.unsqueeze(0), w.unsqueeze(0)), wrong=_INDUCTOR, mark=VIEW_REBUILT),
    "addmm": Program(lambda x, w: torch.addmm(x.new_ones(4), x, w), wrong=_INDUCTOR, mark=VIEW_REBUILT),
    "einsum": Program(lambda x, w: torch.einsum("ij,jk->ik", x, w), wrong=_INDUCTOR, mark=VIEW_REBUILT),
    "linear": Program(lambda x, w: F.linear(x.unsqueeze(0), w)),
    "conv1d": Program(lambda x, w: F.conv1d(x.unsqueeze(0), w.unsqueeze(0)), wrong=_INDUCTOR, mark=VIEW_REBUILT),
    "exp": Program(lambda x, w: (x * w).exp(), "result"),
    "sigmoid": Program(lambda x, w: (x * w).sigmoid(), "result"),
    "softmax": Program(lambda x, w: (x * w).softmax(1), "result"),
    "tanh_of_mm": Program(lambda x, w: (x @ w).tanh(), "result"),
    "view_of_exp": Program(
        lambda x, w: (x * w).exp().view(-1), "result", wrong=("aot_eager", "inductor"), mark=ALIAS_MADE
    ),
    "weight_of_mm": Program(lambda x, w: x.sin() @ w, "weight", wrong=_INDUCTOR, mark=VIEW_REBUILT),
}


NEEDS_INDUCTOR = pytest.mark.requires(cpp_compiler=True, inductor=True)

#: Programs for which Inductor compiles code in C++, which takes seconds, and which others stand for.
SELDOM = {"transpose", "view", "sigmoid", "softmax", "tanh_of_mm", "weight_of_mm"}


def _compiled_programs() -> list[Any]:
    parameters = []
    for name, program in PROGRAMS.items():
        for backend in BACK_ENDS:
            marks = [program.mark] if backend in program.wrong else []
            if backend == "inductor":
                marks += [NEEDS_INDUCTOR, *([pytest.mark.extended] if name in SELDOM else [])]
            parameters.append(pytest.param(backend, name, marks=marks))
    return parameters


def passes(name: str, compile_: Callable[[Any], Any], device: torch.device, *, change: bool) -> None:
    """Run both passes of a program, and change a tensor in place between them."""
    program = PROGRAMS[name]
    x = torch.linspace(0.1, 1, 16).view(4, 4).to(device).requires_grad_(program.changed == "weight")
    w = torch.linspace(0.3, 2, 16).view(4, 4).to(device).requires_grad_()
    result = compile_(program.run)(x, w)
    if change:
        with torch.no_grad():
            {"input": x, "weight": w, "result": result}[program.changed].mul_(2)
    result.sum().backward()
    assert w.grad is not None


@pytest.mark.parametrize("name", PROGRAMS)
def test_backward_after_a_change_of_a_saved_tensor_raises(name: str, device: torch.device) -> None:
    """An in-place change of a tensor that the backward pass needs is an error; without it there is none."""
    passes(name, lambda function: function, device, change=False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        passes(name, lambda function: function, device, change=True)


@pytest.mark.parametrize(("backend", "name"), _compiled_programs())
def test_compile_keeps_the_error_for_a_changed_saved_tensor(backend: str, name: str, device: torch.device) -> None:
    """Compiled code raises for each in-place change for which eager code raises."""

    def compiled(function: Any) -> Any:
        return torch.compile(function, backend=backend, fullgraph=True)

    raised = False
    try:
        passes(name, compiled, device, change=True)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raised = True

    assert raised, "the gradient is that of the changed tensor, without an error"


# Contexts that an exception leaves


@dataclass(frozen=True)
class Context:
    """A context that a compiled function enters, and a reader of the state that it sets."""

    enter: Callable[[torch.device], AbstractContextManager[object]]
    read: Callable[[torch.device], object]
    #: The back ends on which the context stays after an exception.
    stays: tuple[str, ...] = ()
    #: Whether the compiler accepts the context; if not, the graph breaks there, and the block runs uncompiled.
    fullgraph: bool = True
    marks: tuple[pytest.MarkDecorator, ...] = ()


def _autocast_state(device: torch.device) -> object:
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    kind = device.type
    return nesting, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()


def _attention_state(_: torch.device) -> object:
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled()


def _hooks_are_allowed(_: torch.device) -> object:
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            return True
    except RuntimeError:
        return False


_STAYS = ("eager",)
CONTEXTS: dict[str, Context] = {
    "autocast": Context(
        lambda device: torch.autocast(device.type, torch.bfloat16),
        _autocast_state,
        stays=_STAYS,
        marks=(pytest.mark.requires(autocast=True),),
    ),
    "no_grad": Context(lambda _: torch.no_grad(), lambda _: torch.is_grad_enabled(), stays=_STAYS),
    "set_grad_enabled": Context(
        lambda _: torch.set_grad_enabled(False), lambda _: torch.is_grad_enabled(), stays=_STAYS
    ),
    "inference_mode": Context(lambda _: torch.inference_mode(), lambda _: torch.is_inference_mode_enabled()),
    "sdpa_kernel": Context(lambda _: sdpa_kernel([SDPBackend.MATH]), _attention_state, stays=_STAYS),
    "disable_saved_tensors_hooks": Context(
        lambda _: torch.autograd.graph.disable_saved_tensors_hooks("not here"), _hooks_are_allowed, stays=_STAYS
    ),
    "default_device": Context(lambda _: torch.device("meta"), lambda _: torch.empty(0).device, fullgraph=False),
    "stream": Context(
        torch.Stream,
        lambda device: torch.accelerator.current_stream(device),
        marks=(pytest.mark.requires(accelerator=True),),
    ),
    "device_index": Context(
        lambda _: torch.accelerator.device_index(1),
        lambda _: torch.accelerator.current_device_index(),
        stays=_STAYS,
        marks=(pytest.mark.requires(accelerator=True, devices=2),),
    ),
}


def _compiled_contexts() -> list[Any]:
    stays = pytest.mark.xfail(
        raises=AssertionError,
        strict=True,
        reason=f"contexts are calls in a row of the graph, which an exception ends: {ISSUE}195488",
    )
    parameters = []
    for name, context in CONTEXTS.items():
        for backend in BACK_ENDS:
            marks = [*context.marks, *([stays] if backend in context.stays else [])]
            marks += [NEEDS_INDUCTOR] if backend == "inductor" else []
            parameters.append(pytest.param(backend, name, marks=marks))
    return parameters


@pytest.fixture
def settings_restored(device: torch.device) -> Iterator[None]:
    """Restore what a context sets, which it may have left so."""
    kind = device.type
    torch.autocast_increment_nesting()
    nesting = torch.autocast_decrement_nesting()
    enabled, dtype, cached = (
        torch.is_autocast_enabled(kind),
        torch.get_autocast_dtype(kind),
        torch.is_autocast_cache_enabled(),
    )
    index = torch.accelerator.device_index(device.index) if device.index is not None else nullcontext()
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]), torch.enable_grad(), index:
        yield
    while torch.autocast_decrement_nesting() >= nesting:
        pass
    torch.autocast_increment_nesting()
    torch.set_autocast_enabled(kind, enabled)
    torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(cached)
    allow_saved_tensors_hooks()


@pytest.mark.usefixtures("settings_restored")
@pytest.mark.parametrize(("backend", "name"), _compiled_contexts())
def test_compile_leaves_a_context_that_an_exception_ends(backend: str, name: str, device: torch.device) -> None:
    """An exception of an operator within a context of a compiled function leaves the context, as in eager code."""
    context = CONTEXTS[name]

    @torch.compile(backend=backend, fullgraph=context.fullgraph)
    def factor(x: Tensor) -> Tensor:
        with context.enter(device):
            return torch.linalg.cholesky(x)

    # A size of its own for each context: the same code compiled twice is one module that is loaded twice.
    one = torch.eye(2 + list(CONTEXTS).index(name), device=device)
    negative = -one
    synchronize(device)  # one of the contexts is another stream
    before = context.read(device)
    factored = factor(one)
    assert context.read(device) == before
    synchronize(device)
    assert factored.equal(one)

    with pytest.raises(RuntimeError, match="not positive-definite"):
        factor(negative)

    assert context.read(device) == before


# Subclasses


class Plain(Tensor):
    """A tensor of another class, without behaviour of its own."""


@pytest.mark.xfail(
    raises=NameError, strict=True, reason=f"the compiled code names a class that it does not define: {ISSUE}193933"
)
def test_compile_returns_a_subclass_that_is_changed_in_place(device: torch.device) -> None:
    """Compiled code returns a changed copy of a subclass, with its class and values, as eager code does."""

    def changed(x: Tensor, y: Tensor) -> Tensor:
        made = x.clone()
        made.mul_(y)
        return made

    x = torch.arange(6.0, device=device).as_subclass(Plain)
    wanted = changed(x, x)

    found = torch.compile(changed, backend="eager")(x, x)

    assert type(found) is Plain
    assert torch.equal(found, wanted)
