"""Checks of the soft device's operators: results, asynchrony, refusals, and the effects of faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.sim.softdevice import inside, operator_calls
from tests.sim.softdevice.operator_calls import Call

_SLEEP = 20.0  # milliseconds of stream work before each call; longer if that is too short


def soft() -> Any:
    """Return the device's module, which is untyped in torch."""
    return torch.get_device_module("soft")


def setting(tensor: torch.Tensor) -> Any:
    """Return the tensor untyped: not all forms of its method ``set_`` have types."""
    return tensor


def flat(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    assert isinstance(value, Sequence)
    return [tensor for part in value for tensor in flat(part)]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have equal type, shape and values; NaN equals NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = one.detach().cpu().resolve_conj(), other.detach().cpu().resolve_conj()
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def behind_sleep(call: Call, milliseconds: float) -> tuple[list[torch.Tensor], bool]:
    """Return a call's result after a sleep of the stream, and whether the stream still slept when the call returned."""
    tensors = operator_calls.prepare("soft")
    soft().synchronize()
    awake = torch.Event(device="soft")
    soft().sleep(milliseconds)
    awake.record()
    result = call(tensors)
    asleep = not awake.query()
    return flat(result), asleep


def compared(call: Call, wanted: Callable[[bool], bool]) -> str:
    """Return the error of a call, or an empty text. `wanted` tells whether it may return while the stream sleeps."""
    torch.set_num_threads(1)  # more threads would change the order of summation
    expected = flat(call(operator_calls.prepare("cpu")))
    for milliseconds in (_SLEEP, 10 * _SLEEP, 100 * _SLEEP):
        results, asleep = behind_sleep(call, milliseconds)
        if len(results) != len(expected):
            return f"{len(results)} results, not {len(expected)}"
        for i, (result, value) in enumerate(zip(results, expected, strict=True)):
            if not same(result, value):
                return f"result {i} is {result!r}, on the CPU {value!r}"
        if wanted(asleep):
            return ""
    return "waited for its stream" if not asleep else "did not wait for its stream"


def problems(calls: dict[str, Call], wanted: Callable[[bool], bool]) -> dict[str, str]:
    found = {name: compared(call, wanted) for name, call in calls.items()}
    return {name: trouble for name, trouble in found.items() if trouble}


@contextmanager
def injected(text: str) -> Iterator[None]:
    soft().inject(text)
    try:
        yield
    finally:
        soft().inject("")


# ---- values and times ----


@inside.check()
def operators_return_at_once_and_give_what_the_cpu_gives() -> None:
    assert problems(operator_calls.ASYNCHRONOUS, lambda asleep: asleep) == {}


@inside.check()
def other_operators_wait_and_give_what_the_cpu_gives() -> None:
    assert problems(operator_calls.SYNCHRONOUS, lambda asleep: not asleep) == {}


@inside.check()
def a_fallback_keeps_views_aliases_and_outputs() -> None:
    x = torch.arange(6.0, device="soft")
    output = torch.empty(0, device="soft")
    assert torch.linalg.inv(torch.eye(2, device="soft"), out=output) is output
    assert torch.equal(output.cpu(), torch.eye(2))
    inside_of = x.view(2, 3)[:, 1]
    soft().sleep(20)
    x.add_(1)
    torch.special.bessel_j0(x, out=inside_of.new_empty(6))
    assert torch.equal(inside_of.cpu(), torch.tensor([2.0, 5.0]))
    values, where = torch.frexp(x)
    assert torch.equal(torch.ldexp(values, where).cpu(), x.cpu())


@inside.check()
def resizing_and_setting() -> None:
    x = torch.arange(4.0, device="soft")
    soft().sleep(20)
    x.mul_(2)
    x.resize_(6)
    x[4:] = 1
    assert x.tolist() == [0, 2, 4, 6, 1, 1]
    y = torch.empty(0, device="soft").set_(x.untyped_storage(), 1, (2, 2), (2, 1))
    assert y.tolist() == [[2, 4], [6, 1]]
    assert y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert setting(torch.empty(0, device="soft")).set_(x).tolist() == x.tolist()
    x.untyped_storage().resize_(32)
    assert x.tolist() == [0, 2, 4, 6, 1, 1]
    setting(x).set_()
    assert x.shape == (0,)


# ---- copies ----


@inside.check(SOFT_DEVICE_COUNT="2")
def copies_in_every_direction_change_type_and_layout() -> None:
    values = torch.arange(24, dtype=torch.float64).reshape(4, 6) - 11.5
    layouts: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[1:, ::2],
        lambda t: t[:, :1].expand(4, 6),
    ]
    for source in ("cpu", "soft:0", "soft:1"):
        for target in ("cpu", "soft:0", "soft:1"):
            for dtype in (torch.float64, torch.float32, torch.int32, torch.bfloat16, torch.bool, torch.complex64):
                for layout in layouts:
                    for blocking in (False, True):
                        from_ = layout(values.to(source))
                        wanted = layout(values).to(dtype)
                        new = from_.to(target, dtype, non_blocking=blocking)
                        into = torch.zeros(wanted.t().shape, dtype=dtype, device=target).t()
                        into.copy_(from_, non_blocking=blocking)
                        soft().synchronize(0)
                        soft().synchronize(1)
                        assert torch.equal(new.cpu(), wanted), (source, target, dtype)
                        assert torch.equal(into.cpu(), wanted), (source, target, dtype)


