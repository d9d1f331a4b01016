"""Features of all optimizers: hooks of each step, names of weights, kinds of states, and the choice of the form."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.optim import optimizer as base

from .catalogue import CAPTURABLE, FORMS, KINDS, Kind, new_weights, with_kinds


def sgd(*weights: torch.Tensor, **settings: Any) -> torch.optim.SGD:
    return torch.optim.SGD(list(weights) or [torch.ones(2)], lr=0.5, **settings)


#: A start and three gradients, away from the points at which a step has no derivative.
DERIVED = ((1.5, -0.75), (0.5, -1.0), (0.75, 2.0), (-0.25, 1.25))


class Bare(torch.optim.Optimizer):
    """Defines no step."""


class Kept(torch.Tensor):
    """A tensor of another type."""


# ---- hooks of a step ----


def test_register_optimizer_step_hooks_run_around_those_of_one_optimizer(device: torch.device) -> None:
    """Hooks of all optimizers run first before a step, and last after it; removed hooks do not run.

    Each hook gets the optimizer, the arguments with the optimizer as the first, and the keyword arguments.
    """
    weight = torch.ones(2, device=device)
    weight.grad = torch.ones_like(weight)
    optimizer, other = sgd(weight), sgd()
    calls: list[tuple[str, float]] = []
    seen: list[Any] = []

    def named(name: str) -> Any:
        def hook(*given: Any) -> None:
            calls.append((name, weight[0].item()))
            seen.append(given)

        return hook

    handles = [
        optimizer.register_step_pre_hook(named("own before")),
        optimizer.register_step_post_hook(named("own after")),
        base.register_optimizer_step_pre_hook(named("all before")),
        base.register_optimizer_step_post_hook(named("all after")),
    ]
    try:
        optimizer.step(closure=None)
        mine = list(calls)
        other.step()
    finally:
        for handle in handles:
            handle.remove()
    optimizer.step()

    assert mine == [("all before", 1.0), ("own before", 1.0), ("own after", 0.5), ("all after", 0.5)]
    assert [name for name, _ in calls[4:]] == ["all before", "all after"]
    assert [(given[0], given[1], given[2]) for given in seen[:4]] == [(optimizer, (optimizer,), {"closure": None})] * 4


def test_step_hooks_of_a_new_class_run_once() -> None:
    """A custom class gets hooks when its first object is created, and further objects add none."""

    class New(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            return closure

    calls: list[str] = []
    for count in (1, 2, 3):
        optimizer = New([torch.ones(1)], {})
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        assert optimizer.step(3) == 3
        assert calls == ["before", "after"] * count


def test_step_pre_hook_replaces_the_arguments(device: torch.device) -> None:
    """A hook before the step may return new arguments for later hooks and the step; other values raise."""
    weight = torch.ones(2, device=device)
    optimizer = sgd(weight)
    given: list[Any] = []

    handle = optimizer.register_step_pre_hook(lambda *_: ((optimizer,), {"closure": lambda: 17.0}))
    optimizer.register_step_post_hook(lambda _, args, kwargs: given.append((args, list(kwargs))))
    assert optimizer.step() == 17.0
    assert given == [((optimizer,), ["closure"])]
    handle.remove()
    for wrong in (1, (1, 2, 3), [(optimizer,), {}]):
        handle = optimizer.register_step_pre_hook(lambda *_, wrong=wrong: wrong)  # type: ignore[misc]
        with pytest.raises(RuntimeError, match="must return None or a tuple"):
            optimizer.step()
        handle.remove()
    assert optimizer.step() is None


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_hooks_are_not_copied_and_can_be_registered_with_a_copy(way: str) -> None:
    """A copied or unpickled optimizer has no hooks, and accepts new ones of each kind."""
    optimizer = sgd(momentum=0.5)
    calls: list[str] = []
    kinds = (
        "step_pre",
        "step_post",
        "state_dict_pre",
        "state_dict_post",
        "load_state_dict_pre",
        "load_state_dict_post",
    )
    for kind in kinds:
        getattr(optimizer, f"register_{kind}_hook")(lambda *_, kind=kind: calls.append(f"first {kind}"))
    if way == "pickle":
        state = pickle.dumps(optimizer)
        other = pickle.loads(state)
    else:
        other = copy.deepcopy(optimizer)

    other.step()
    other.load_state_dict(other.state_dict())
    other.zero_grad()
    assert calls == []
    for kind in kinds:
        getattr(other, f"register_{kind}_hook")(lambda *_, kind=kind: calls.append(kind))
    for _ in range(2):
        other.step()
        other.load_state_dict(other.state_dict())
    assert calls == [*kinds] * 2
    assert other.defaults == optimizer.defaults


def test_step_restores_the_grad_mode_after_an_error(device: torch.device) -> None:
    """A step whose closure raises restores the grad mode, and a differentiable one runs with grad mode on."""
    weight = torch.ones(2, device=device, requires_grad=True)
    for differentiable in (False, True):
        optimizer = (
            torch.optim.SGD([weight.clone()], lr=0.5, differentiable=differentiable, foreach=False)
            if differentiable
            else sgd(weight)
        )
        for before in (True, False):
            with torch.set_grad_enabled(before):
                with pytest.raises(KeyError, match="broken"):
                    optimizer.step(lambda: {}["broken"])
                assert torch.is_grad_enabled() is before


def test_differentiable_step_is_part_of_the_graph(device: torch.device) -> None:
    """Autograd differentiates a differentiable step: the result depends on gradient and rate by the formula."""
    rate = torch.tensor(0.5, device=device, requires_grad=True)
    start = torch.full((2,), 3.0, device=device, requires_grad=True)
    weight = start.clone()
    weight.grad = (start**2).detach()
    optimizer = torch.optim.SGD([weight], lr=rate, differentiable=True, foreach=False)
    with torch.no_grad():  # the step itself enables it
        optimizer.step()
    assert torch.is_grad_enabled()
    weight.sum().backward()
    assert start.grad is not None
    assert start.grad.tolist() == [1.0, 1.0]
    assert rate.grad is not None
    assert rate.grad.item() == -18.0


@with_kinds()
@pytest.mark.types("float64")
def test_differentiable_steps_have_the_right_derivatives(device: torch.device, kind: Kind) -> None:
    """Derivatives of a weight after three differentiable steps, by start and gradients, equal numeric ones.

    Each settings of the optimizer is tested (`torch.autograd.gradcheck`, float64). Autograd cannot differentiate a
    second step where torch changes values that the first one saved, and does not differentiate the first momentum of
    SGD, which is detached.
    """
    for settings in kind.settings:
        if kind.name == "SGD" and "momentum" in kind.settings[settings]:
            continue
        alone = kind.name in ("Adamax", "Rprop") or settings in ("amsgrad", "amsgrad_maximize", "centered")

        def trained(start: torch.Tensor, *gradients: torch.Tensor, settings: str = settings) -> torch.Tensor:
            weight = start.clone()
            optimizer = kind.make([weight], "differentiable", settings)
            for gradient in gradients:
                weight.grad = gradient.clone()
                optimizer.step()
            return weight

        given = [torch.tensor(each, dtype=torch.float64, device=device) for each in DERIVED[: 2 if alone else 4]]
        assert torch.autograd.gradcheck(trained, [tensor.requires_grad_() for tensor in given]), settings


def _with_forms() -> Iterator[Any]:
    """Yield each optimizer with each form of its step that any device has."""
    for kind in KINDS.values():
        for form in ("one_by_one", "foreach", *(["fused"] if "fused" in kind.forms else [])):
            cuda = {"device": "cuda", "torch": ">=2.13"} if kind.name == "Adagrad" else {"device": "cuda"}
            marks = [
                pytest.mark.requires(any=[{"not_": {"accelerator": True}}, cuda]),
                pytest.mark.xfail(
                    reason="torch's fused steps do not count as changes in place", raises=pytest.fail.Exception
                ),
            ]
            yield pytest.param(kind, form, id=f"{kind.name}-{form}", marks=marks if form == "fused" else [])


@pytest.mark.parametrize(("kind", "form"), list(_with_forms()))
def test_step_counts_as_a_change_in_place(device: torch.device, kind: Kind, form: str) -> None:
    """Each implementation of a step counts as an in-place change: a backward pass that needs earlier weights raises.

    Source: autograd, in-place correctness checks.
    """
    weight, x = (torch.ones(3, device=device, requires_grad=True) for _ in range(2))
    needed = (weight * x).sum()
    optimizer = kind.make([weight], form, next(iter(kind.settings)))
    weight.grad = torch.ones_like(weight)

    optimizer.step()

    assert (weight != 1).all()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        needed.backward()
    assert x.grad is None


# ---- weights and groups ----


def test_named_parameters_keep_their_names(device: torch.device) -> None:
    """Weights may have names, which groups and states keep; a group without names, or with only some, is refused.

    A state with other names replaces the names, and a state without names keeps them.
    """
    weights = [torch.ones(2, device=device) for _ in range(3)]
    optimizer = torch.optim.SGD([("a", weights[0]), ("b", weights[1])], lr=0.5)
    optimizer.add_param_group({"params": [("c", weights[2])]})

    def names() -> list[Any]:
        return [group["param_names"] for group in optimizer.param_groups]

    assert names() == [["a", "b"], ["c"]]
    found = [weight for group in optimizer.param_groups for weight in group["params"]]
    assert all(one is two for one, two in zip(found, weights, strict=True))
    state = optimizer.state_dict()
    assert [group["param_names"] for group in state["param_groups"]] == [["a", "b"], ["c"]]
    state["param_groups"][0]["param_names"] = ["x", "y"]
    del state["param_groups"][1]["param_names"]
    optimizer.load_state_dict(state)
    assert names() == [["x", "y"], ["c"]]

    with pytest.raises(ValueError, match="cannot add param group without names"):
        optimizer.add_param_group({"params": [torch.ones(1)]})
    with pytest.raises(ValueError, match="cannot add param group with names"):
        sgd().add_param_group({"params": [("d", torch.ones(1))]})
    with pytest.raises(ValueError, match="Some param names are missing"):
        torch.optim.SGD([("a", weights[0]), weights[1]], lr=0.5)  # type: ignore[list-item]
    unnamed = sgd(*weights[:2])
    unnamed.load_state_dict(torch.optim.SGD([("a", weights[0]), ("b", weights[1])], lr=0.5).state_dict())
    assert unnamed.param_groups[0]["param_names"] == ["a", "b"]


def test_add_param_group_refuses_what_is_no_group(device: torch.device) -> None:
    """A group is a dictionary with an ordered collection of leaves, and duplicates in it warn.

    A weight that retains its gradient need not be a leaf.
    """
    weight = torch.ones(2, device=device, requires_grad=True)
    optimizer = sgd()
    with pytest.raises(TypeError, match="param_group must be a dict"):
        optimizer.add_param_group([weight])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ordered collections"):
        optimizer.add_param_group({"params": {weight}})
    with pytest.raises(ValueError, match="non-leaf"):
        optimizer.add_param_group({"params": [weight * 2]})
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer.add_param_group({"params": [weight, weight]})
    kept = weight * 2
    kept.retain_grad()
    optimizer.add_param_group({"params": kept})
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 2, 1]
    torch.optim.SGD([weight * 2], lr=0.1, differentiable=True)


def test_required_setting_must_be_in_each_group() -> None:
    """Each group must have a setting whose default is `required`; other defaults complete the groups.

    Subclasses must define `step`, which the base class lacks.
    """

    defaults = {"lr": base.required, "other": 3}
    with pytest.raises(ValueError, match="required optimization parameter lr"):
        Bare([torch.ones(1)], defaults)
    optimizer = Bare([{"params": [torch.ones(1)], "lr": 0.25}], defaults)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["other"]) == (0.25, 3)
    with pytest.raises(NotImplementedError):
        optimizer.step()


# ---- states ----


def test_state_dict_numbers_weights_over_all_groups(device: torch.device) -> None:
    """A state numbers the weights through all groups, and has the state of each weight under its number.

    Entries of the state that belong to no weight are kept unchanged.
    """
    weights = [torch.ones(size, device=device) for size in (1, 2, 3, 4)]
    groups = [{"params": weights[:1]}, {"params": weights[1:3], "lr": 0.1}, {"params": weights[3:]}]
    optimizer = torch.optim.SGD(groups, lr=0.5, momentum=0.5)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.state["extra"] = {"kept": 5}  # type: ignore[index]

    state = optimizer.state_dict()
    assert [group["params"] for group in state["param_groups"]] == [[0], [1, 2], [3]]
    assert {name: value["momentum_buffer"].numel() for name, value in state["state"].items() if name != "extra"} == {
        0: 1,
        1: 2,
        2: 3,
        3: 4,
    }
    other = torch.optim.SGD([{"params": group["params"]} for group in copy.deepcopy(groups)], lr=0.5, momentum=0.5)
    other.load_state_dict(state)
    assert other.state["extra"] == {"kept": 5}  # type: ignore[index]
    assert [group["lr"] for group in other.param_groups] == [0.5, 0.1, 0.5]
    theirs = [weight for group in other.param_groups for weight in group["params"]]
    for one, two in zip(weights, theirs, strict=True):
        assert torch.equal(other.state[two]["momentum_buffer"], optimizer.state[one]["momentum_buffer"])


def test_load_state_dict_converts_nested_state(device: torch.device) -> None:
    """Tensors in containers of a state get the weight's type and device; other values do not change.

    For a weight of whole numbers, the type of the state is kept.
    """
    weight = torch.ones(2, device=device, dtype=torch.bfloat16)
    whole = torch.ones(2, device=device, dtype=torch.int64)
    optimizer = sgd(weight, whole)
    numbers = torch.tensor([1.5, 2.5])
    entry = {"deep": {"list": [numbers, 3], "tuple": (numbers, True)}, "none": None, "flat": numbers}
    optimizer.load_state_dict({"state": {0: entry, 1: entry}, "param_groups": optimizer.state_dict()["param_groups"]})
    for each, dtype in ((weight, torch.bfloat16), (whole, torch.float32)):
        found = optimizer.state[each]
        assert isinstance(found["deep"]["tuple"], tuple)
        assert isinstance(found["deep"]["list"], list)
        assert found["none"] is None
        assert (found["deep"]["list"][1], found["deep"]["tuple"][1]) == (3, True)
        for tensor in (found["deep"]["list"][0], found["deep"]["tuple"][0], found["flat"]):
            assert (tensor.dtype, tensor.device, tensor.tolist()) == (dtype, device, [1.5, 2.5])


@pytest.mark.xfail(
    raises=AssertionError,
    reason="Optimizer.load_state_dict makes the text of a generator of every text, since a text is iterable "
    "(torch/optim/optimizer.py, _cast)",
)
def test_load_state_dict_keeps_texts() -> None:
    """A text in the state of a weight is the same after loading."""
    optimizer = sgd()
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": {0: {"kind": "text"}}, "param_groups": groups})
    assert next(iter(optimizer.state.values())) == {"kind": "text"}


def test_load_state_dict_hooks_get_a_copy(device: torch.device) -> None:
    """Hooks before `load_state_dict` get a shallow copy: entries that they add are not in the original state."""
    optimizer = sgd(torch.ones(2, device=device))
    state = optimizer.state_dict()
    optimizer.register_load_state_dict_pre_hook(lambda _, given: given.update(more=1))
    optimizer.load_state_dict(state)
    assert "more" not in state
    state["param_groups"][0]["lr"] = 7.0
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
def default_dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    try:
        yield request.param
    finally:
        torch.set_default_dtype(before)


#: Counters of optimizers in separate tensors, in addition to tensors of the weight's type.
COUNTS = ("step", "eta", "mu", "mu_product")


def types_of_counts(optimizer: torch.optim.Optimizer, names: Sequence[str] = COUNTS) -> set[torch.dtype]:
    return {value[name].dtype for value in optimizer.state.values() for name in names if name in value}


def device_of_steps(optimizer: torch.optim.Optimizer) -> set[str]:
    return {value["step"].device.type for value in optimizer.state.values() if "step" in value}


@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")
@pytest.mark.types("float64", "bfloat16")
def test_state_step_has_the_default_type_unless_fused(device: torch.device, default_dtype: torch.dtype) -> None:
    """Step counts are float64 if that is the default type, and float32 otherwise or if fused.

    They are on the CPU, but for fused and capturable optimizers and ASGD on the weights' device. This also holds after
    loading, with float32 if capturable, and for a state of an older release, with numbers in place of tensors.
    """
    double = torch.float64 if default_dtype == torch.float64 else torch.float32
    for kind in KINDS.values():
        counts = set() if kind.name == "SGD" else {double}
        plain: dict[str, Any] = {}
        for form in ("one_by_one", "foreach", "fused", *(CAPTURABLE if device.type != "cpu" else ())):
            if form not in kind.forms or ((kind.name, form) == ("Adagrad", "fused") and device.type != "cpu"):
                continue  # before torch 2.12, Adagrad is fused on the CPU only
            optimizer = kind.make([weight.detach() for weight in new_weights(device)], form, "plain")
            for weight in optimizer.param_groups[0]["params"]:
                weight.grad = torch.ones_like(weight)
            wanted = {torch.float32} if form == "fused" and counts else counts
            there = form in ("fused", *CAPTURABLE) or kind.name == "ASGD"
            place = {device.type if there else "cpu"} if counts else set()
            optimizer.step()
            assert types_of_counts(optimizer) == wanted, (kind.name, form)
            assert device_of_steps(optimizer) == place, (kind.name, form)
            plain = plain or optimizer.state_dict()
            for number in (False, True):
                state = copy.deepcopy(plain)
                state["param_groups"][0].update(FORMS[form])
                for value in state["state"].values():
                    value.update({name: float(value[name]) for name in COUNTS if number and name in value})
                optimizer.load_state_dict(state)
                # Tensors other than the step count have the weight's type.
                names = COUNTS if number else COUNTS[:1]
                single = counts and form in CAPTURABLE and not number
                assert types_of_counts(optimizer, names) == ({torch.float32} if single else wanted), (kind.name, form)
                assert device_of_steps(optimizer) == place, (kind.name, form, number)
            optimizer.step()
            steps = [value["step"].item() for value in optimizer.state.values() if "step" in value]
            assert steps == [2.0] * len(steps)


@pytest.mark.types("float64")
def test_load_state_dict_keeps_the_type_of_a_step(device: torch.device) -> None:
    """A float64 step count is float64 after loading. A state from before the first step can be loaded too."""
    for kind in KINDS.values():
        optimizer = kind.make([torch.ones(2, device=device)], "one_by_one", "plain")
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.param_groups[0]["params"][0].grad = torch.ones(2, device=device)
        optimizer.step()
        state = optimizer.state_dict()
        for value in state["state"].values():
            value["step"] = value["step"].double() if "step" in value else None
        optimizer.load_state_dict(state)
        found = {value["step"].dtype for value in optimizer.state.values() if value["step"] is not None}
        assert found == (set() if kind.name == "SGD" else {torch.float64}), kind.name


@pytest.mark.types("float64")
def test_step_is_the_same_under_any_default_device(device: torch.device) -> None:
    """Steps after the first do not depend on the default device: their new tensors are on the weights' device."""
    for name in (*KINDS, "Adafactor"):
        for form in ("one_by_one", "foreach", "fused"):
            if form not in (KINDS[name].forms if name in KINDS else ("one_by_one", "foreach")):
                continue
            # ASGD creates its rate on the default device. Before torch 2.12, Adagrad is fused on the CPU only.
            if (name, form) == ("ASGD", "one_by_one") or (
                (name, form) == ("Adagrad", "fused") and device.type != "cpu"
            ):
                continue
            one, two = (torch.full((3, 2), 2.0, dtype=torch.float64, device=device) for _ in range(2))
            first, second = (getattr(torch.optim, name)([weight], lr=0.1, **FORMS[form]) for weight in (one, two))
            for step in range(3):
                for weight in (one, two):
                    weight.grad = torch.full_like(weight, 0.5 + step)
                first.step()
                with torch.device("meta") if step else nullcontext():
                    second.step()
            assert torch.equal(one, two), (name, form)


