"""Optimisers: every form of them against their formulas, and what is kept between steps."""
