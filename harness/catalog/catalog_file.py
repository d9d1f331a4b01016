"""Catalogues on disk: the output of ``harness catalog --format json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from harness.core.errors import HarnessError
from harness.core.file_kind import FileKind
from harness.core.models import first_problem

_WRITTEN = "harness catalog --format json"


class CatalogFileError(HarnessError):
    """A catalogue on disk cannot be read."""


_KIND = FileKind("catalogue", f"give the output of {_WRITTEN!r}", CatalogFileError, 256 << 20)


class CatalogFileEntry(BaseModel):
    """One case: the fields that are read."""

    model_config = ConfigDict(frozen=True)

    id: str
    requires: tuple[dict[str, Any], ...]


def read_catalog(path: Path) -> list[CatalogFileEntry]:
    """Return the cases of a catalogue, in its order. Raise CatalogFileError."""
    data = _KIND.read(path)
    try:
        return TypeAdapter(list[CatalogFileEntry]).validate_json(data)
    except ValidationError as error:
        raise CatalogFileError(f"{str(path)!r} is not an output of {_WRITTEN!r}: {first_problem(error)}") from None