# ---- which implementation is used ----


class Logging(torch.overrides.TorchFunctionMode):
    """Records whether a step calls a `_foreach` or `_fused` function."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.seen.update(kind for kind in ("foreach", "fused") if name.startswith(f"_{kind}_"))
        return func(*args, **(kwargs or {}))


def used(optimizer: torch.optim.Optimizer) -> set[str]:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = torch.ones_like(weight)
    with Logging() as log:
        optimizer.step()
    return log.seen


def test_foreach_and_fused_are_used_as_asked(device: torch.device) -> None:
    """By default a step is one by one on the CPU and with `foreach` on an accelerator; each form can be chosen.

    A weight of a subclass, and a differentiable step, are one by one by default, except for differentiable SGD.
    """

    quick = {"foreach"} if device.type != "cpu" else set()
    for kind in KINDS.values():
        weight = torch.ones(3, device=device)
        cls = getattr(torch.optim, kind.name)
        assert used(cls([weight])) == quick, kind.name
        assert used(cls([torch.nn.Parameter(weight)])) == quick, kind.name
        assert used(cls([weight, weight.clone().as_subclass(Kept)])) == set(), kind.name
        assert used(cls([weight], foreach=True)) == {"foreach"}, kind.name
        assert used(cls([weight], foreach=False)) == set(), kind.name
        if "fused" in kind.forms:
            assert used(cls([weight], fused=False)) == set(), kind.name
            if kind.name != "Adagrad" or device.type == "cpu":  # before torch 2.12 on the CPU only
                assert "fused" in used(cls([weight], fused=True)), kind.name
        if kind.name != "SGD":  # torch.optim.sgd.sgd does not check whether the step is differentiable
            assert used(cls([weight.clone()], differentiable=True)) == set(), kind.name


def test_adam_foreach_refuses_a_rate_that_becomes_a_tensor(device: torch.device) -> None:
    """A step of Adam with `foreach`, unless capturable, raises if the rate of its group has become a tensor."""
    for cls in (torch.optim.Adam, torch.optim.AdamW):
        weight = torch.ones(2, device=device)
        weight.grad = torch.ones_like(weight)
        optimizer = cls([weight], foreach=True)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.25, device=device)
        with pytest.raises(RuntimeError, match="lr as a Tensor is not supported"):
            optimizer.step()


def test_fused_refuses_complex_weights(device: torch.device) -> None:
    """A fused optimizer raises RuntimeError for weights that are not floating-point numbers."""
    for name in ("SGD", "Adam", "AdamW", "Adagrad"):
        weight = torch.ones(2, device=device, dtype=torch.complex64)
        weight.grad = torch.ones_like(weight)
        with pytest.raises(RuntimeError, match="`fused=True` requires all the params to be floating point"):
            getattr(torch.optim, name)([weight], fused=True).step()


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"])
@pytest.mark.types("float64")
def test_zero_grad_in_place_zeroes_all_types(device: torch.device, options: dict[str, Any]) -> None:
    """`zero_grad(set_to_none=False)` zeroes gradients of every type in place, and leaves gradients that are None.

    An optimizer created with `foreach` or `fused` zeroes them together, with `foreach`.
    """
    dtypes = (torch.float32, torch.float64, torch.float32)
    weights = [torch.ones(3, device=device, dtype=dtype, requires_grad=True) for dtype in dtypes]
    unused = torch.ones(1, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([*weights, unused], **options)
    sum((weight.sum() * 2).float() for weight in weights).backward()  # type: ignore[union-attr]
    gradients = [weight.grad for weight in weights]
    (followed,) = torch.autograd.grad((weights[0] ** 3).sum(), weights[0], create_graph=True)
    weights[0].grad = gradients[0] = followed
    weights[1].grad = gradients[1] = torch.ones_like(weights[1]).requires_grad_()
    with Logging() as log:
        optimizer.zero_grad(set_to_none=False)
    assert log.seen == ({"foreach"} if options else set())
    for weight, gradient in zip(weights, gradients, strict=True):
        assert weight.grad is gradient
        assert gradient is not None
        assert gradient.tolist() == [0.0] * 3
        assert not gradient.requires_grad
    assert unused.grad is None


@pytest.mark.requires(sparse=True)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_zero_grad_in_place_zeroes_sparse_gradients(device: torch.device) -> None:
    """A sparse gradient is zeroed in place too, also by an optimizer with `foreach`."""
    for foreach in (False, True):
        weight = torch.ones(3, 2, device=device, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1, foreach=foreach)
        weight.grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1, 2), (3, 2), check_invariants=True).to(
            device
        )
        gradient = weight.grad
        optimizer.zero_grad(set_to_none=False)
        assert weight.grad is gradient
        assert gradient.to_dense().tolist() == [[0.0, 0.0]] * 3
