"""Optimisers: one wrong operation in the plain form of each, and errors in their state."""

from __future__ import annotations

import functools
from typing import Any

from tests.breaks.breaks import Theme, replace

broken = Theme()

_REFERENCES, _STATE, _GROUPS = (f"suites/optimizers/test_{name}.py" for name in ("references", "state", "groups"))


def _weights(name: str, **options: Any) -> object:
    """Return the weights and the state after nine steps of an optimiser."""
    import torch

    weight = torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
    optimiser = getattr(torch.optim, name)([weight], **{"lr": 0.1, **options})
    for number in range(9):
        weight.grad = torch.tensor([0.3, -1.0, 2.0]) * (-1.0) ** (number // 2) * (9 - number)
        optimiser.step()
    return weight.tolist(), str(optimiser.state_dict())


#: Name, sentence, module and function, text, replacement, optimiser and its options.
_STEPS: tuple[tuple[str, str, str, str, str, str, dict[str, Any]], ...] = (
    (
        "sgd_decay_has_the_wrong_sign", "SGD's weight decay makes weights larger.", "sgd:_single_tensor_sgd",
        "grad = grad.add(param, alpha=weight_decay)", "grad = grad.sub(param, alpha=weight_decay)",
        "SGD", {"weight_decay": 0.1},
    ),
    (
        "sgd_ignores_dampening", "SGD's momentum ignores the dampening.", "sgd:_single_tensor_sgd",
        "alpha=1 - dampening", "alpha=1", "SGD", {"momentum": 0.9, "dampening": 0.5},
    ),
    (
        "sgd_nesterov_is_plain_momentum", "SGD with Nesterov's momentum does a step of plain momentum.",
        "sgd:_single_tensor_sgd", "grad = grad.add(buf, alpha=momentum)", "grad = buf",
        "SGD", {"momentum": 0.9, "nesterov": True},
    ),
    (
        "sgd_first_momentum_is_dampened", "SGD's first step with momentum is dampened as the later ones are.",
        "sgd:_single_tensor_sgd", "buf = grad.detach().clone()", "buf = grad.detach() * (1 - dampening)",
        "SGD", {"momentum": 0.9, "dampening": 0.5},
    ),
    (
        "sgd_foreach_minimises", "SGD's form for lists ignores `maximize`.", "sgd:_multi_tensor_sgd",
        "if maximize:", "if False:", "SGD", {"maximize": True, "foreach": True},
    ),
    (
        "adam_ignores_decay", "Adam ignores the weight decay.", "adam:_single_tensor_adam",
        "if weight_decay != 0:", "if False:", "Adam", {"weight_decay": 0.1},
    ),
    (
        "adam_corrects_no_first_bias", "Adam does not correct the bias of the first moment.",
        "adam:_single_tensor_adam",
        "step_size = lr / bias_correction1", "step_size = lr * (bias_correction1 * 0 + 1)", "Adam", {},
    ),
    (
        "adam_adds_eps_inside_the_root", "Adam adds eps before it takes the root.", "adam:_single_tensor_adam",
        "denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)",
        "denom = exp_avg_sq.add(eps).sqrt() / bias_correction2_sqrt", "Adam", {"eps": 1e-3},
    ),
    (
        "adam_amsgrad_takes_the_last", "Adam with amsgrad takes the last second moment and not the largest.",
        "adam:_single_tensor_adam", "torch.maximum(max_exp_avg_sqs[i], exp_avg_sq, out=max_exp_avg_sqs[i])",
        "max_exp_avg_sqs[i].copy_(exp_avg_sq)", "Adam", {"amsgrad": True, "betas": (0.5, 0.1)},
    ),
    (
        "adam_decoupled_decay_is_coupled", "AdamW adds its weight decay to the gradient.", "adam:_single_tensor_adam",
        "if decoupled_weight_decay:", "if False:", "AdamW", {"weight_decay": 0.1},
    ),
    (
        "adam_foreach_counts_twice", "Adam's form for lists counts each step twice.", "adam:_multi_tensor_adam",
        "device_state_steps, torch.tensor(1.0", "device_state_steps, torch.tensor(2.0",
        "Adam", {"foreach": True},
    ),
    (
        "adadelta_forgets_its_deltas", "Adadelta does not remember its updates.", "adadelta:_single_tensor_adadelta",
        "acc_delta.mul_(rho).addcmul_(delta, delta, value=1 - rho)", "pass", "Adadelta", {},
    ),
    (
        "adagrad_ignores_the_decay_of_its_rate", "Adagrad's rate does not decay.", "adagrad:_single_tensor_adagrad",
        "clr = lr / (1 + (step - 1) * lr_decay)", "clr = lr", "Adagrad", {"lr_decay": 0.5},
    ),
    (
        "adamax_forgets_the_norm", "Adamax takes the last gradient for the norm.", "adamax:_single_tensor_adamax",
        "exp_inf.mul_(beta2),", "exp_inf.mul_(0),", "Adamax", {"betas": (0.9, 0.999)},
    ),
    (
        "nadam_product_is_not_kept", "NAdam's product of momenta is that of the last step.",
        "nadam:_single_tensor_nadam",
        "mu_product *= mu", "mu_product.fill_(mu)", "NAdam", {},
    ),
    (
        "radam_never_rectifies", "RAdam never rectifies its rate.", "radam:_single_tensor_radam",
        "if rho_t > 5.0:", "if False:", "RAdam", {"betas": (0.8, 0.9)},
    ),
    (
        "rmsprop_is_not_centred", "RMSprop ignores the mean of gradients when it is to be centred.",
        "rmsprop:_single_tensor_rmsprop", "avg = square_avg.addcmul(grad_avg, grad_avg, value=-1).sqrt_()",
        "avg = square_avg.sqrt()", "RMSprop", {"centered": True},
    ),
    (
        "rprop_ignores_its_smallest_step", "Rprop's steps get smaller than the smallest one.",
        "rprop:_single_tensor_rprop", "clamp_(step_size_min, step_size_max)", "clamp_(max=step_size_max)",
        "Rprop", {"step_sizes": (0.09, 50.0)},
    ),
    (
        "rprop_steps_after_a_change_of_sign", "Rprop takes a step where the sign of the gradient has changed.",
        "rprop:_single_tensor_rprop", "grad[sign.eq(etaminus)] = 0", "pass", "Rprop", {},
    ),
)  # fmt: skip


def _shows(name: str, options: dict[str, Any]) -> Any:
    return lambda: _weights(name, **options)


for _name, _breaks, _where, _old, _new, _of, _options in _STEPS:
    broken.edit(_name, _breaks, f"torch.optim.{_where}", _old, _new, _REFERENCES, shows=_shows(_of, _options))


def _reloaded(name: str = "Adam", **options: Any) -> object:
    import torch

    weight = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    first, second = (getattr(torch.optim, name)([weight], **{"lr": 0.1, **options}) for _ in range(2))
    weight.grad = torch.full_like(weight, 0.5)
    first.step()
    for kept in first.state.values():
        kept["step"].fill_(301.0)
    second.load_state_dict(first.state_dict())
    return str(second.state_dict()), [str(kept["step"].dtype) for kept in second.state.values()]


@broken("A state that is loaded has its number of steps in the weights' type.", _STATE, shows=_reloaded)
def optimiser_steps_in_the_weights_type() -> None:
    import torch

    def around(_: Any) -> Any:
        def value_of(param: Any, value: Any, *others: Any, **more: Any) -> Any:
            return value.to(dtype=param.dtype, device=param.device) if param.is_floating_point() else value

        return value_of

    replace(torch.optim.Optimizer, "_process_value_according_to_param_policy", around)


@broken("A new state counts its steps in the weights' type.", _STATE, shows=lambda: _weights_of_bfloat16())
def optimiser_new_steps_in_the_weights_type() -> None:
    import torch
    from torch.optim import adadelta, adagrad, adam, adamax, nadam, optimizer, radam, rmsprop, rprop

    for module in (adadelta, adagrad, adam, adamax, nadam, optimizer, radam, rmsprop, rprop):
        if hasattr(module, "_get_scalar_dtype"):
            replace(module, "_get_scalar_dtype", lambda _: lambda *a, **k: torch.bfloat16)


def _weights_of_bfloat16() -> object:
    import torch

    weight = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    optimiser = torch.optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    optimiser.step()
    return str(optimiser.state_dict())


@broken("A state that is loaded has the learning rate of the optimiser that loads it.", _STATE, shows=lambda: _rates())
def optimiser_keeps_its_own_rate() -> None:
    import torch

    def around(load: Any) -> Any:
        def loads(self: Any, state: Any) -> None:
            rates = [group["lr"] for group in self.param_groups]
            load(self, state)
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate

        return loads

    replace(torch.optim.Optimizer, "load_state_dict", around)


def _rates() -> object:
    import torch

    weight = torch.ones(3, requires_grad=True)
    first, second = (torch.optim.SGD([weight], lr=rate) for rate in (0.1, 0.7))
    second.load_state_dict(first.state_dict())
    return second.param_groups[0]["lr"]


@broken(
    "A state dictionary that is loaded is not copied: both optimisers share their state.",
    _STATE,
    shows=lambda: _shared(),
)
def optimiser_shares_loaded_state() -> None:
    import torch

    def around(load: Any) -> Any:
        def loads(self: Any, state: Any) -> None:
            load(self, state)
            parameters = [p for group in self.param_groups for p in group["params"]]
            for number, kept in state["state"].items():
                self.state[parameters[number]] = kept

        return loads

    replace(torch.optim.Optimizer, "load_state_dict", around)


def _shared() -> object:
    import torch

    weight = torch.ones(3, requires_grad=True)
    first, second = (torch.optim.SGD([weight], lr=0.1, momentum=0.9) for _ in range(2))
    weight.grad = torch.ones_like(weight)
    first.step()
    second.load_state_dict(first.state_dict())
    return first.state[weight] is second.state[weight], [
        first.state_dict()["state"][0] is kept for kept in second.state.values()
    ]


@broken("A group that is added ignores its own options.", _GROUPS, shows=lambda: _added())
def optimiser_group_has_no_options() -> None:
    import torch

    def around(add: Any) -> Any:
        def adds(self: Any, group: dict[str, Any]) -> None:
            add(self, {"params": group["params"]})

        return adds

    replace(torch.optim.Optimizer, "add_param_group", around)


def _added() -> object:
    import torch

    a, b = (torch.ones(1, requires_grad=True) for _ in range(2))
    optimiser = torch.optim.SGD([a], lr=0.1)
    optimiser.add_param_group({"params": [b], "lr": 0.9})
    return [group["lr"] for group in optimiser.param_groups]


@broken("A weight may be in two groups.", _GROUPS, shows=lambda: _twice())
def optimiser_takes_a_weight_twice() -> None:
    from tests.breaks.breaks import edit

    edit("torch.optim.optimizer:Optimizer.add_param_group", "if not param_set.isdisjoint(", "if False and (")


def _twice() -> object:
    import torch

    a = torch.ones(1, requires_grad=True)
    optimiser = torch.optim.SGD([a], lr=0.1)
    optimiser.add_param_group({"params": [a]})
    return len(optimiser.param_groups)


@broken("`zero_grad` keeps gradients that are to be None as zeros.", _GROUPS, shows=lambda: _zeroed())
def optimiser_zero_grad_keeps_tensors() -> None:
    import torch

    replace(
        torch.optim.Optimizer, "zero_grad", lambda zero: lambda self, set_to_none=True: zero(self, set_to_none=False)
    )


def _zeroed() -> object:
    import torch

    a = torch.ones(1, requires_grad=True)
    a.sum().backward()
    torch.optim.SGD([a], lr=0.1).zero_grad()
    return a.grad


@broken("`zero_grad` zeroes the first group only.", _GROUPS, shows=lambda: _zeroed_groups())
def optimiser_zero_grad_of_one_group() -> None:
    from tests.breaks.breaks import edit

    edit(
        "torch.optim.optimizer:Optimizer.zero_grad",
        "for group in self.param_groups:",
        "for group in self.param_groups[:1]:",
    )


def _zeroed_groups() -> object:
    import torch

    a, b = (torch.ones(1, requires_grad=True) for _ in range(2))
    (a + b).sum().backward()
    torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=0.1).zero_grad()
    return a.grad, b.grad


