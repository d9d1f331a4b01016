"""Hooks of a session with ``--collect-only``, which lists the cases that a run would select."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Generator

import pytest

from harness.collection.cases import select_cases
from harness.collection.narrowing import NarrowCollection
from harness.configuration import options
from harness.controller import plan
from harness.core.garbage import no_automatic_collection
from harness.scheduling.order import Reach, Selection
from harness.scheduling.resume import EarlierRun


class ListingHooks:
    """Keeps the cases that a run would select; with ``--seed``, in the order of that run."""

    def __init__(self, config: pytest.Config) -> None:
        made = plan.make(config)
        seed: int | None = made.settings["seed"]
        policy = made.policy if seed is not None else dataclasses.replace(made.policy, shuffle=False)
        earlier = EarlierRun.of(made.settings, config.invocation_params.dir)
        only = None if earlier is None else frozenset(earlier.ids)
        self._selection = Selection.of(policy, seed or 0, made.settings["shard"], only)
        config.pluginmanager.register(NarrowCollection(Reach.of(policy, only)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        with no_automatic_collection():
            result = yield
        gc.freeze()  # pytest collects garbage several times at the end
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        select_cases(config, items, self._selection)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        options.leave_out_idle_hypothesis(session.config)
