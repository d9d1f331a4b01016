"""A user's SQL on a database that is read-only and closed to files, network and settings."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from harness.core.text import inert_line
from harness.fleet.database import HistoryError, duckdb
from harness.reporting.page import inert

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: The rows of one fetch.
_ROWS = 1000


def print_rows(database: DuckDBPyConnection, query: str, *, as_json: bool) -> None:
    """Print the rows: as one table with tabs and a header, or as JSON. Raise HistoryError if the query fails."""
    try:
        cursor = database.execute(query)
        names = [column[0] for column in cursor.description or ()]
        if not as_json:
            _print("\t".join(names))
        while rows := cursor.fetchmany(_ROWS):
            for row in rows:
                if as_json:
                    _print(json.dumps(dict(zip(names, row, strict=True)), default=str))
                else:
                    _print("\t".join("" if value is None else _cell(value) for value in row))
    except duckdb().Error as error:
        raise HistoryError(f"the query failed: {str(error).strip()}; docs/history.md describes the views") from None


def _cell(value: object) -> str:
    return inert.inert_line(str(value).replace("\t", " "), 10_000)


def _print(line: str) -> None:
    sys.stdout.write(f"{inert_line(line)}\n")
