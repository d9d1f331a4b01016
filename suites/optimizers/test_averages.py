"""Averages of weights (`torch.optim.swa_utils`), compared with averages computed in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import swa_utils


class Model(nn.Module):
    """Weights of two types, and a buffer of each kind."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.single = nn.Parameter(torch.randn(3, 2, device=device))
        self.exact = nn.Parameter(torch.randn(5, device=device, dtype=torch.float64))
        self.register_buffer("mean", torch.randn(4, device=device))
        self.register_buffer("count", torch.tensor(12, device=device))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return (x @ self.single) * scale

    def change(self) -> None:
        """Give all weights and buffers new values."""
        with torch.no_grad():
            for tensor in (*self.parameters(), self.mean):
                tensor.copy_(torch.randn(tensor.shape, dtype=tensor.dtype))
            if hasattr(self, "count"):
                self.count.add_(12)


def values(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies on the CPU in float64."""
    return {name: tensor.detach().cpu().double().clone() for name, tensor in module.state_dict().items()}


def swa(history: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(history).mean(0)


def ema(history: list[torch.Tensor], decay: float) -> torch.Tensor:
    average = history[0]
    for value in history[1:]:
        average = decay * average + (1 - decay) * value
    return average


Averaged = Callable[[nn.Module], swa_utils.AveragedModel]
KINDS: dict[str, tuple[Averaged, Callable[[list[torch.Tensor]], torch.Tensor]]] = {
    "default": (swa_utils.AveragedModel, swa),
    "swa": (lambda model: swa_utils.AveragedModel(model, avg_fn=swa_utils.get_swa_avg_fn()), swa),
    "swa_multi": (lambda model: swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_swa_multi_avg_fn()), swa),
    "ema": (
        lambda model: swa_utils.AveragedModel(model, avg_fn=swa_utils.get_ema_avg_fn(0.75)),
        lambda history: ema(history, 0.75),
    ),
    "ema_multi": (
        lambda model: swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.75)),
        lambda history: ema(history, 0.75),
    ),
    "ema_of_0.999": (
        lambda model: swa_utils.AveragedModel(model, avg_fn=swa_utils.get_ema_avg_fn()),
        lambda history: ema(history, 0.999),
    ),
    "ema_multi_of_0.999": (
        lambda model: swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn()),
        lambda history: ema(history, 0.999),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.types("float64")
def test_update_parameters_averages(device: torch.device, kind: str) -> None:
    """The first update copies the weights, and each later one averages; buffers are those of the last model.

    The model itself does not change, and `n_averaged` counts the updates.
    """
    make, average = KINDS[kind]
    model = Model(device)
    averaged = make(model)
    assert averaged.n_averaged.item() == 0
    history: dict[str, list[torch.Tensor]] = {name: [] for name in ("single", "exact")}

    for count in range(1, 5):
        model.change()
        before = values(model)
        averaged.update_parameters(model)
        for name, seen in history.items():
            seen.append(before[name])
            torch.testing.assert_close(values(averaged.module)[name], average(seen), rtol=1e-5, atol=1e-6)
        assert averaged.n_averaged.item() == count
        for name in ("mean", "count"):
            assert torch.equal(values(averaged.module)[name], before[name])
        after = values(model)
        assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.types("float64")
def test_averagedmodel_use_buffers_averages_buffers_too(device: torch.device, kind: str) -> None:
    """With `use_buffers`, buffers are averaged like weights."""
    make, average = KINDS[kind]
    model = Model(device)
    del model.count
    averaged = make(model)
    averaged.use_buffers = True
    means, weights = [], []

    for _ in range(3):
        model.change()
        averaged.update_parameters(model)
        means.append(values(model)["mean"])
        weights.append(values(model)["single"])
        torch.testing.assert_close(values(averaged.module)["mean"], average(means), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(values(averaged.module)["single"], average(weights), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "multi",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.xfail(
                raises=RuntimeError, reason="torch._foreach_addcdiv_ refuses whole numbers, also in the default on CUDA"
            ),
        ),
    ],
    ids=["one", "multi"],
)
@pytest.mark.types("float64")
def test_swa_averages_whole_numbers(device: torch.device, multi: bool) -> None:
    """A buffer of whole numbers, such as the `num_batches_tracked` of `BatchNorm`, is averaged too."""
    functions: dict[str, Any] = (
        {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()} if multi else {"avg_fn": swa_utils.get_swa_avg_fn()}
    )
    model = Model(device)
    averaged = swa_utils.AveragedModel(model, use_buffers=True, **functions)
    for wanted in (24, 30, 36):  # averages of 24, 36, 48
        model.change()
        averaged.update_parameters(model)
        assert averaged.module.count.item() == wanted


@pytest.mark.parametrize("multi", [False, True], ids=["one", "multi"])
def test_ema_averages_whole_and_complex_numbers(device: torch.device, multi: bool) -> None:
    """Averages of whole numbers are rounded down after each update, and those of complex numbers are exact."""
    functions: dict[str, Any] = (
        {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.75)} if multi else {"avg_fn": swa_utils.get_ema_avg_fn(0.75)}
    )
    model = nn.Module()
    model.turned = nn.Parameter(torch.tensor([4 + 8j], device=device))
    model.register_buffer("count", torch.tensor(24, device=device))
    averaged = swa_utils.AveragedModel(model, use_buffers=True, **functions)
    wanted = ((24, 4 + 8j), (27, 5 + 7j), (32, 6.75 + 5.25j))
    for count, turned in wanted:
        averaged.update_parameters(model)
        assert (averaged.module.count.item(), averaged.module.turned.item()) == (count, turned)
        with torch.no_grad():
            model.count += 12
            model.turned += 4 - 4j


def test_swa_averages_complex_numbers(device: torch.device) -> None:
    """Complex weights are averaged like real ones, one by one and together."""
    for functions in ({"avg_fn": swa_utils.get_swa_avg_fn()}, {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()}):
        model = nn.Module()
        model.turned = nn.Parameter(torch.tensor([4 + 8j], device=device))
        averaged = swa_utils.AveragedModel(model, **functions)
        for wanted in (4 + 8j, 6 + 6j, 8 + 4j):  # averages of 4 + 8j, 8 + 4j, 12 + 0j
            averaged.update_parameters(model)
            assert averaged.module.turned.item() == pytest.approx(wanted)
            with torch.no_grad():
                model.turned += 4 - 4j


@pytest.mark.parametrize("multi", [False, True], ids=["one", "multi"])
def test_averagedmodel_calls_its_function_from_the_second_update_on(device: torch.device, multi: bool) -> None:
    """The function of the average gets the averages, the model's weights, and the number of previous updates.

    The first update copies, and does not call the function.
    """
    asked: list[tuple[float, float, int]] = []

    def one(average: torch.Tensor, weight: torch.Tensor, count: Any) -> torch.Tensor:
        asked.append((average.item(), weight.item(), int(count)))
        return average + weight

    def several(averages: Any, weights: Any, count: Any) -> None:
        for average, weight in zip(averages, weights, strict=True):
            average.copy_(one(average, weight, count))

    functions: dict[str, Any] = {"multi_avg_fn": several} if multi else {"avg_fn": one}
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor(1.0, device=device))
    averaged = swa_utils.AveragedModel(model, **functions)
    for value in (2.0, 3.0, 4.0):
        with torch.no_grad():
            model.weight.fill_(value)
        averaged.update_parameters(model)
    assert asked == [(2.0, 3.0, 1), (5.0, 4.0, 2)]
    assert averaged.module.weight.item() == 9.0


@pytest.mark.types("float64")
def test_averagedmodel_is_a_copy_of_the_model(device: torch.device) -> None:
    """An averaged model has its own weights, on the given device, and calls the module's `forward`."""
    model = Model(device)
    averaged = swa_utils.AveragedModel(model, device=device)
    x = torch.randn(2, 3, device=device)
    wanted = model(x, scale=2.0)

    with torch.no_grad():
        model.single.zero_()

    assert torch.equal(averaged(x, scale=2.0), wanted)
    assert averaged.n_averaged.device.type == device.type
    elsewhere = swa_utils.AveragedModel(model, device=torch.device("meta"))
    assert all(tensor.is_meta for tensor in elsewhere.state_dict().values())


@pytest.mark.types("float64")
def test_averagedmodel_gets_the_weights_of_a_model_on_another_device(device: torch.device) -> None:
    """Weights of a model on one device are averaged into those of a copy on the CPU."""
    model = Model(device)
    averaged = swa_utils.AveragedModel(model, device=torch.device("cpu"))
    history = []
    for _ in range(3):
        model.change()
        averaged.update_parameters(model)
        history.append(values(model)["single"])
    assert averaged.module.single.device.type == "cpu"
    torch.testing.assert_close(values(averaged.module)["single"], swa(history), rtol=1e-5, atol=1e-6)


@pytest.mark.types("float64")
def test_averagedmodel_state_dict_continues(device: torch.device) -> None:
    """The state has the averages and their count: an average that loads it continues like the original."""
    model = Model(device)
    first, second = swa_utils.AveragedModel(model), swa_utils.AveragedModel(Model(device))
    for _ in range(3):
        model.change()
        first.update_parameters(model)

    second.load_state_dict(first.state_dict())
    model.change()
    first.update_parameters(model)
    second.update_parameters(model)

    assert second.n_averaged.item() == 4
    for name, value in values(first.module).items():
        assert torch.equal(values(second.module)[name], value)


@pytest.mark.parametrize("make", [swa_utils.get_ema_avg_fn, swa_utils.get_ema_multi_avg_fn], ids=["one", "multi"])
def test_ema_decay_outside_0_to_1_is_a_valueerror(make: Callable[[float], object]) -> None:
    """A decay below 0 or above 1 is refused, and both bounds are allowed."""
    for decay in (-0.1, 1.1):
        with pytest.raises(ValueError, match=str(decay)):
            make(decay)
    make(0.0)
    make(1.0)


@pytest.mark.types("float64")
def test_averagedmodel_with_two_functions_is_refused(device: torch.device) -> None:
    """Only one of `avg_fn` and `multi_avg_fn` may be given."""
    with pytest.raises(AssertionError, match="avg_fn"):
        swa_utils.AveragedModel(
            Model(device), avg_fn=swa_utils.get_swa_avg_fn(), multi_avg_fn=swa_utils.get_swa_multi_avg_fn()
        )


# ---- update_bn ----


def batches(*, in_lists: bool) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(3)
    for size in (4, 4, 4):
        batch = torch.randn(size, 6, generator=generator) * 3 + 1
        yield [batch, "label"] if in_lists else batch


@pytest.mark.parametrize("in_lists", [False, True], ids=["tensors", "lists"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_update_bn_computes_the_statistics_of_all_batches(device: torch.device, in_lists: bool, training: bool) -> None:
    """`update_bn` replaces running statistics by the mean over all batches, and restores momentum and mode.

    A batch may be a list whose first element has the data, and `device` moves the data there. No gradient is recorded.
    """
    norm = nn.BatchNorm1d(6, momentum=0.3)
    other = nn.BatchNorm1d(6, momentum=0.7)
    model = nn.Sequential(norm, nn.ReLU(), other).to(device)
    with torch.no_grad():
        norm.running_mean.fill_(100)
    model.train(training)

    swa_utils.update_bn(batches(in_lists=in_lists), model, device=device)

    data = [batch.double() for batch in batches(in_lists=False)]
    mean = torch.stack([batch.mean(0) for batch in data]).mean(0)
    variance = torch.stack([batch.var(0) for batch in data]).mean(0)
    torch.testing.assert_close(norm.running_mean.cpu().double(), mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.running_var.cpu().double(), variance, rtol=1e-4, atol=1e-4)
    assert norm.num_batches_tracked.item() == 3
    assert (norm.momentum, other.momentum) == (0.3, 0.7)
    assert model.training is training
    assert norm.training is training


class Watching(nn.Module):
    """Records the device of its data. Its normalization is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.seen: list[str] = []

    def forward(self, x: torch.Tensor) -> None:
        self.seen.append(x.device.type)


def test_update_bn_moves_the_data_to_the_device() -> None:
    """`update_bn` moves each batch to `device`, and without `device` leaves it where it is."""
    model = Watching()
    for in_lists in (False, True):
        swa_utils.update_bn(batches(in_lists=in_lists), model, device=torch.device("meta"))
        swa_utils.update_bn(batches(in_lists=in_lists), model)
    assert model.seen == (["meta"] * 3 + ["cpu"] * 3) * 2


def test_update_bn_without_batch_normalization_reads_no_data(device: torch.device) -> None:
    """A model without batch normalization is not called, and no data are read."""
    read = []
    swa_utils.update_bn((read.append(1) for _ in range(3)), nn.Linear(2, 2, device=device))
    assert not read


# ---- SWALR ----


@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("epochs", [0, 1, 4])
@pytest.mark.types("float64")
def test_swalr_anneals_to_its_rates(device: torch.device, strategy: str, epochs: int) -> None:
    """The rate of each group reaches its `swa_lr` in `anneal_epochs` steps and then stays, also if it is a tensor."""
    weights = [torch.ones((), device=device, requires_grad=True) for _ in range(2)]
    tensor = torch.tensor(0.25, dtype=torch.float64, device=device)
    optimizer = torch.optim.SGD(
        [{"params": weights[:1], "lr": 0.5}, {"params": weights[1:], "lr": tensor}], foreach=False
    )
    scheduler = swa_utils.SWALR(optimizer, [0.1, 0.75], anneal_epochs=epochs, anneal_strategy=strategy)  # type: ignore[arg-type]

    for step in range(7):
        share = min(1.0, step / epochs) if epochs else 1.0
        alpha = share if strategy == "linear" else (1 - math.cos(math.pi * share)) / 2
        wanted = [0.1 * alpha + 0.5 * (1 - alpha), 0.75 * alpha + 0.25 * (1 - alpha)]
        assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx(wanted, rel=1e-6)
        assert [float(each) for each in scheduler.get_last_lr()] == pytest.approx(wanted, rel=1e-6)
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[1]["lr"] is tensor


def test_swalr_defaults_are_ten_epochs_of_a_cosine() -> None:
    """By default the rate follows a cosine for ten steps; `get_lr` outside of a step warns."""
    weight = torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = swa_utils.SWALR(optimizer, 0.0)
    for step in range(12):
        assert optimizer.param_groups[0]["lr"] == pytest.approx((1 + math.cos(math.pi * min(step, 10) / 10)) / 2)
        optimizer.step()
        scheduler.step()
    with pytest.warns(UserWarning, match="get_last_lr"):
        scheduler.get_lr()


def test_swalr_state_continues() -> None:
    """A scheduler with the state of another continues with the same rates and the same strategy."""

    def make(strategy: str) -> tuple[torch.optim.Optimizer, swa_utils.SWALR]:
        optimizer = torch.optim.SGD([torch.ones((), requires_grad=True)], lr=1.0)
        return optimizer, swa_utils.SWALR(optimizer, 0.1, anneal_epochs=6, anneal_strategy=strategy)  # type: ignore[arg-type]

    (first, scheduler), (second, restored) = make("linear"), make("cos")
    for _ in range(3):
        first.step()
        scheduler.step()
    restored.load_state_dict(scheduler.state_dict())
    second.load_state_dict(first.state_dict())
    for _ in range(4):
        first.step()
        scheduler.step()
        second.step()
        restored.step()
        assert second.param_groups[0]["lr"] == first.param_groups[0]["lr"]


@pytest.mark.parametrize(
    "settings",
    [{"anneal_strategy": "no"}, {"anneal_epochs": -1}, {"anneal_epochs": 1.5}, {"swa_lr": [0.1, 0.2]}],
    ids=["strategy", "negative_epochs", "broken_epochs", "too_many_rates"],
)
def test_swalr_refuses(settings: dict[str, Any]) -> None:
    """Impossible settings are refused in the constructor."""
    optimizer = torch.optim.SGD([torch.ones((), requires_grad=True)], lr=1.0)
    with pytest.raises(ValueError, match="swa_lr" if "swa_lr" in settings else "anneal"):
        swa_utils.SWALR(optimizer, **{"swa_lr": 0.1, **settings})
