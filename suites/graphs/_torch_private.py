"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from suites.reaching import reach


def annotations_enabled() -> bool:
    """Whether the kernels of a capture can be marked for profilers now."""
    found: bool = reach("torch.cuda._graph_annotations._annotations_enabled")
    return found


def disable_annotations() -> None:
    """Switch off what `enable_annotations` of a capture switches on."""
    reach("torch.cuda._graph_annotations.disable_annotations")()
