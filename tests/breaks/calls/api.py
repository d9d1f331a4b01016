"""The public names of torch's Python modules, and the cases that call each.

There is a table, and the installed torch may have further names.

A name is public if it is in ``__all__`` of its module, or has no underscore and is defined below the module's package.
Public methods and properties of classes, and their methods for ``with`` and ``()``, count too. A name without Python
code, such as a class in C++ or a constant, is not in the table, since its uses cannot be recorded.
"""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from harness.core.errors import HarnessError
from harness.core.text import format_count

#: The table.
FILE = Path(__file__).with_name("api.txt")
#: The modules whose names are listed.
MODULES = (
    "torch.accelerator",
    "torch.accelerator.memory",
    "torch.amp",
    "torch.amp.grad_scaler",
    "torch.autograd",
    "torch.autograd.forward_ad",
    "torch.autograd.function",
    "torch.autograd.functional",
    "torch.autograd.grad_mode",
    "torch.autograd.graph",
    "torch.autograd.profiler",
    "torch.autograd.profiler_util",
    "torch.backends.cuda",
    "torch.backends.cudnn",
    "torch.backends.mkldnn",
    "torch.backends.nnpack",
    "torch.backends.opt_einsum",
    "torch.cuda",
    "torch.cuda.graphs",
    "torch.cuda.memory",
    "torch.cuda.nvtx",
    "torch.cuda.random",
    "torch.cuda.streams",
    "torch.nn.attention",
    "torch.nn.attention.bias",
    "torch.nn.attention.flex_attention",
    "torch.optim",
    "torch.optim.lr_scheduler",
    "torch.optim.swa_utils",
    "torch.profiler",
    "torch.random",
    "torch.serialization",
    "torch.storage",
    "torch.utils.checkpoint",
)
_HEADER = """\
# Public name; number of cases that call it; one of them, or the reason why none does; values of its arguments. Written
# by `python -m tests.breaks names DIR...` from recordings of `python -m tests.breaks record`.
"""
#: Methods of a class that its users call without their names.
_CALLED_BY_SYNTAX = ("__init__", "__call__", "__enter__", "__exit__", "__new__")
#: Why no case is known for a name of another file.
UNRECORDED = "its file is not recorded"
#: Legacy tensor types, from before there was `dtype`.
_LEGACY = re.compile(r"torch\.cuda\.\w+(Tensor|Storage)|.*ContextProp")
#: The most characters of argument values on a line.
_WIDTH = 300


class ApiError(HarnessError):
    """The table of public names cannot be read."""


@dataclass(frozen=True, slots=True)
class PublicName:
    """A public name, such as ``torch.optim.SGD.step``.

    `cases`: how many cases call the name. `text`: the id of one of them, or why none does; empty if there is no reason.
    `arguments`: by parameter, the values that cases passed, as text.
    """

    name: str
    cases: int = 0
    text: str = ""
    arguments: str = ""

    @property
    def missing(self) -> bool:
        """Whether no case calls the name, and there is no reason."""
        return not self.cases and not self.text


