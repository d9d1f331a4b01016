"""The base of the msgspec structs of files that every case writes. `harness.core.models` has the bases for pydantic.

msgspec reads and checks a line of a journal five times as fast as pydantic, and executors need no pydantic.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import msgspec


class DocumentedStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A struct whose JSON schema describes each field with the string below it. Defaults are not written."""


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type of documented structs."""
    schema: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(kind)))
    for struct in _structs(DocumentedStruct):
        properties = schema.get("$defs", {}).get(struct.__name__, {}).get("properties", {})
        for parent in struct.__mro__:
            for name, text in _field_texts(parent).items():
                if name in properties:
                    properties[name].setdefault("description", text)
    return schema


def _structs(parent: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    return [parent, *(struct for child in parent.__subclasses__() for struct in _structs(child))]


def _field_texts(struct: type) -> dict[str, str]:
    """Return the string below each field in the source of a class."""
    if not issubclass(struct, msgspec.Struct) or struct is msgspec.Struct:
        return {}
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(node, ast.ClassDef)
    encoded = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    return {
        encoded[field.target.id]: inspect.cleandoc(below.value.value)
        for field, below in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }
