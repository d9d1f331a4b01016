"""The profiler's tree of events, scopes, and exports."""

from __future__ import annotations

from typing import Any

from tests.breaks.breaks import Theme, edit, replace

broken = Theme()

_BACKWARD, _SCOPES, _EXPORT = (f"suites/profiler/test_{name}.py" for name in ("forward_backward", "scopes", "export"))
_MEMORY, _STATE, _MODULES = (
    f"suites/profiler/test_{name}.py" for name in ("memory_events", "profiler_state", "modules_and_optimisers")
)


def _events(work: Any = None, **options: Any) -> list[Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    x = torch.ones(3, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True, **options) as prof:
        (work or (lambda: (x * x).sum().backward()))()
    waiting, found = [*prof.profiler.kineto_results.experimental_event_tree()], []
    while waiting:
        event = waiting.pop(0)
        found.append(event)
        waiting += event.children
    return found


def _fields() -> Any:
    from torch._C import _profiler

    return _profiler._ExtraFields_TorchOp


def _operators() -> list[Any]:
    fields = _fields()
    return [event.extra_fields for event in _events() if isinstance(event.extra_fields, fields)]


@broken(
    "No event has a sequence number.",
    _BACKWARD,
    shows=lambda: max(operator.sequence_number for operator in _operators()) >= 0,
)
def events_have_no_sequence_number() -> None:
    _fields().sequence_number = property(lambda self: -1)


@broken(
    "All operators have the same sequence number.",
    _BACKWARD,
    shows=lambda: len({operator.sequence_number for operator in _operators()}) > 2,
)
def events_share_a_sequence_number() -> None:
    _fields().sequence_number = property(lambda self: 7)


@broken("An allocation in a profile has no size.", _MEMORY, shows=lambda: _allocations())
def allocations_have_no_size() -> None:
    from torch._C import _profiler

    fields: Any = _profiler._ExtraFields_Allocation
    fields.alloc_size = property(lambda self: 1)


def _allocations() -> object:
    import torch
    from torch._C import _profiler

    events = _events(lambda: torch.ones(100), profile_memory=True)
    return [e.extra_fields.alloc_size for e in events if isinstance(e.extra_fields, _profiler._ExtraFields_Allocation)]


@broken("The total in an allocation's event is that of the event alone.", _MEMORY, shows=lambda: _totals())
def allocations_do_not_add_up() -> None:
    from torch._C import _profiler

    fields: Any = _profiler._ExtraFields_Allocation
    fields.total_allocated = property(lambda self: abs(self.alloc_size))


def _totals() -> object:
    import torch
    from torch._C import _profiler

    def work() -> None:
        a, b = torch.ones(100), torch.ones(200)
        del a, b

    events = _events(work, profile_memory=True)
    found = [e.extra_fields for e in events if isinstance(e.extra_fields, _profiler._ExtraFields_Allocation)]
    return any(each.total_allocated != abs(each.alloc_size) for each in found)


@broken("A scope of the program is not in the profile.", _SCOPES, shows=lambda: _scoped())
def scopes_are_not_recorded() -> None:
    import torch

    replace(torch.profiler.record_function, "__enter__", lambda _: lambda self: self)
    replace(torch.profiler.record_function, "__exit__", lambda _: lambda self, *error: None)


def _scoped() -> object:
    import torch

    def work() -> None:
        with torch.profiler.record_function("mine"):
            torch.ones(1)

    return [event.name for event in _events(work) if event.name == "mine"]


@broken("A scope's name loses its last letter.", _SCOPES, _EXPORT, shows=lambda: _scoped())
def scopes_lose_a_letter() -> None:
    import torch

    replace(
        torch.profiler.record_function,
        "__init__",
        lambda init: lambda self, name, args=None: init(self, name[:-1] or name, args),
    )


@broken("A profile that has a schedule records every step.", _STATE, _EXPORT, shows=lambda: _scheduled())
def schedules_are_ignored() -> None:
    import torch
    from torch.profiler import ProfilerAction, profiler

    for owner in (torch.profiler, profiler):
        replace(owner, "schedule", lambda _: lambda **_options: lambda step: ProfilerAction.RECORD)


def _scheduled() -> object:
    import torch

    plan = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
    return [str(plan(step)) for step in range(5)]


@broken(
    "A schedule skips one step more at first than `skip_first` specifies.", _STATE, _EXPORT, shows=lambda: _skipped()
)
def schedules_skip_one_more() -> None:
    import torch
    from torch.profiler import profiler

    def around(schedule: Any) -> Any:
        def schedules(*, skip_first: int = 0, **options: Any) -> Any:
            return schedule(skip_first=skip_first + 1, **options)

        return schedules

    for owner in (torch.profiler, profiler):
        replace(owner, "schedule", around)


def _skipped() -> object:
    import torch

    plan = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1, skip_first=1)
    return [str(plan(step)) for step in range(5)]


