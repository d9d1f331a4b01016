"""The memory profiler: versions of tensors, categories, the timeline."""

from __future__ import annotations

from typing import Any

from tests.breaks.breaks import Theme

broken = Theme()

_CATEGORIES, _FLOW, _TIMELINE, _GRADIENTS, _FILES, _SCHEMAS = (
    f"suites/memory_profiler/test_{name}.py"
    for name in ("categories", "data_flow", "timeline", "gradients", "timeline_files", "schemas")
)
_MODULE = "torch.profiler._memory_profiler"


def _profile() -> Any:
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
    optimiser = torch.optim.Adam(model.parameters())
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True, acc_events=True
    ) as prof:
        for _ in range(2):
            x = torch.ones(3, 4)
            model(x).sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            del x
    return prof


def _shown() -> object:
    """Return counts of categories by version, of actions, and of sizes, without addresses and times."""
    from collections import Counter

    found = _profile()._memory_profile()
    categories = Counter(str(category) for category in found._category_snapshot().values())
    timeline = Counter((action.name, size) for _, action, _, size in found.timeline if size < 200)
    nodes = [
        (len(node.inputs), sorted(node.outputs.values()), len(node.intermediates))
        for node in found._data_flow_graph.flow_nodes
    ]
    return sorted(categories.items()), sorted(timeline.items()), nodes


def _gradients() -> object:
    from torch.profiler._memory_profiler import extract_gradients, extract_parameters

    roots = [*_profile().profiler.kineto_results.experimental_event_tree()]
    found = [0, 0]
    while roots:
        event = roots.pop()
        found[0] += len(list(extract_gradients(event)))
        found[1] += len(list(extract_parameters(event)))
        roots += event.children
    return found


def _coalesced() -> object:
    from torch.profiler._memory_profiler import MemoryProfileTimeline

    _, sizes = MemoryProfileTimeline(_profile()._memory_profile())._coalesce_timeline("cpu")
    return [(column[-1], max(column)) for column in zip(*sizes, strict=True)][2:]