def read_api(path: Path) -> Iterator[PublicName]:
    """Yield the lines of a table. Raise ApiError if the table cannot be read or a line is invalid."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ApiError(f"{path}: the table of public names cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        parts = line.split("\t")
        if len(parts) != 4 or not parts[0] or not parts[1].isdigit():
            raise ApiError(f"{path}:{number}: {line[:80]!r} is not 'name, number of cases, case or reason, arguments'")
        yield PublicName(parts[0], int(parts[1]), parts[2], parts[3])


def write_api(path: Path, names: Iterable[PublicName]) -> None:
    """Write a table."""
    lines = [f"{public.name}\t{public.cases}\t{public.text}\t{public.arguments}\n" for public in names]
    path.write_text(_HEADER + "".join(lines), encoding="utf-8")


def public_names(modules: Sequence[str] = MODULES) -> dict[str, tuple[CodeType, ...]]:
    """Return the public names of the installed torch with the code of each.

    For a class, this is the code of its constructor.
    """
    codes: dict[str, tuple[CodeType, ...]] = {}
    seen: set[int] = set()
    for module_name in modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                module = importlib.import_module(module_name)
            except ImportError:
                continue
        for name, value in _members(module):
            if id(value) in seen:
                continue
            seen.add(id(value))
            codes.update(_codes(f"{module_name}.{name}", value))
    return dict(sorted(codes.items()))


def _members(module: ModuleType) -> Iterator[tuple[str, object]]:
    inner = vars(module).get("m")  # `torch.backends.cudnn` and others are objects that replace their modules
    module = inner if isinstance(inner, ModuleType) else module
    listed = getattr(module, "__all__", None)
    package = module.__name__
    for name in listed if listed is not None else sorted(vars(module)):
        value = getattr(module, name, None)
        if (
            name.startswith("_")
            or _LEGACY.fullmatch(f"{package}.{name}")
            or not (inspect.isfunction(value) or inspect.isclass(value))
        ):
            continue
        if listed is None and not str(getattr(value, "__module__", "")).startswith(package):
            continue
        yield name, value


def _codes(name: str, value: object) -> Iterator[tuple[str, tuple[CodeType, ...]]]:
    if not inspect.isclass(value):
        if (code := _code(value)) is not None:
            yield name, (code,)
        return
    if inspect.isabstract(value):
        return
    own = vars(value)
    if constructors := [code for special in _CALLED_BY_SYNTAX if (code := _code(own.get(special))) is not None]:
        yield name, tuple(constructors)
    for method, member in own.items():
        if not method.startswith("_") and (code := _code(member)) is not None:
            yield f"{name}.{method}", (code,)


def _code(value: object) -> CodeType | None:
    """Return the code of a function, method or property, without its decorators; None if it has no Python code."""
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)
    if not callable(value):
        return None
    function = inspect.unwrap(value)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) and "/torch/" in code.co_filename else None


def called(
    codes: Mapping[str, tuple[CodeType, ...]],
    root: Path,
    recorded: Callable[[str], bool],
    callers: Mapping[str, Sequence[str]],
    arguments: Mapping[str, Mapping[str, Iterable[str]]],
    reasons: Mapping[str, str],
) -> list[PublicName]:
    """Return the table. `callers` and `arguments`: by ``path:qualified name`` of a function, below the folder `root`.

    `recorded`: whether calls of functions of a file are recorded. `reasons`: why no case calls a name.
    """
    rows = []
    for name, own in codes.items():
        places = [
            f"{path}:{code.co_qualname}"
            for code in own
            if recorded(path := Path(code.co_filename).relative_to(root).as_posix())
        ]
        if not places:
            rows.append(PublicName(name, text=reasons.get(name, UNRECORDED)))
            continue
        cases = sorted({case for place in places for case in callers.get(place, ())})
        values: dict[str, set[str]] = {}
        for place in places:
            for parameter, shown in arguments.get(place, {}).items():
                if parameter != "self":
                    values.setdefault(parameter, set()).update(shown)
        words = "; ".join(f"{parameter}={'|'.join(sorted(shown))}" for parameter, shown in values.items() if shown)
        text = min(cases, key=lambda case: (len(case), case)) if cases else reasons.get(name, "")
        rows.append(PublicName(name, len(cases), text, "".join(c if c.isprintable() else "?" for c in words)[:_WIDTH]))
    return rows


def with_installed_names(table: Iterable[PublicName], names: Iterable[str]) -> list[PublicName]:
    """Return the table, followed by the names of the installed torch that it lacks."""
    rows = list(table)
    listed = {row.name for row in rows}
    return [*rows, *(PublicName(name) for name in names if name not in listed)]


def module_of_name(name: str, modules: Sequence[str] = MODULES) -> str:
    """Return the module of a public name: the longest module name that it begins with."""
    return max((module for module in modules if name.startswith(f"{module}.")), key=len, default="")


def shares(names: Iterable[PublicName]) -> dict[str, tuple[int, int, int]]:
    """Return, by module, the numbers of names, of names that a case calls, and of names with a reason."""
    by_module: dict[str, tuple[int, int, int]] = {}
    for public in names:
        module = module_of_name(public.name)
        whole, called_, excused = by_module.get(module, (0, 0, 0))
        by_module[module] = whole + 1, called_ + (public.cases > 0), excused + (not public.cases and bool(public.text))
    return dict(sorted(by_module.items()))


def api_summary(names: Sequence[PublicName]) -> str:
    """Return one sentence with the numbers of names: all, called by a case, with a reason, and without."""
    reached = sum(public.cases > 0 for public in names)
    missing = sum(public.missing for public in names)
    total = format_count(len(names), "public name")
    return f"{total}: cases call {reached}, {len(names) - reached - missing} have a reason, {missing} have neither"


def api_page(names: Sequence[PublicName]) -> str:
    """Return the share by module, and the names that no case calls, as Markdown."""
    lines = ["| module | names | called | share |", "| --- | --- | --- | --- |"]
    for module, (whole, reached, excused) in shares(names).items():
        rest = whole - excused
        lines.append(f"| `{module}` | {whole} | {reached} | {f'{reached / rest:.0%}' if rest else '-'} |")
    lines += ["", api_summary(names), "", "| not called | why |", "| --- | --- |"]
    lines += [f"| `{public.name}` | {public.text or '**no case**'} |" for public in names if not public.cases]
    return "\n".join(lines) + "\n"
