"""A metric in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge with its values by labels. The textfile collector accepts no timestamps."""

    name: str
    help: str
    values: Mapping[Labels, float]

    @property
    def lines(self) -> Iterator[str]:
        """The metric in the text format. A metric without values has no lines."""
        if not self.values:
            return
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for labels, value in self.values.items():
            written = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels)
            yield f"{self.name}{{{written}}} {_number(value)}" if written else f"{self.name} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(round(float(value), 6))
