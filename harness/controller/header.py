"""The lines that a run prints before its first case."""

from __future__ import annotations

from harness.backends.table import labels
from harness.configuration.context import RunContext
from harness.controller.plan import Plan
from harness.devices.device import Inventory
from harness.journal.identity import version_of


def header(context: RunContext, plan: Plan, inventory: Inventory, aside: str | None) -> list[str]:
    """Return the header lines: devices, driver, isolation, seed, run directory, and the rules of the run."""
    driver = inventory.driver or f"none ({inventory.nvml_error})"
    isolation = f"none (for {aside})" if aside else context.isolation
    lines = [
        f"harness: devices {_named(inventory)}; driver {driver}; torch {version_of('torch')}",
        f"harness: isolation {isolation}; seed {context.seed}; results in {context.run_dir}",
    ]
    rules = _rules(plan, aside is not None or context.isolation == "none")
    lines += [f"harness: injected {'; '.join(context.inject)}"] if context.inject else []
    if context.under:
        lines.append(f"harness: each test is called under {context.under}")
    return [*lines, *([f"harness: {'; '.join(rules)}"] if rules else []), *(f"harness: {n}" for n in inventory.notes)]


def _named(inventory: Inventory) -> str:
    """Return a text for the devices of the run. Software devices are marked as such."""
    devices = inventory.accelerators
    if label := labels([device.uuid for device in devices]):
        plain = "" if "no GPU" in label else ", no GPU"
        return f"{label}{plain}: {', '.join(device.uuid for device in devices)}"
    return ", ".join(f"{device.name} ({device.uuid})" for device in devices) if devices else "CPU"


def _rules(plan: Plan, inline: bool) -> list[str]:
    """Return lines for the rules of the run, and for its differences from a run that runs each case once."""
    policy, settings = plan.policy, plan.settings
    parts = [f"{name} {settings[name]}" for name in ("profile", "hardware") if settings[name]]
    parts += [f"waivers {', '.join(settings['waivers'])} ({len(policy.waivers)})"] if settings["waivers"] else []
    parts += [f"must pass {', '.join(must_pass.name for must_pass in plan.lists)}"] if plan.lists else []
    parts += [f"shard {settings['shard']}"] if settings["shard"] else []
    parts += ["shuffled by the seed"] if policy.shuffle else []
    beside = [f"verify {policy.verify}"] if policy.verify else []
    beside += [f"repeat {policy.repeat}"] if policy.repeat > 1 else []
    beside += [f"retries {policy.retries}"] if policy.retries else []
    beside += ["waivers"] if policy.waivers and inline else []
    beside += ["forbidden skips"] if inline and not policy.skips else []
    return parts + ([f"ignored without isolation: {', '.join(beside)}"] if inline and beside else beside)