@inside.check()
def pinned_copies_return_at_once_and_others_wait() -> None:
    stream = torch.accelerator.current_stream()
    device = torch.zeros(1000, device="soft")
    pinned = torch.ones(1000, pin_memory=True)
    back = torch.zeros(1000, pin_memory=True)
    for milliseconds in (50, 500, 5000):  # long enough for the launches at some point
        soft().synchronize()
        device.zero_()
        back.zero_()
        pinned.fill_(1)
        soft().sleep(milliseconds)
        device.copy_(pinned, non_blocking=True)
        back.copy_(device, non_blocking=True)
        if not stream.query():
            break
    else:
        raise AssertionError("copies of pinned memory waited")
    pinned.fill_(3)  # before the copy has read it
    assert back.sum() == 0
    soft().synchronize()
    assert back.sum() == 3000

    pageable = torch.ones(1000)
    soft().sleep(50)
    device.copy_(pageable, non_blocking=True)
    pageable.fill_(3)  # it was read at the launch
    assert device.sum().item() == 1000
    soft().sleep(50)
    device.fill_(5)
    assert torch.zeros(1000).copy_(device, non_blocking=True).sum() == 5000  # not pinned, so the call waits
    soft().sleep(50)
    device.copy_(torch.ones(1000))
    assert stream.query()


@inside.check(SOFT_DEVICE_COUNT="2")
def a_copy_between_devices_keeps_the_order_of_both_streams() -> None:
    source = torch.zeros(100, device="soft:0")
    target = torch.zeros(100, device="soft:1")
    for i in range(20):
        soft().sleep(2)  # the current device is the source's
        source.fill_(i)
        with torch.accelerator.device_index(1):
            soft().sleep(2)
        target.fill_(-1)
        target.copy_(source)
        source.fill_(-2)
        result = target.clone()
        target.fill_(-3)
        assert result.tolist() == [i] * 100


# ---- refusals ----


def _refusal(call: Callable[[], object]) -> str:
    """Return the error message of a call; empty if it raises nothing."""
    try:
        call()
    except (RuntimeError, IndexError, ValueError) as error:
        return str(error)
    return ""