@broken(
    "An event of another thread within the time of an event is its child.",
    "suites/profiler/test_profile_facts.py",
    shows=lambda: _in_two_threads(),
)
def events_of_threads_are_one_tree() -> None:
    edit(
        "torch.autograd.profiler_util:EventList._populate_cpu_children",
        "key=lambda event: (event.thread, event.node_id)",
        "key=lambda event: event.node_id",
    )


def _in_two_threads() -> object:
    from torch.autograd.profiler_util import EventList, FunctionEvent

    events: Any = [FunctionEvent(1, "a", 1, 0, 10), FunctionEvent(2, "b", 2, 3, 5)]
    EventList(events)._populate_cpu_children()
    return [[child.name for child in event.cpu_children] for event in events]


broken.edit(
    "second_preset_metadata_replaces_the_first",
    "Of two calls of preset_metadata_json only the second reaches the trace.",
    "torch.profiler.profiler:_KinetoProfile.preset_metadata_json",
    "self.preset_metadata[key] = value",
    "self.preset_metadata = {key: value}",
    "suites/profiler/test_profile_facts.py",
    shows=lambda: _preset(),
)


def _preset() -> object:
    from torch.profiler import profile

    prof = profile()
    prof.preset_metadata_json("first", "1")
    prof.preset_metadata_json("second", "2")
    return sorted(prof.preset_metadata)


broken.edit(
    "concrete_inputs_have_no_sign",
    "The concrete inputs of an event lack the sign of negative numbers.",
    "torch.autograd.profiler:profile._parse_kineto_results",
    "concrete_inputs=kineto_event.concrete_inputs()",
    "concrete_inputs=[abs(each) if type(each) is int else each for each in kineto_event.concrete_inputs()]",
    "suites/profiler/test_profile_facts.py",
    shows=lambda: _concrete(),
)


def _concrete() -> object:
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        torch.ones(2, 3).softmax(-1)
    return [event.concrete_inputs for event in prof.events() if event.name == "aten::softmax"]


@broken(
    "toggle_collection_dynamic does not switch a single activity on again.",
    "suites/profiler/test_key_averages.py",
    shows=lambda: _switched_on(),
)
def collection_is_not_switched_on_again() -> None:
    import torch

    def around(toggle: Any) -> Any:
        def changed(self: Any, enabled: bool, activities: Any) -> Any:
            activities = [*activities]
            return None if enabled and len(activities) == 1 else toggle(self, enabled, activities)

        return changed

    replace(torch.autograd.profiler.profile, "toggle_collection_dynamic", around)


def _switched_on() -> object:
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as prof:
        prof.toggle_collection_dynamic(False, [ProfilerActivity.CPU])
        torch.ones(2).sin()
        prof.toggle_collection_dynamic(True, [ProfilerActivity.CPU])
        torch.ones(2).cos()
    return sorted({event.name for event in prof.events()} & {"aten::sin", "aten::cos"})
