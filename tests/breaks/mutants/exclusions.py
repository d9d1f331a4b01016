"""Code that is not mutated, since no user of torch can observe the change. Rules over libcst's nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of code that is left out. `matches` gets a node and its source."""

    name: str
    leaves_out: str
    matches: Callable[[cst.CSTNode, Callable[[cst.CSTNode], str]], bool]


_LOGS = re.compile(
    r"(log|logger|_log|logging|warnings|\w+_log|perf_hint_log|torch\._logging\S*)\.\w+\(|"
    r"print\(|\w*_?warn\w*\(|torch\._C\._log_api\w+\(|_?log_\w+\(|trace_structured\(|.*\b_warn\w*\(|"
    r"get_chromium_event_logger\(\)\.\w+\("
)
_PLATFORM = re.compile(
    r"sys\.platform|platform\.|IS_WINDOWS|IS_MACOS|version\.hip|_is_hip|is_scripting\(|torch\.jit\.|mtia|\bxpu\b|\bmps\b|"
    r"\bhpu\b|\bxla\b|privateuse|torch_function|torch_xla|sys\.version_info|is_fbcode"
)
_DEBUG_NAMES = re.compile(
    r"__repr__|__str__|__dir__|__del__|extra_repr|__torch_function__|__getstate__|_repr_\w+|.*_debug\w*|debug\w*|"
    r"_log\w*|log_\w*|_warn\w*|.*_for_logging|_raise_\w+|.*_warning\w*"
)
_TYPING_DECORATORS = ("overload", "deprecated", "typing.overload", "typing_extensions.deprecated")


def _is_logging(node: cst.CSTNode, code: Callable[[cst.CSTNode], str]) -> bool:
    return isinstance(node, cst.Expr) and isinstance(node.value, cst.Call) and bool(_LOGS.match(code(node.value)))


def _is_typing(node: cst.CSTNode, code: Callable[[cst.CSTNode], str]) -> bool:
    if isinstance(node, cst.Annotation):
        return True
    if isinstance(node, cst.If):
        return code(node.test).endswith("TYPE_CHECKING")
    if isinstance(node, cst.FunctionDef):
        return any(code(decorator.decorator).startswith(_TYPING_DECORATORS) for decorator in node.decorators)
    if isinstance(node, cst.ClassDef):
        return any(code(base.value).startswith(("Protocol", "NamedTuple", "TypedDict")) for base in node.bases)
    return isinstance(node, cst.Call) and code(node.func) in ("cast", "typing.cast")


def _is_platform(node: cst.CSTNode, code: Callable[[cst.CSTNode], str]) -> bool:
    if isinstance(node, cst.If | cst.IfExp):
        return bool(_PLATFORM.search(code(node.test)))
    return isinstance(node, cst.BooleanOperation | cst.Comparison) and bool(_PLATFORM.search(code(node)))


def _is_text(node: cst.CSTNode, _: Callable[[cst.CSTNode], str]) -> bool:
    if isinstance(node, cst.Expr):
        return isinstance(node.value, cst.SimpleString | cst.ConcatenatedString)
    return isinstance(node, cst.FormattedString | cst.ConcatenatedString)


def _is_own_check(node: cst.CSTNode, code: Callable[[cst.CSTNode], str]) -> bool:
    if isinstance(node, cst.Call):
        return code(node.func) == "zip" and any(argument.keyword is not None for argument in node.args)
    if isinstance(node, cst.If):  # an assertion in a form that `python -O` keeps
        return node.orelse is None and code(node.body).strip().startswith("raise AssertionError")
    if isinstance(node, cst.Raise):
        return code(node).startswith("raise AssertionError")
    return isinstance(node, cst.Assert)


def _is_named_debug(node: cst.CSTNode, _: Callable[[cst.CSTNode], str]) -> bool:
    return isinstance(node, cst.FunctionDef) and bool(_DEBUG_NAMES.fullmatch(node.name.value))


def _has_type(*types: type[cst.CSTNode]) -> Callable[[cst.CSTNode, Callable[[cst.CSTNode], str]], bool]:
    return lambda node, _: isinstance(node, types)


RULES = (
    Rule("typing", "annotations, overloads, protocols, `TYPE_CHECKING`, `cast`", _is_typing),
    Rule("logging", "calls of loggers and of `warnings`, `print`, counters of the use of torch", _is_logging),
    Rule(
        "platforms",
        "conditions about the system, ROCm, scripting and other devices, with what they guard",
        _is_platform,
    ),
    Rule("texts", "documentation and formatted texts", _is_text),
    Rule("debugging", "`__repr__`, `__str__`, `__del__`, functions named for debugging or warnings", _is_named_debug),
    Rule(
        "assertions",
        "`assert`, `if …: raise AssertionError` and `zip(…, strict=True)`: checks of torch's own state",
        _is_own_check,
    ),
    Rule(
        "freed names",
        "`del` of a variable",
        lambda node, _: isinstance(node, cst.Del) and isinstance(node.target, cst.Name),
    ),
    Rule("names", "imports, `global`, `nonlocal`", _has_type(cst.Import, cst.ImportFrom, cst.Global, cst.Nonlocal)),
    Rule("decorators", "decorators of functions", _has_type(cst.Decorator)),
)


def excluded_by(node: cst.CSTNode, code: Callable[[cst.CSTNode], str]) -> str:
    """Return the name of the rule that excludes a node and everything below it, or an empty text."""
    return next((rule.name for rule in RULES if rule.matches(node, code)), "")