@broken("A hook after a step is called before it.", _STATE, shows=lambda: _hooks())
def optimiser_post_hook_is_early() -> None:
    import torch

    replace(
        torch.optim.Optimizer,
        "register_step_post_hook",
        lambda _: lambda self, hook: self.register_step_pre_hook(hook),
    )


def _hooks() -> object:
    import torch

    a, calls = torch.ones(1, requires_grad=True), []
    a.grad = torch.ones(1)
    optimiser = torch.optim.SGD([a], lr=1.0)
    optimiser.register_step_post_hook(lambda *_: calls.append(a.item()))
    optimiser.step()
    return calls


@broken("ASGD's form for lists keeps no average.", _REFERENCES, shows=lambda: _weights("ASGD", foreach=True, t0=2.0))
def asgd_foreach_keeps_no_average() -> None:
    from torch.optim import asgd

    def around(step: Any) -> Any:
        def steps(params: Any, grads: Any, axs: Any, *others: Any, **named: Any) -> None:
            step(params, grads, [average.clone() for average in axs], *others, **named)

        return steps

    replace(asgd, "_multi_tensor_asgd", around)


@broken(
    "Adam's form for lists adds the weight decay to the gradients themselves.",
    _GROUPS,
    shows=lambda: _gradient_after_a_step(),
)
def adam_foreach_adds_decay_to_gradients() -> None:
    from tests.breaks.breaks import edit

    edit(
        "torch.optim.adam:_multi_tensor_adam",
        "if maximize:\n                    torch._foreach_add_(",
        "if True:\n                    torch._foreach_add_(",
    )