@inside.check(SOFT_DEVICE_COUNT="2")
def what_is_wrong_in_shape_or_type_is_reported_at_the_launch() -> None:
    x = torch.ones(4, 6, device="soft")
    elsewhere = torch.ones(4, 6, device="soft:1")
    index = torch.tensor([0, 1], device="soft")
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: x + torch.ones(5, device="soft"), "must match the size"),
        (lambda: x @ x, "cannot be multiplied"),
        (lambda: torch.mm(x, x.t(), out=torch.empty(4, 4, dtype=torch.float64, device="soft")), "dtype"),
        (lambda: x.add_(torch.ones(3, 4, 6, device="soft")), "shape"),
        (lambda: x.int().add_(1.5), "can't be cast"),
        (lambda: x.int().mean(), "dtype"),
        (lambda: x.sum(3), "Dimension out of range"),
        (lambda: x.gather(0, index), "same number of dimensions"),
        (lambda: x.index_select(0, x), "index"),
        (lambda: x[torch.ones(3, dtype=torch.bool, device="soft")], "does not match"),
        (lambda: torch.where(x, x, x), "boolean"),
        (lambda: x.expand(2, 4, 6).add_(1), "single memory location"),
        (lambda: x.view(24)[:20].copy_(x.view(24)[4:]), "single memory location"),
        (lambda: torch.nn.functional.nll_loss(x, index), "match"),
        (lambda: torch.nn.functional.layer_norm(x, (5,)), "normalized_shape"),
        (lambda: x.bernoulli_(2.0), "p"),
        (lambda: x + torch.ones(4, 6), "same device"),
        (lambda: x + elsewhere, "same device"),
        (lambda: torch.cat([x, elsewhere]), "same device"),
        (lambda: x @ torch.ones(6, 6), "same device"),
        (lambda: torch.ones(4, 6).add_(x), "same device"),
        (lambda: torch.add(x, x, out=torch.empty(4, 6)), "same device"),
        (lambda: torch.empty(2, device="soft", pin_memory=True), "pinned"),
        (lambda: torch.empty(-1, device="soft"), "negative dimension"),
    ]
    for number, (call, said) in enumerate(refused):
        assert said in _refusal(call), number
    soft().synchronize()
    assert soft().failure(0) is None
    assert x.sum().item() == 24


def _poisons(call: Callable[[], object], said: str) -> None:
    call()  # returns, since the values have not been checked yet
    with pytest.raises(torch.AcceleratorError) as caught:
        soft().synchronize()
    assert said in str(caught.value)
    assert "device-side assert" in str(caught.value)
    with pytest.raises(torch.AcceleratorError):
        torch.zeros(1, device="soft").add_(1)


@inside.check(alone=True)
def a_bad_index_poisons_the_process() -> None:
    x = torch.ones(4, device="soft")
    _poisons(lambda: x.index_select(0, torch.tensor([7], device="soft")), "index out of range")


@inside.check(alone=True)
def a_bad_index_of_an_embedding_poisons_the_process() -> None:
    table = torch.ones(4, 2, device="soft")
    _poisons(lambda: torch.nn.functional.embedding(torch.tensor([9], device="soft"), table), "index out of range")


@inside.check(alone=True)
def a_bad_class_poisons_the_process() -> None:
    x = torch.ones(2, 3, device="soft")
    _poisons(lambda: torch.nn.functional.cross_entropy(x, torch.tensor([0, 5], device="soft")), "Target 5")


@inside.check(alone=True)
def a_bad_advanced_index_poisons_the_process() -> None:
    x = torch.ones(4, 4, device="soft")
    _poisons(lambda: x[torch.tensor([7], device="soft")], "index 7 is out of bounds")


@inside.check(alone=True)
def a_failed_assertion_poisons_the_process() -> None:
    _poisons(lambda: torch._assert_async(torch.zeros(1, device="soft"), "all is lost"), "all is lost")


@inside.check(alone=True)
def bad_probabilities_poison_the_process() -> None:
    _poisons(lambda: torch.multinomial(torch.tensor([-1.0, 2.0], device="soft"), 1), "probability")


# ---- random numbers ----


@inside.check()
def random_numbers_follow_their_seed_and_their_law() -> None:
    def drawn(generator: torch.Generator | None = None) -> list[torch.Tensor]:
        x = torch.empty(20000, device="soft")
        return [
            x.normal_(3, 2, generator=generator).clone(),
            x.uniform_(-1, 3, generator=generator).clone(),
            x.exponential_(2, generator=generator).clone(),
            x.bernoulli_(0.25, generator=generator).clone(),
            x.random_(8, generator=generator).clone(),
            torch.randperm(1000, device="soft", generator=generator),
            torch.randint(0, 5, (1000,), device="soft", generator=generator),
            torch.multinomial(torch.tensor([0.0, 1.0, 3.0], device="soft"), 20000, True, generator=generator),
            torch.bernoulli(torch.full((20000,), 0.75, device="soft"), generator=generator),
            torch.normal(x, 2.0, generator=generator),
        ]

    torch.manual_seed(5)
    first = drawn()
    second = drawn()
    torch.manual_seed(5)
    again = drawn()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    own = torch.Generator("soft").manual_seed(5)
    assert all(torch.equal(a, b) for a, b in zip(first, drawn(own), strict=True))
    means = [3, 1, 0.5, 0.25, 3.5, 499.5, 2, 1.75, 0.75]
    for tensor, mean in zip(first, means, strict=False):
        assert abs(tensor.double().mean().item() - mean) < 0.15, mean
    assert first[5].sort().values.equal(torch.arange(1000, device="soft"))
    assert first[7].min().item() == 1


