"""Generators of random numbers, and saving and loading."""

from __future__ import annotations

import functools
import io
from typing import Any

from tests.breaks.breaks import Theme, edit, replace, replace_kernel
from tests.breaks.kernels import torch_

broken = Theme()

_SEEDS, _STATES, _DRAWS, _GENERATORS = (
    f"suites/rng/test_{name}.py" for name in ("seeds", "states", "draws", "generators")
)
_MULTINOMIAL = "suites/rng/test_multinomial.py"
_TENSORS, _MAP, _MODULES = (f"suites/serialization/test_{name}.py" for name in ("tensors", "map_location", "modules"))
_SAFETY = "suites/serialization/test_safety.py"


@broken("`manual_seed` takes the low 32 bits of a seed.", _SEEDS, shows=lambda: _seeded())
def manual_seed_takes_32_bits() -> None:
    torch = torch_()
    for owner in (torch, torch.random):
        replace(owner, "manual_seed", lambda seed_: lambda seed: seed_(int(seed) & 0xFFFFFFFF))


def _seeded() -> object:
    torch = torch_()
    torch.manual_seed(1 << 40)
    return torch.initial_seed(), torch.rand(1).item()


@broken("`manual_seed` refuses negative seeds.", _SEEDS, shows=lambda: _negative())
def manual_seed_refuses_negative_seeds() -> None:
    torch = torch_()

    def around(seed_: Any) -> Any:
        def seeds(seed: Any) -> Any:
            if int(seed) < 0:
                raise RuntimeError("the seed is negative")
            return seed_(seed)

        return seeds

    for owner in (torch, torch.random):
        replace(owner, "manual_seed", around)


def _negative() -> object:
    torch = torch_()
    torch.manual_seed(-3)
    return torch.rand(1).item()


@broken("`seed` gives the same seed each time.", _SEEDS, shows=lambda: _reseeded())
def seed_is_always_the_same() -> None:
    torch = torch_()

    def seeds() -> int:
        torch.manual_seed(12345)
        return 12345

    for owner in (torch, torch.random):
        replace(owner, "seed", lambda _: seeds)


def _reseeded() -> object:
    torch = torch_()
    return torch.seed() == torch.seed()


@broken("`get_rng_state` draws a number.", _STATES, shows=lambda: _state_read())
def get_rng_state_advances() -> None:
    torch = torch_()

    def around(get: Any) -> Any:
        def gets() -> Any:
            found = get()
            torch.rand(1)
            return found

        return gets

    for owner in (torch, torch.random):
        replace(owner, "get_rng_state", around)


def _state_read() -> object:
    torch = torch_()
    torch.manual_seed(1)
    torch.get_rng_state()
    return torch.rand(1).item()


@broken("`fork_rng` leaves the state of the CPU as the block left it.", _STATES, "suites/rng", shows=lambda: _forked())
def fork_rng_keeps_the_inner_state() -> None:
    import contextlib

    torch = torch_()

    @contextlib.contextmanager
    def forks(*_: Any, **__: Any) -> Any:
        yield

    replace(torch.random, "fork_rng", lambda _: forks)


def _forked() -> object:
    torch = torch_()
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.rand(1)
    return torch.rand(1).item()


def _operator(name: str, change: Any) -> None:
    replace_kernel(name, lambda kernel, *arguments, **named: change(kernel, *arguments, **named))


def _drawn(draw: Any) -> Any:
    def shows() -> object:
        torch = torch_()
        torch.manual_seed(5)
        return draw(torch)

    return shows


@broken("Uniform numbers reach their upper end.", _DRAWS, shows=_drawn(lambda torch: torch.rand(50_000).max().item()))
def uniform_numbers_reach_the_end() -> None:
    torch = torch_()

    def change(kernel: Any, x: Any, low: float = 0.0, high: float = 1.0, **named: Any) -> Any:
        kernel(x, low, high, **named)
        return x.copy_(torch.where(x > low + (high - low) * 0.9999, torch.full_like(x, high), x))

    _operator("uniform_", change)


@broken("Normal numbers have a mean of 0.1.", _GENERATORS, _DRAWS, shows=_drawn(lambda torch: torch.randn(20).tolist()))
def normal_numbers_are_shifted() -> None:
    def change(kernel: Any, x: Any, mean: float = 0.0, std: float = 1.0, **named: Any) -> Any:
        return kernel(x, mean + 0.1, std, **named)

    _operator("normal_", change)