def _gradient_after_a_step() -> object:
    import torch

    weight = torch.ones(2)
    weight.grad = torch.ones(2)
    torch.optim.Adam([weight], weight_decay=0.5, foreach=True).step()
    return weight.grad.tolist()


@broken("A state dictionary that does not fit is refused when the state is gone.", _STATE, shows=lambda: _refused())
def optimiser_forgets_before_it_refuses() -> None:
    import torch

    def around(load: Any) -> Any:
        def loads(self: Any, state: Any) -> None:
            self.state.clear()
            load(self, state)

        return loads

    replace(torch.optim.Optimizer, "load_state_dict", around)


def _refused() -> object:
    import torch

    a, b = (torch.ones(1, requires_grad=True) for _ in range(2))
    first, second = torch.optim.SGD([a], lr=0.1, momentum=0.9), torch.optim.SGD([a, b], lr=0.1, momentum=0.9)
    a.grad = torch.ones(1)
    first.step()
    try:
        first.load_state_dict(second.state_dict())
    except ValueError:
        return len(first.state)
    return None


@broken("A hook around `state_dict` stays when it is removed.", _STATE, shows=lambda: _removed())
def optimiser_state_dict_hooks_stay() -> None:
    import torch

    def around(register: Any) -> Any:
        def registers(self: Any, hook: Any, prepend: bool = False) -> Any:
            handle = register(self, hook, prepend)
            handle.remove = lambda: None
            return handle

        return registers

    replace(torch.optim.Optimizer, "register_state_dict_post_hook", around)


