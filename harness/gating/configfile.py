"""Read the YAML files under ``configs/``. Each error names file, line, key and value, and the accepted form.

Only a subset of YAML is supported, so that no value has a surprising meaning: one document of mappings with text keys,
lists, text, decimal numbers, ``true``, ``false`` and ``null``. These are errors: anchors, aliases, tags, merge keys,
duplicate keys, and words that YAML 1.1 reads differently than people do (``no``, ``010``, ``1:30``, ``1e3``, ``.inf``).
A date is read as text.

A version must be in quotes, since YAML reads ``570.10`` as the number 570.1. The error explains this.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import typing
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from harness.core.errors import HarnessError
from harness.core.file_kind import FileKind
from harness.gating import requirements

M = TypeVar("M", bound=BaseModel)
Where: TypeAlias = tuple[str | int, ...]

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_VALUES = 100_000
_MAX_PROBLEMS = 50  # maximum number of problems in one error
_MAX_LINE = 1000  # maximum characters of one problem, and of a value in it
_MAX_SHOWN = 100


class ConfigError(HarnessError):
    """A configuration file is missing or cannot be used. The text has one line per problem, with file and line."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[M]):
    """A loaded file: its content, and the line number of each value."""

    value: M
    path: Path
    lines: Mapping[Where, int] = field(default_factory=dict, repr=False, compare=False)

    def line_of(self, *where: str | int) -> int:
        """Return the line, from 1, of the value at this path of keys and indices.

        If the file has no such value, return the line of the nearest enclosing value.
        """
        return _line(self.lines, where)

    def problem(self, text: str, *where: str | int) -> str:
        """Return a ConfigError line for the value at this path: ``x.yaml:12: gates[2]: 'memroy' is unknown``."""
        return _problem(self.path, self.line_of(*where), where, text)


def load_config(path: Path, model: type[M]) -> Loaded[M]:
    """Read a YAML file as `model`. Raise ConfigError with one line per problem.

    The model validates the values as JSON: in strict mode a list becomes a tuple and text becomes a date, but ``1`` is
    not accepted as text.
    """
    document = _Document(path)
    data = document.plain(_compose(path, _KIND.read_text(path)))
    if document.problems:
        raise _report(document.problems)
    try:
        value = model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise _report(document.explain(error, model)) from None
    return Loaded(value, path, document.lines)


def find_config(name: str, folder: Path, noun: str, base: Path, suffix: str = ".yaml") -> Path:
    """Return the file for `name`: ``<folder>/<name>.yaml``, or, if `name` is a path, that path relative to `base`.

    `name` is a path if it contains a ``/`` or ends in `suffix` (or ``.yml``). `noun`: for errors, such as
    ``profile``. Raise ConfigError if there is no such file; the error lists the existing ones.
    """
    if "/" in name or name.endswith((suffix, ".yml")):
        path = base / name
        if os.path.isfile(path):  # returns False for a name that is too long; Path.is_file raises
            return path
        raise ConfigError(f"{noun} {name!r}: there is no file {shown_path(path)}")
    path = folder / f"{name}{suffix}"
    if os.path.isfile(path):
        return path
    if not folder.is_dir():
        raise ConfigError(
            f"there is no {noun} {name!r}: the folder {shown_path(folder)} does not exist; go to the folder of the "
            "project, or give the path of a file"
        )
    names = sorted(file.name.removesuffix(suffix) for file in folder.glob(f"*{suffix}"))
    raise ConfigError(
        f"there is no {noun} {name!r} in {shown_path(folder)}{'; ' if names else ''}{name_advice(name, names)}"
    )


def name_advice(name: str, names: Collection[str]) -> str:
    """Return advice for the unknown `name`: the most similar known name, or all of them. Empty without known names."""
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"expected one of: {', '.join(names)}" if names else ""


