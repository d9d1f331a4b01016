"""The base of the msgspec structs of files that every case writes. `harness.core.models` has the bases for pydantic.

msgspec reads and checks a line of a journal five times as fast as pydantic, and executors need no pydantic.
"""

from __future__ import annotations

import msgspec


class DocumentedStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A struct whose JSON schema describes each field with the string below it. Defaults are not written."""
