"""A kernel of Gluon, which Triton's interpreter does not run."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, unused-ignore"
# Gluon's compiler takes no other annotations.

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def grown(x):
    gl.store(x, gl.load(x) + 1)