def shown_path(path: Path) -> str:
    """Return a path for messages: relative to the working folder if the path is below it."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else path)


_KIND = FileKind("configuration file", "give a YAML file", ConfigError, MAX_BYTES, shown_path)


def _conditions(written: dict[str, Any]) -> dict[str, Any]:
    problems = [
        value_problem(where, value, f"{_SHOULD}text in quotes (a number loses its trailing zero)")
        for where, value in _leaves(written)
        if isinstance(value, float)
    ]
    numbers = {problem["loc"][0] for problem in problems}
    for name, condition in written.items():
        if name not in numbers:
            problems += _unreadable({name: condition}, (name,))
    problems = problems or _unreadable(written, ())
    if problems:
        raise ValidationError.from_exception_data("conditions", problems)
    return written


Conditions = Annotated[dict[str, Any], AfterValidator(_conditions)]
"""A mapping as in ``requires(...)``. It is checked with ``parse_requirements`` and kept as written."""


def _unreadable(written: Mapping[str, object], where: Where) -> list[InitErrorDetails]:
    try:
        requirements.parse_requirements(written)
    except requirements.RequirementError as error:
        return [value_problem(where, written, str(error))]
    return []


def value_problem(where: Where, value: object, text: str) -> InitErrorDetails:
    """Return a problem of a value, for ValidationError: `where` is its path below the value that is validated."""
    return InitErrorDetails(type=PydanticCustomError("conditions", "{text}", {"text": text}), loc=where, input=value)


def _leaves(value: object, where: Where = ()) -> Iterator[tuple[Where, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*where, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*where, index))
    else:
        yield where, value


class _Unsupported(yaml.MarkedYAMLError):
    """Unsupported YAML, found while composing."""


class _Loader(yaml.SafeLoader):
    """Composes nodes. Rejects unsupported YAML, and limits depth and size (a small file can expand to a huge one)."""

    depth = 0
    values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        problem = None
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            problem = "anchors and aliases are not supported: write the value out"
        elif getattr(event, "tag", None) is not None:
            problem = f"tags are not supported: remove {event.tag!r}"
        elif self.depth >= MAX_DEPTH:
            problem = f"more than {MAX_DEPTH} levels of nesting"
        elif self.values >= MAX_VALUES:
            problem = f"more than {MAX_VALUES} keys and values"
        if problem is not None:
            raise _Unsupported(problem=problem, problem_mark=event.start_mark)
        self.values += 1
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _compose(path: Path, text: str) -> yaml.Node:
    loader: _Loader | None = None
    try:
        loader = _Loader(text)  # the constructor rejects control characters
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        prefix = "" if isinstance(error, _Unsupported) else "not yaml: "
        raise ConfigError(f"{shown_path(path)}:{line}: {prefix}{error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{shown_path(path)}:{line}: not yaml: character {error.character:#04x}") from None
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(root, yaml.Node):
        raise ConfigError(f"{shown_path(path)}:1: the file is empty")
    return root


class _Document:
    """The plain values of a tree of nodes, the line of each, and the problems found in them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Where, int] = {}
        self.problems: list[str] = []
        self._keys: dict[Where, int] = {}
        self._nodes: dict[Where, yaml.Node] = {}

    def plain(self, node: yaml.Node, where: Where = ()) -> Any:
        """Return the value of `node`, as a JSON value."""
        self.lines[where] = node.start_mark.line + 1
        self._nodes[where] = node
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, where)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item, (*where, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        try:
            return _scalar(node)
        except ValueError as error:
            self._note(node, where, str(error))
            return None

    def explain(self, error: ValidationError, model: type[BaseModel]) -> list[str]:
        """Return one line per problem that `model` found. The errors of all branches of a union are one problem."""
        places: dict[Where, tuple[list[str], list[str]]] = {}
        for detail in error.errors(include_url=False)[: 4 * _MAX_PROBLEMS]:  # several errors may be one problem
            where, kind = self._place(detail["loc"]), detail["type"]
            wanted, texts = places.setdefault(where, ([], []))
            if kind == "missing":
                texts.append(f"the key {detail['loc'][-1]!r} is missing")
            elif kind == "extra_forbidden":
                texts.append(f"there is no such key; {name_advice(str(where[-1]), _allowed_keys(model, where[:-1]))}")
            elif kind in ("too_short", "string_too_short"):
                least = detail["ctx"]["min_length"]
                text = kind.startswith("string")
                wanted.append(f"{'text' if text else 'a list'} of {least} or more {'characters' if text else 'items'}")
            elif detail["msg"].startswith(_SHOULD):
                wanted.append(_WANTED.get(kind) or detail["msg"].removeprefix(_SHOULD))
            else:
                texts.append(_own_text(detail["msg"]))
        problems: list[tuple[int, str]] = []
        for where, (wanted, texts) in places.items():
            # A problem deeper in the file replaces this one. For a union, the deeper branch is the one that the user
            # meant. For a list, an invalid item also makes the list too short.
            if wanted and not any(len(other) > len(where) and other[: len(where)] == where for other in places):
                texts.append(f"wanted {' or '.join(dict.fromkeys(wanted))}, found {self._actual(where, wanted)}")
            line = self._keys.get(where) or self.lines[where]
            problems += [(line, _problem(self.path, line, where, text)) for text in dict.fromkeys(texts)]
        return [text for _, text in sorted(problems)]

    def _mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            try:
                key = _key(key_node)
            except ValueError as error:
                self._note(key_node, where, str(error))
                continue
            place = (*where, key)
            if key in values:
                self._note(key_node, where, f"duplicate key {_clipped(key)}, first on line {self._keys[place]}")
                continue
            self._keys[place] = key_node.start_mark.line + 1
            values[key] = self.plain(value_node, place)
        return values

    def _note(self, node: yaml.Node, where: Where, text: str) -> None:
        self.problems.append(_problem(self.path, node.start_mark.line + 1, where, text))

    def _place(self, location: Where) -> Where:
        """Return the part of an error's location that is in the file, without the union branches that pydantic adds."""
        where: Where = ()
        for step in location:
            if (*where, step) in self.lines:
                where = (*where, step)
        return where

    def _actual(self, where: Where, wanted: Collection[str]) -> str:
        node = self._nodes[where]
        if isinstance(node, yaml.MappingNode):
            return "a mapping"
        if not isinstance(node, yaml.ScalarNode):
            return "a list" if node.value else "an empty list"
        if isinstance(_scalar(node), str):
            return _clipped(node.value)
        hint = f": write it in quotes, {node.value!r}" if node.value and _WANTED["string_type"] in wanted else ""
        return f"{node.value or 'nothing'}{hint}"


_SHOULD = "Input should be "

# Texts for pydantic's error types. Its own messages use the type names of Python and JSON.
_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "none_required": "null",
    "date_type": "a date such as 2031-12-31",
    "date_parsing": "a date such as 2031-12-31",
    "date_from_datetime_parsing": "a date such as 2031-12-31",
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "dataclass_type"), "a mapping"),
}


