"""Catalogues on disk: what ``harness catalog --format json`` wrote."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from harness.core.errors import HarnessError

_MOST_BYTES = 256 << 20
_WRITTEN = "harness catalog --format json"


class CatalogFileError(HarnessError):
    """A catalogue on disk cannot be read."""


class Listed(BaseModel):
    """One case, as far as it is read again. Old catalogues have no fingerprints."""

    model_config = ConfigDict(frozen=True)

    id: str
    requires: tuple[dict[str, Any], ...]
    description: str = ""
    fingerprint: str = ""


def read(path: Path) -> list[Listed]:
    """The cases of a catalogue, in its order. Raises CatalogFileError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CatalogFileError(f"{str(path)!r} is not a regular file: give the output of {_WRITTEN!r}")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise CatalogFileError(f"cannot read the catalogue {str(path)!r}") from error
    if len(data) > _MOST_BYTES:
        raise CatalogFileError(f"{str(path)!r} has more than {_MOST_BYTES} bytes: this is no catalogue of cases")
    try:
        return TypeAdapter(list[Listed]).validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = f"{where}: {first['msg']}".removeprefix(": ")
        raise CatalogFileError(f"{str(path)!r} is not an output of {_WRITTEN!r}: {what}") from None