#: Name, sentence, function, text, replacement, demonstration, suites.
_EDITS: tuple[tuple[str, str, str, str, str, Any, tuple[str, ...]], ...] = (
    (
        "profile_finds_no_new_gradients", "A gradient that the backward pass makes is not found.",
        "_extract_parameters_and_gradients", '("aten::detach", "aten::add_")', "()",
        _gradients, (_GRADIENTS, _CATEGORIES),
    ),
    (
        "profile_finds_no_accumulated_gradients", "A gradient that is added to another is not found.",
        "_extract_parameters_and_gradients", '("aten::detach", "aten::add_")', '("aten::detach",)',
        lambda: _accumulated(), (_GRADIENTS,),
    ),
    (
        "profile_ignores_modules", "Parameters and gradients of modules are not found.",
        "_extract_parameters_and_gradients", "if typed_fields.module is not None:", "if False:",
        _gradients, (_GRADIENTS, _CATEGORIES),
    ),
    (
        "profile_ignores_optimisers", "Parameters and gradients of optimisers are not found.",
        "_extract_parameters_and_gradients", "if typed_fields.optimizer is not None:", "if False:",
        _gradients, (_GRADIENTS,),
    ),
    (
        "profile_knows_no_optimiser_state", "What an optimiser keeps has no category.",
        "MemoryProfile._set_optimizer_state", "Category.OPTIMIZER_STATE", "Category.TEMPORARY",
        _shown, (_CATEGORIES,),
    ),
    (
        "profile_has_no_temporaries", "What comes and goes within one operator has no category.",
        "MemoryProfile._set_gradients_and_temporaries", "self._categories.set_by_key(i, Category.TEMPORARY)", "pass",
        _shown, (_CATEGORIES,),
    ),
    (
        "profile_floods_into_backward", "Activations are looked for in the backward pass, too.",
        "MemoryProfile._set_activations", "and RecordScope.BACKWARD_FUNCTION not in get_scopes(node._event)", "",
        _shown, (_CATEGORIES,),
    ),
    (
        "profile_has_no_activations", "Activations have no category.", "MemoryProfile._set_activations",
        "self._categories.setdefault_by_version(*i, Category.ACTIVATION)", "pass", _shown, (_CATEGORIES,),
    ),
    (
        "profile_has_no_inputs", "Inputs have no category.", "MemoryProfile._set_inputs",
        "self._categories.setdefault_by_version(key, version, Category.INPUT)", "pass", _shown, (_CATEGORIES,),
    ),
    (
        "profile_has_no_autograd_detail", "What autograd makes for itself has no category.",
        "MemoryProfile._set_autograd_detail", "Category.AUTOGRAD_DETAIL\n", "Category.TEMPORARY\n",
        _shown, (_CATEGORIES,),
    ),
    (
        "flow_sees_no_mutation", "An operator that changes its input makes no new version of it.",
        "DataFlowNode._determine_edges", "edges[key].mutated = mutated", "edges[key].mutated = False",
        _shown, (_FLOW,),
    ),
    (
        "flow_sees_no_deletion", "A tensor that is freed within an operator is not seen to go.",
        "DataFlowNode._determine_edges", "edge.mutated = None", "edge.mutated = False", _shown, (_FLOW,),
    ),
    (
        "flow_skips_lists", "Tensors in lists are no inputs of an operator.", "DataFlowNode._determine_edges",
        "elif isinstance(op_input, list):", "elif False:", lambda: _listed(), (_FLOW,),
    ),
    (
        "timeline_counts_versions_twice",
        "A tensor that gets a new version counts a second time in the plot of memory.",
        "MemoryProfileTimeline._coalesce_timeline",
        "update(key, version, -numbytes)\n            update(key, version + 1, numbytes)",
        "update(key, version + 1, numbytes)",
        _coalesced, (_TIMELINE, _FILES),
    ),
    (
        "timeline_never_frees", "What is freed stays in the plot of memory.",
        "MemoryProfileTimeline._coalesce_timeline", "(Action.PREEXISTING, Action.CREATE):",
        "(Action.PREEXISTING, Action.CREATE):\n            update(key, version, numbytes)\n"
        "        elif action == Action.DESTROY:",
        _coalesced, (_TIMELINE, _FILES),
    ),
    (
        "timeline_times_are_nanoseconds", "The times of the plot are in nanoseconds.",
        "MemoryProfileTimeline._coalesce_timeline", "t = int(t / 1000)", "t = int(t)",
        lambda: _times(), (_TIMELINE, _FILES),
    ),
    (
        "timeline_has_all_devices", "The plot of one device has the memory of all.",
        "MemoryProfileTimeline._coalesce_timeline", "if key.device != device:", "if False:",
        lambda: _other_device(), (_TIMELINE, _FILES),
    ),
)  # fmt: skip

for _name, _breaks, _of, _old, _new, _shows, _suites in _EDITS:
    broken.edit(_name, _breaks, f"{_MODULE}:{_of}", _old, _new, *_suites, shows=_shows)


def _recorded(work: Any) -> Any:
    from torch.profiler import ProfilerActivity, profile

    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True, acc_events=True
    ) as prof:
        work()
    return prof


def _accumulated() -> object:
    import torch
    from torch.profiler._memory_profiler import extract_gradients

    a = torch.ones(3, requires_grad=True)
    (a * 2).sum().backward()
    prof = _recorded(lambda: (a * 2).sum().backward())
    roots = [*prof.profiler.kineto_results.experimental_event_tree()]
    found = 0
    while roots:
        event = roots.pop()
        found += len(list(extract_gradients(event)))
        roots += event.children
    return found


def _listed() -> object:
    import torch

    prof = _recorded(lambda: torch.cat([torch.ones(3), torch.ones(4)]))
    return [len(node.inputs) for node in prof._memory_profile()._data_flow_graph.flow_nodes]


def _times() -> object:
    import time

    from torch.profiler._memory_profiler import MemoryProfileTimeline

    times, _ = MemoryProfileTimeline(_profile()._memory_profile())._coalesce_timeline("cpu")
    return max(times) > time.time_ns() / 10


def _other_device() -> object:
    from torch.profiler._memory_profiler import MemoryProfileTimeline

    times, _ = MemoryProfileTimeline(_profile()._memory_profile())._coalesce_timeline("cuda:0")
    return len(times) > 0