@inside.check()
def dropout_drops_scales_and_has_its_gradient() -> None:
    x = torch.ones(10000, device="soft", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    kept = y != 0
    assert abs(kept.double().mean().item() - 0.75) < 0.05
    assert torch.equal(y[kept], torch.full_like(y[kept], 1 / 0.75))
    torch.autograd.backward(y.sum())
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert torch.equal(torch.nn.functional.dropout(x, 0.25, training=False), x)
    assert torch.nn.functional.dropout(x, 1.0).sum().item() == 0


# ---- autograd ----


@inside.check()
def gradients_are_right() -> None:
    def leaf(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, dtype=torch.float64, device="soft", requires_grad=True)

    torch.manual_seed(1)
    checked: list[tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = [
        (torch.mm, (leaf(3, 4), leaf(4, 2))),
        (torch.nn.functional.linear, (leaf(3, 4), leaf(2, 4), leaf(2))),
        (lambda x: x.softmax(1).tanh(), (leaf(3, 4),)),
        (lambda x, y: (x * y.exp()).sum(0) / y.cosh(), (leaf(3, 4), leaf(4))),
        (lambda x, w: torch.nn.functional.layer_norm(x, (4,), w), (leaf(3, 4), leaf(4))),
        (lambda x, k: torch.nn.functional.conv2d(x, k, padding=1), (leaf(1, 2, 4, 4), leaf(3, 2, 3, 3))),
        (lambda x: x[torch.tensor([0, 2, 0], device="soft")], (leaf(3, 4),)),
        (lambda x: torch.cumsum(x, 1).sort(0).values, (leaf(3, 4),)),
    ]
    for function, inputs in checked:
        assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(lambda x: (x * x).sigmoid(), (leaf(3),))


def _trained(device: str, optimizer: Callable[..., torch.optim.Optimizer]) -> list[torch.Tensor]:
    torch.set_num_threads(1)
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    x, classes = torch.randn(32, 8), torch.randint(0, 4, (32,))
    model, x, classes = model.to(device), x.to(device), classes.to(device)
    steps = optimizer(model.parameters())
    losses = []
    for _ in range(5):
        steps.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), classes)
        torch.autograd.backward(loss)
        steps.step()
        losses.append(loss.detach())
    return [tensor.detach().cpu() for tensor in (*losses, *model.parameters())]


@inside.check()
def training_gives_the_cpus_numbers_bit_for_bit() -> None:
    optimizers: list[Callable[..., torch.optim.Optimizer]] = [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=False),
    ]
    for optimizer in optimizers:
        assert all(map(torch.equal, _trained("cpu", optimizer), _trained("soft", optimizer)))


@inside.check()
def backward_runs_on_the_streams_of_forward() -> None:
    torch.set_num_threads(1)
    values = torch.linspace(-1, 1, 64)
    side = torch.Stream(device="soft")
    x = values.to("soft").requires_grad_()
    for _ in range(10):
        x.grad = None
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            soft().sleep(5)
            y = (x.exp() * x).sum()
        torch.accelerator.current_stream().wait_stream(side)
        torch.autograd.backward(y * 2)
        leaf = values.clone().requires_grad_()
        torch.autograd.backward((leaf.exp() * leaf).sum() * 2)
        assert x.grad is not None
        assert leaf.grad is not None
        assert torch.equal(x.grad.cpu(), leaf.grad)


@inside.check()
def gradient_scaling_finds_what_is_not_finite() -> None:
    scaler = torch.amp.GradScaler("soft", init_scale=4.0, growth_interval=1)
    weight = torch.ones(3, device="soft", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    torch.autograd.backward(scaler.scale(weight.sum()))
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0, 0, 0]
    assert scaler.get_scale() == 8
    optimizer.zero_grad()
    torch.autograd.backward(scaler.scale((weight + torch.inf).prod()))
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0, 0, 0]
    assert scaler.get_scale() == 4


