"""Bases of the pydantic models of files and messages."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError


def first_problem(error: ValidationError) -> str:
    """Return the first problem of a value that a model refuses: ``cases.3.id: Field required``."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


class StrictModel(BaseModel):
    """A strict and frozen model: it refuses unknown fields and converts no value."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FiniteModel(StrictModel):
    """A strict model whose numbers are finite, as in JSON."""

    model_config = ConfigDict(allow_inf_nan=False)


class DocumentedModel(FiniteModel):
    """A finite model whose JSON schema describes each field with the string below it."""

    model_config = ConfigDict(use_attribute_docstrings=True)
