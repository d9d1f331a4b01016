"""Each case starts after the first profile of its process."""

from __future__ import annotations

from suites.first_profile import _first_profile  # noqa: F401  (a fixture)