def _removed() -> object:
    import torch

    optimiser, calls = torch.optim.SGD([torch.ones(1)], lr=1.0), []
    optimiser.register_state_dict_post_hook(lambda *_: calls.append(1)).remove()
    optimiser.state_dict()
    return calls


@broken(
    "L-BFGS calls the closure more often than `max_eval` allows.",
    "suites/optimizers/test_others.py",
    shows=lambda: _evaluated(),
)
def lbfgs_ignores_max_eval() -> None:
    from tests.breaks.breaks import edit

    edit("torch.optim.lbfgs:LBFGS.step", 'max_eval = group["max_eval"]', "max_eval = 1000")


def _evaluated() -> object:
    import torch

    x, calls = torch.ones(2, requires_grad=True), []
    optimiser = torch.optim.LBFGS([x], lr=0.1, max_iter=10, max_eval=3)

    def closure() -> Any:
        calls.append(1)
        optimiser.zero_grad()
        loss = (x**4).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return len(calls)


@broken(
    "A foreach optimizer views only the first of its complex weights as pairs of numbers.",
    _GROUPS,
    shows=lambda: _complex_weights(),
)
def foreach_views_one_complex_weight() -> None:
    import sys

    import torch

    def view_as_real(params: Any, *states_and_gradients: Any) -> None:
        if torch.is_complex(params[0]):
            for tensors in (params, *states_and_gradients):
                tensors[0] = torch.view_as_real(tensors[0])

    for name, module in [*sys.modules.items()]:
        if name.startswith("torch.optim.") and hasattr(module, "_view_as_real"):
            replace(module, "_view_as_real", lambda _: view_as_real)


