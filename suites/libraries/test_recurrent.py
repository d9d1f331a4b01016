"""Recurrent networks, compared with their formulas in NumPy: `RNN`, `LSTM`, `GRU` and their cells, with gradients.

On a GPU these are cuDNN's recurrent networks, and torch's fused cells if cuDNN is disabled.

A step rounds sums of `inputs + hidden` products, whose magnitudes are below the root of `hidden`, and the states keep
such errors: after `steps` steps they are below steps * 8 * (inputs + hidden) roundings. 16-bit types add in float32 and
round each state: 4 roundings per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from .oracle import Array, assert_within, name, numbers, unit
from .recurrence import KINDS, Network, cell
from .slopes import assert_slopes


@dataclass(frozen=True, slots=True)
class Form:
    """Sizes and options of a network, and how it is called."""

    layers: int = 1
    both: bool = False
    bias: bool = True
    batch_first: bool = False
    projection: int = 0
    states: bool = True
    lengths: tuple[int, ...] = (5, 5, 5)
    sort: bool = True
    inputs: int = 4
    hidden: int = 6


FORMS = {
    "plain": Form(),
    "no_states": Form(states=False, batch_first=True),
    "no_bias": Form(bias=False, layers=2),
    "both_directions": Form(both=True, layers=2, lengths=(4, 4)),
    "projection": Form(projection=3, layers=2, both=True, lengths=(4, 4, 4)),
    "packed": Form(lengths=(6, 4, 4, 1), layers=2, both=True),
    "packed_in_any_order": Form(lengths=(2, 5, 1, 4), sort=False, batch_first=True),
    "wide": Form(inputs=33, hidden=65, lengths=(3,) * 9),
    "long": Form(lengths=(61,) * 2, hidden=5),
}
#: cuDNN computes these on a GPU. For `LSTM` and `GRU`, torch also calls CUDA kernels on every other accelerator.
NEEDS = {
    kind: pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"silicon": True}])
    if kind in ("LSTM", "GRU")
    else pytest.mark.requires(any=[{"not_": {"device": "cuda"}}, {"silicon": True}])
    for kind in KINDS
}
KIND = pytest.mark.parametrize("kind", [pytest.param(kind, marks=NEEDS[kind]) for kind in KINDS])
F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16


def _cases() -> list[Any]:
    found = []
    for kind in KINDS:
        for label, form in FORMS.items():
            if form.projection and kind != "LSTM":
                continue
            for dtype in (F32, F64):
                more = dtype == F64 and label not in ("plain", "both_directions")
                marks = [NEEDS[kind], pytest.mark.operator(f"nn.{kind if kind in ('LSTM', 'GRU') else 'RNN'}")]
                marks += [pytest.mark.extended] * more
                found.append(pytest.param(kind, form, dtype, id=f"{kind}-{label}-{name(dtype)}", marks=marks))
    return found


def _new(kind: str, form: Form, device: torch.device, dtype: torch.dtype, rng: np.random.Generator) -> Any:
    """Return a network with random weights, from an initialization of torch."""
    options: dict[str, Any] = {"num_layers": form.layers, "bidirectional": form.both, "bias": form.bias}
    if form.projection:
        options["proj_size"] = form.projection
    if kind in ("tanh", "relu"):
        options["nonlinearity"] = kind
    cls = getattr(nn, kind if kind in ("LSTM", "GRU") else "RNN")
    network = cls(form.inputs, form.hidden, batch_first=form.batch_first, device=device, dtype=dtype, **options)
    _fill(network, form.hidden, rng)
    return network


def _fill(network: Any, hidden: int, rng: np.random.Generator) -> None:
    with torch.no_grad():
        for each in network.parameters():
            values = rng.uniform(-1, 1, tuple(each.shape)) / np.sqrt(hidden)
            each.copy_(torch.from_numpy(values).to(each.dtype))


def _roundings(form: Form) -> float:
    return max(form.lengths) * 8.0 * (form.inputs + form.hidden)


def _given(
    form: Form, network: Any, rng: np.random.Generator, device: torch.device, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], dict[str, Array]]:
    """Return tensors that require grad, and arrays with the same numbers and those of the weights."""
    rows, directions = len(form.lengths), 1 + form.both
    shapes = {
        "x": (max(form.lengths), rows, form.inputs),
        "h": (form.layers * directions, rows, form.projection or form.hidden),
        "c": (form.layers * directions, rows, form.hidden),
    }
    hosts = {key: torch.from_numpy(rng.uniform(-1, 1, shape)).to(dtype) for key, shape in shapes.items()}
    if not form.states:
        hosts["h"], hosts["c"] = torch.zeros_like(hosts["h"]), torch.zeros_like(hosts["c"])
    tensors = {key: each.to(device).requires_grad_() for key, each in hosts.items()}
    arrays = {key: numbers(each) for key, each in hosts.items()}
    arrays |= {key: numbers(each) for key, each in network.named_parameters()}
    return tensors, arrays


def _call(kind: str, form: Form, network: Any, tensors: Mapping[str, torch.Tensor]) -> tuple[Any, Any, Any]:
    """Return outputs (steps, rows, features) and last states."""
    x = tensors["x"].transpose(0, 1) if form.batch_first else tensors["x"]
    packed = len(set(form.lengths)) > 1
    if packed:
        x = nn.utils.rnn.pack_padded_sequence(  # type: ignore[assignment]
            x, torch.tensor(form.lengths), batch_first=form.batch_first, enforce_sorted=form.sort
        )
    states = (tensors["h"], tensors["c"]) if kind == "LSTM" else tensors["h"]
    out, last = network(x, states) if form.states else network(x)
    if packed:
        out, counts = nn.utils.rnn.pad_packed_sequence(out, batch_first=form.batch_first)
        assert counts.tolist() == list(form.lengths)
    h, c = last if kind == "LSTM" else (last, None)
    return (out.transpose(0, 1) if form.batch_first else out), h, c


#: torch warns that projections use its own implementation.
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(("kind", "form", "dtype"), _cases())
def test_recurrent_network_is_its_formula(
    device: torch.device, rng: np.random.Generator, kind: str, form: Form, dtype: torch.dtype
) -> None:
    """Outputs, last states and all gradients are those of the documented formulas, row by row.

    Rows of a packed sequence end at their own lengths.
    """
    _check(kind, form, device, dtype, rng)


@pytest.mark.requires(device="cuda", silicon=True)
@pytest.mark.parametrize("dtype", [F32, F64], ids=name)
@pytest.mark.parametrize("label", ["no_bias", "both_directions", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_network_without_cudnn(
    device: torch.device,
    rng: np.random.Generator,
    kind: str,
    label: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With cuDNN disabled, a GPU computes the same with torch's own cells."""
    # Not with `cudnn.flags`, which reads `allow_tf32`: this raises after `fp32_precision` was set.
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    _check(kind, FORMS[label], device, dtype, rng)