@broken(
    "Normal numbers ignore their deviation.",
    _GENERATORS,
    _DRAWS,
    shows=_drawn(lambda torch: torch.empty(20).normal_(0, 5).tolist()),
)
def normal_numbers_have_deviation_one() -> None:
    def change(kernel: Any, x: Any, mean: float = 0.0, std: float = 1.0, **named: Any) -> Any:
        return kernel(x, mean, 1.0, **named)

    _operator("normal_", change)


@broken("A draw from a generator of one's own comes from the default one.", _GENERATORS, _DRAWS, shows=lambda: _own())
def generators_are_ignored() -> None:
    def change(kernel: Any, x: Any, *ends: Any, generator: Any = None) -> Any:
        return kernel(x, *ends)

    _operator("uniform_", change)
    _operator("normal_", change)


def _own() -> object:
    torch = torch_()
    return (
        torch.rand(1, generator=torch.Generator().manual_seed(1)).item()
        == torch.rand(1, generator=torch.Generator().manual_seed(1)).item()
    )


@broken(
    "`randperm` leaves the last element in its place.", _DRAWS, shows=_drawn(lambda torch: torch.randperm(5).tolist())
)
def randperm_fixes_the_last() -> None:
    torch = torch_()

    def change(kernel: Any, n: int, *, out: Any, generator: Any = None) -> Any:
        kernel(n, out=out, generator=generator)
        if n:
            out.copy_(torch.cat([out[out != n - 1], torch.tensor([n - 1], dtype=out.dtype)]))
        return out

    _operator("randperm.generator_out", change)


@broken(
    "`randint` never gives its lowest value.",
    _DRAWS,
    shows=_drawn(lambda torch: torch.randint(0, 3, (50,)).min().item()),
)
def randint_never_gives_the_lowest() -> None:
    def change(kernel: Any, x: Any, low: int, high: int, **named: Any) -> Any:
        return kernel(x, low + 1 if high - low > 1 else low, high, **named)

    _operator("random_.from", change)


@broken(
    "Bernoulli numbers are one more rarely than they should be.",
    _DRAWS,
    shows=_drawn(lambda torch: torch.empty(9999).bernoulli_(0.5).sum().item()),
)
def bernoulli_is_biased() -> None:
    _operator("bernoulli_.float", lambda kernel, x, p=0.5, **named: kernel(x, p * 0.9, **named))


@broken(
    "Dropout does not scale what is left.",
    _DRAWS,
    "suites/rng",
    shows=_drawn(lambda torch: torch.nn.functional.dropout(torch.ones(20), 0.5).max().item()),
)
def dropout_does_not_scale() -> None:
    torch = torch_()
    replace(
        torch.nn.functional,
        "dropout",
        lambda drop: (
            lambda x, p=0.5, training=True, inplace=False: drop(x, p, training, inplace) * (1 - p if training else 1)
        ),
    )


@broken(
    "`multinomial` draws categories of no weight.",
    _MULTINOMIAL,
    shows=_drawn(lambda torch: torch.tensor([0.0, 1.0]).multinomial(50, True).sum().item()),
)
def multinomial_draws_zero_weights() -> None:
    def change(kernel: Any, x: Any, *others: Any, **named: Any) -> Any:
        return kernel(x + 0.2, *others, **named)

    _operator("multinomial", change)


@broken(
    "`multinomial` without replacement draws with it.",
    _MULTINOMIAL,
    shows=_drawn(lambda torch: torch.ones(8).multinomial(8).tolist()),
)
def multinomial_replaces() -> None:
    _operator("multinomial", lambda kernel, x, n, replacement=False, **named: kernel(x, n, True, **named))


# ---- what is saved and loaded ----


def _through_a_file(value: Any, **options: Any) -> Any:
    import io

    torch = torch_()
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


@broken("Tensors that share memory are apart when they are loaded.", _TENSORS, shows=lambda: _views())
def loaded_views_are_apart() -> None:
    torch = torch_()

    def around(rebuild: Any) -> Any:
        return lambda *arguments: rebuild(*arguments).clone()

    replace(torch._utils, "_rebuild_tensor", around)


def _views() -> object:
    torch = torch_()
    x = torch.zeros(4)
    a, b = _through_a_file([x, x[1:]])
    a.fill_(1)
    return b.tolist()