def _complex_weights() -> object:
    import torch

    weights = [torch.nn.Parameter(torch.tensor([1 + 2j, 3 - 1j])) for _ in range(2)]
    optimiser = torch.optim.Adam(weights, lr=0.1, foreach=True)
    for weight in weights:
        weight.grad = torch.tensor([0.5 - 0.1j, 2 + 1j])
    optimiser.step()
    return [weight.tolist() for weight in weights]


#: Functions of `torch.optim`, and the option with which they ignore `maximize`.
_MINIMIZES: tuple[tuple[str, str, str, dict[str, Any], bool], ...] = (
    ("sgd:_single_tensor_sgd", "nesterov", "SGD", {"nesterov": True, "momentum": 0.9}, False),
    ("sgd:_multi_tensor_sgd", "nesterov", "SGD", {"nesterov": True, "momentum": 0.9}, True),
    ("nadam:_multi_tensor_nadam", "decoupled_weight_decay", "NAdam", {"decoupled_weight_decay": True}, True),
    ("rmsprop:_single_tensor_rmsprop", "centered", "RMSprop", {"centered": True}, False),
    ("adagrad:_single_tensor_adagrad", "lr_decay", "Adagrad", {"lr_decay": 0.5}, False),
    ("adadelta:_multi_tensor_adadelta", "weight_decay == 0", "Adadelta", {}, True),
)

for _place, _when, _name, _more, _foreach in _MINIMIZES:
    broken.edit(
        f"{_name.lower()}_{'foreach' if _foreach else 'one_by_one'}_minimizes_with_{_when.split()[0]}",
        f"{_name} {'with foreach' if _foreach else 'one by one'} ignores `maximize` if {_when}.",
        f"torch.optim.{_place}",
        "if maximize:" if _foreach else "if not maximize else",
        f"if maximize and not ({_when}):" if _foreach else f"if not maximize or {_when} else",
        _REFERENCES,
        shows=functools.partial(_weights, _name, maximize=True, foreach=_foreach, **_more),
    )