def _check(kind: str, form: Form, device: torch.device, dtype: torch.dtype, rng: np.random.Generator) -> None:
    """Check the results of a network, and its gradients."""
    network = _new(kind, form, device, dtype, rng)
    tensors, arrays = _given(form, network, rng, device, dtype)
    reference, lengths = Network(kind, form.layers, 1 + form.both), np.array(form.lengths)
    within = _roundings(form) * unit(dtype)
    with torch.no_grad():
        found = _call(kind, form, network, tensors)
    wanted = reference.run(arrays, lengths)
    for each, array in zip(found, wanted, strict=True):
        if each is not None:
            assert_within(each, array, within)

    results = [each for each in _call(kind, form, network, tensors) if each is not None]
    factors = [rng.uniform(0.5, 1.5, tuple(each.shape)) for each in results]
    torch.autograd.backward(results, [torch.from_numpy(each).to(dtype).to(device) for each in factors])
    exact = [numbers(torch.from_numpy(each).to(dtype)) for each in factors]
    for each, array in zip(results, wanted, strict=False):
        assert_within(each, array, within)

    def value(given: Mapping[str, Array]) -> complex:
        return complex(
            sum((out * factor).sum() for out, factor in zip(reference.run(given, lengths), exact, strict=False))
        )

    gradients = {key: each.grad for key, each in network.named_parameters()}
    gradients["x"] = tensors["x"].grad
    if form.states:
        gradients["h"] = tensors["h"].grad
        if kind == "LSTM":
            gradients["c"] = tensors["c"].grad
    assert_slopes(value, arrays, gradients, rng, 4 * _roundings(form))