@broken(
    "A tensor that is loaded does not require a gradient.",
    _TENSORS,
    shows=lambda: _through_a_file(torch_().ones(1, requires_grad=True)).requires_grad,
)
def loaded_tensors_require_no_gradient() -> None:
    torch = torch_()

    def around(rebuild: Any) -> Any:
        @functools.wraps(rebuild)  # saving pickles it by its name
        def rebuilds(storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, *others: Any) -> Any:
            return rebuild(storage, offset, size, stride, False, *others)

        return rebuilds

    replace(torch._utils, "_rebuild_tensor_v2", around)
    # After the first load, the function stays in the cache of allowed functions.
    cached: Any = getattr(torch._weights_only_unpickler, "_get_allowed_globals", None)
    if hasattr(cached, "cache_clear"):
        cached.cache_clear()


@broken(
    "A tensor that is loaded is contiguous.", _TENSORS, shows=lambda: _through_a_file(torch_().ones(2, 3).t()).stride()
)
def loaded_tensors_are_contiguous() -> None:
    torch = torch_()
    replace(
        torch._utils,
        "_rebuild_tensor",
        lambda rebuild: lambda storage, offset, size, stride: rebuild(storage, offset, size, stride).contiguous(),
    )


@broken("A load for a function's storage ignores what the function returns.", _MAP, shows=lambda: _mapped())
def map_location_function_is_ignored() -> None:
    torch = torch_()

    def around(load: Any) -> Any:
        def loads(file: Any, map_location: Any = None, *others: Any, **named: Any) -> Any:
            return load(file, None if callable(map_location) else map_location, *others, **named)

        return loads

    for owner in (torch, torch.serialization):
        replace(owner, "load", around)


def _mapped() -> object:
    seen: list[str] = []

    def place(storage: Any, where: str) -> Any:
        seen.append(where)
        return storage

    _through_a_file(torch_().ones(1), map_location=place)
    return seen


broken.edit(
    "map_location_dict_is_ignored",
    "A dictionary of locations is ignored.",
    "torch.serialization:_get_restore_location",
    "map_location.get(location, location)",
    "location",
    "suites/serialization/test_map_location.py",
    shows=lambda: str(_through_a_file(torch_().ones(1), map_location={"cpu": "meta"}).device),
)


@broken("A safe load runs any code.", _SAFETY, shows=lambda: _unsafe())
def safe_load_is_unsafe() -> None:
    torch = torch_()

    def around(load: Any) -> Any:
        def loads(*arguments: Any, **named: Any) -> Any:
            return load(*arguments, **{**named, "weights_only": False})

        return loads

    for owner in (torch, torch.serialization):
        replace(owner, "load", around)


def _unsafe() -> object:
    import fractions

    return _through_a_file(fractions.Fraction(1, 3), weights_only=True)


@broken("A module takes a state dictionary that lacks a weight.", _MODULES, shows=lambda: _lacking())
def modules_accept_missing_keys() -> None:
    torch = torch_()

    def around(load: Any) -> Any:
        return lambda self, state, strict=True, assign=False: load(self, state, strict=False, assign=assign)

    replace(torch.nn.Module, "load_state_dict", around)


def _lacking() -> object:
    torch = torch_()
    return str(torch.nn.Linear(1, 1).load_state_dict({"weight": torch.ones(1, 1)}))


@broken("A module that is to take over weights copies them.", _MODULES, shows=lambda: _assigned())
def modules_assign_by_copying() -> None:
    torch = torch_()

    def around(load: Any) -> Any:
        return lambda self, state, strict=True, assign=False: load(self, state, strict=strict, assign=False)

    replace(torch.nn.Module, "load_state_dict", around)


def _assigned() -> object:
    torch = torch_()
    module, weight = torch.nn.Linear(1, 1, bias=False), torch.ones(1, 1)
    module.load_state_dict({"weight": weight}, assign=True)
    return module.weight.data_ptr() == weight.data_ptr()


@broken("A loaded view that negates has the other sign.", _TENSORS, shows=lambda: _negated())
def loaded_views_do_not_negate() -> None:
    torch = torch_()
    edit("torch._utils:_rebuild_tensor_v2", "if metadata:", 'if metadata and "neg" not in metadata:')
    torch._utils._rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"  # saving writes it by its name


def _negated() -> object:
    torch, file = torch_(), io.BytesIO()
    torch.save(torch.tensor([1 + 2j, 3 - 4j]).conj().imag, file)
    file.seek(0)
    return torch.load(file, weights_only=False).tolist()
