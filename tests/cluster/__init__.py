"""Tests of cluster runs."""