#: `flatten_parameters` omits bfloat16, which cuDNN supports.
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
@pytest.mark.parametrize("dtype", [F16, BF16], ids=name)
@KIND
def test_recurrent_network_of_16_bits(
    device: torch.device, rng: np.random.Generator, kind: str, dtype: torch.dtype
) -> None:
    """For 16-bit types, outputs and last states are within four roundings per step."""
    form = Form(layers=2, lengths=(4, 4, 4))
    network = _new(kind, form, device, dtype, rng)
    tensors, arrays = _given(form, network, rng, device, dtype)

    with torch.no_grad():
        found = _call(kind, form, network, tensors)

    wanted = Network(kind, form.layers).run(arrays, np.array(form.lengths))
    for each, array in zip(found, wanted, strict=True):
        if each is not None:
            assert_within(each, array, 4 * 4 * 2 * unit(dtype))


@pytest.mark.parametrize("dtype", [F32, F64], ids=name)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@KIND
def test_recurrent_cell_is_its_formula(
    device: torch.device, rng: np.random.Generator, kind: str, bias: bool, dtype: torch.dtype
) -> None:
    """`RNNCell`, `LSTMCell` and `GRUCell` give the states of their formulas after a step, and the gradients.

    This holds with and without a bias.
    """
    form = Form(lengths=(1,) * 7, inputs=5, hidden=9)
    options: dict[str, Any] = {"nonlinearity": kind} if kind in ("tanh", "relu") else {}
    cls = getattr(nn, f"{kind if kind in ('LSTM', 'GRU') else 'RNN'}Cell")
    network = cls(5, 9, bias=bias, device=device, dtype=dtype, **options)
    _fill(network, 9, rng)
    tensors, arrays = _given(form, network, rng, device, dtype)
    for key in arrays:
        if key in ("x", "h", "c"):
            arrays[key] = arrays[key][0]

    rows = {key: each[0] for key, each in tensors.items()}
    states = (rows["h"], rows["c"]) if kind == "LSTM" else rows["h"]
    found = network(rows["x"], states)
    found = found if kind == "LSTM" else (found,)
    wanted = cell(kind, arrays["x"], arrays["h"], arrays["c"], arrays, "")[: len(found)]
    for each, array in zip(found, wanted, strict=True):
        assert_within(each, array, _roundings(form) * unit(dtype))

    factors = [torch.from_numpy(rng.uniform(0.5, 1.5, (7, 9))).to(dtype) for _ in found]
    torch.autograd.backward(found, [each.to(device) for each in factors])
    exact = [numbers(each) for each in factors]

    def value(given: Mapping[str, Array]) -> complex:
        states = cell(kind, given["x"], given["h"], given["c"], given, "")
        return complex(sum((out * factor).sum() for out, factor in zip(states, exact, strict=False)))

    gradients = {key: each.grad for key, each in network.named_parameters()}
    for key in ("x", "h", "c") if kind == "LSTM" else ("x", "h"):
        grad = tensors[key].grad
        gradients[key] = None if grad is None else grad[0]
    assert_slopes(value, arrays, gradients, rng, 4 * _roundings(form))