def _own_text(message: str) -> str:
    """Return a validator's message without pydantic's prefix, in lower case."""
    text = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return text[:1].lower() + text[1:]


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError("a key must be text")
    if node.tag == "tag:yaml.org,2002:merge":
        raise ValueError("merge keys are not supported: write the values out")
    if not isinstance(key := _scalar(node), str):
        raise ValueError(f"a key must be text: write {node.value!r} in quotes")
    return key


def _scalar(node: yaml.ScalarNode) -> str | int | float | bool | None:
    """Return the value of a scalar node. Raise ValueError for a value that YAML parsers read in different ways."""
    text: str = node.value
    if any(unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t" for character in text):
        raise ValueError(f"{_clipped(text)} has control characters or surrogates: remove them")
    if node.style is not None:
        return text
    match node.tag.removeprefix("tag:yaml.org,2002:"):
        case "null":
            return None
        case "bool":
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{text!r} is ambiguous (text or boolean): write true, false or {text!r} in quotes")
            return text.lower() == "true"
        case "int":
            if not re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,17})", text):
                raise ValueError(
                    f"{_clipped(text)} is not a plain decimal number: write one, or put the text in quotes"
                )
            return int(text)
        case "float":
            if not re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,17})\.[0-9]{1,18}", text):
                raise ValueError(
                    f"{_clipped(text)} is not a plain decimal number: write one, or put the text in quotes"
                )
            return float(text)
    if re.fullmatch(r"[-+]?[0-9_]*\.?[0-9_]+[eE][-+]?[0-9]+", text):
        raise ValueError(f"{_clipped(text)} is ambiguous (text or number): write a plain number, or put it in quotes")
    return text


def _allowed_keys(model: type[BaseModel], where: Where) -> list[str]:
    """Return the keys that `model` allows at this place of a file."""
    models = {model}
    for step in where:
        fields = [info for candidate in models for name, info in _keys_of(candidate) if name == step]
        # A step that is not a field is an index or a key of a mapping: the models stay the same.
        models = {inner for info in fields for inner in _models_in(info.annotation)} if fields else models
    return sorted({name for candidate in models for name, _ in _keys_of(candidate)})


def _keys_of(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    return [(info.alias or name, info) for name, info in model.model_fields.items()]


def _models_in(annotation: object) -> set[type[BaseModel]]:
    inner = typing.get_args(annotation)
    if inner:
        return {model for argument in inner for model in _models_in(argument)}
    return {annotation} if isinstance(annotation, type) and issubclass(annotation, BaseModel) else set()


def _line(lines: Mapping[Where, int], where: Where) -> int:
    around = (where[:length] for length in range(len(where), -1, -1))
    return next((lines[place] for place in around if place in lines), 1)


def _problem(path: Path, line: int, where: Where, text: str) -> str:
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{_key_text(step)}" for step in where).removeprefix(".")
    return f"{shown_path(path)}:{line}: {f'{steps}: ' if steps else ''}{text}"


def _key_text(key: str) -> str:
    return key if re.fullmatch(r"[\w-]{1,60}", key) else _clipped(key)


def _clipped(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")


def _report(problems: list[str]) -> ConfigError:
    more = ["and more"] if len(problems) > _MAX_PROBLEMS else []
    lines = [text if len(text) <= _MAX_LINE else f"{text[:_MAX_LINE]}…" for text in problems[:_MAX_PROBLEMS]]
    return ConfigError("\n".join([*lines, *more]))