# ---- graphs ----


def _captured(work: Callable[[], object]) -> Any:
    graph: Any = torch.accelerator.Graph()
    side = torch.Stream(device="soft")
    soft().synchronize()
    with side:
        graph.capture_begin()
        try:
            work()
        finally:
            graph.capture_end()
    return graph


@inside.check()
def graphs_read_what_is_there_and_draw_new_numbers() -> None:
    x = torch.ones(5, device="soft")
    y = torch.zeros(5, device="soft")
    noise = torch.zeros(5, device="soft")
    torch.manual_seed(3)

    def work() -> None:
        y.copy_(x * 2 + 1)
        noise.normal_()

    graph = _captured(work)
    seen = []
    for value in (4.0, 5.0):
        x.fill_(value)
        soft().synchronize()
        graph.replay()
        soft().synchronize()
        assert y.tolist() == [2 * value + 1] * 5
        seen.append(noise.clone())
    assert not torch.equal(*seen)
    torch.manual_seed(3)
    graph.replay()
    soft().synchronize()
    assert torch.equal(noise, seen[0])
    with injected("replay_uses_stale_input"):
        x.fill_(7)
        graph = _captured(work)
        x.fill_(9)
        soft().synchronize()
        graph.replay()
        soft().synchronize()
        assert y.tolist() != [19.0] * 5


@inside.check()
def a_graph_names_what_it_cannot_capture() -> None:
    x = torch.ones(5, device="soft")
    with pytest.raises((torch.AcceleratorError, RuntimeError)) as caught:
        _captured(lambda: torch.unique(x))
    text = str(caught.value) + str(caught.value.__context__)
    assert "unique" in text
    soft().synchronize()
    assert x.sum().item() == 5


# ---- faults ----


@inside.check()
def faulty_copies() -> None:
    host = torch.arange(1.0, 9)
    for fault in ("copy_drops_bytes", "copy_corrupts_bytes"):
        with injected(fault):
            device = host.to("soft")
        assert not torch.equal(device.cpu(), host), fault
        device = host.to("soft")
        with injected(fault):
            assert not torch.equal(device.cpu(), host), fault
            copy = torch.zeros(8, device="soft").copy_(device)
            soft().synchronize()
        assert not torch.equal(copy.cpu(), host), fault
        assert int((copy.cpu() != host).sum()) <= 2, fault
        assert soft().times_struck(fault) >= 3
    stream = torch.accelerator.current_stream()
    pinned = torch.zeros(8, pin_memory=True)
    with injected("non_blocking_blocks"):
        soft().sleep(20)
        device.copy_(pinned, non_blocking=True)
        assert stream.query()


@inside.check()
def faulty_arithmetic() -> None:
    torch.set_num_threads(1)
    x = torch.arange(1.0, 7).reshape(2, 3)
    device = x.to("soft")
    with injected("reduction_loses_term"):
        assert device.sum().item() == 15
        assert device.sum(1).tolist() == [3, 9]
        assert device.sum(0, keepdim=True).tolist() == [[1, 2, 3]]
        assert device.mean().item() == 2.5
        assert device.amax().item() == 6
    assert device.tolist() == x.tolist()
    assert device.sum().item() == 21
    words = torch.zeros(12, dtype=torch.int64, device="soft")
    with injected("reads_disturb_neighbours"):
        assert words.sum().item() == 0
        assert words.view(2, 6).sum().item() == 0  # no gap
        assert words.view(2, 2, 3)[:, 0].sum().item() == 0
    assert words.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    up = torch.full((), torch.inf)
    for dtype in (torch.float32, torch.float64):
        a, b = x.to(dtype), x.t().to(dtype) - 3
        wanted = torch.nextafter(a @ b, up.to(dtype))
        with injected("off_by_one_ulp"):
            assert torch.equal((a.to("soft") @ b.to("soft")).cpu(), wanted)
            output = torch.empty(2, 2, dtype=dtype, device="soft")
            torch.mm(a.to("soft"), b.to("soft"), out=output)
            assert torch.equal(output.cpu(), wanted)
            assert torch.equal((a.to("soft") * 2).cpu(), a * 2)
        assert torch.equal((a.to("soft") @ b.to("soft")).cpu(), a @ b)
