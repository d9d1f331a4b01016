"""Bases of the pydantic models of files and messages."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A model that refuses unknown fields, converts no value, and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FiniteModel(StrictModel):
    """A strict model whose numbers are finite, as those of JSON are."""

    model_config = ConfigDict(allow_inf_nan=False)


class DocumentedModel(FiniteModel):
    """A finite model whose JSON schema describes each field with the string below it."""

    model_config = ConfigDict(use_attribute_docstrings=True)
