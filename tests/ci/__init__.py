"""Tests of the files in `ci/`, which run the hardware matrix."""
