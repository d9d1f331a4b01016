"""Each private name that this package uses still works as expected."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from harness import _compat
from harness.devices import software

pytest_plugins = ["pytester"]


def test_run_exit_callbacks() -> None:
    code = (
        "import atexit; from harness import _compat\n"
        "atexit.register(print, 'first'); atexit.register(print, 'second')\n"
        "_compat.run_exit_callbacks(None); print('after')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["second", "first", "after"]


@pytest.mark.parametrize(("rootdir", "inifile"), [(None, None), ("sub", None), (None, "sub/my.ini")])
def test_root_of(pytester: pytest.Pytester, rootdir: str | None, inifile: str | None) -> None:
    """Return the root folder and the ini file of a session with these arguments."""
    (pytester.path / "sub").mkdir()
    (pytester.path / "sub" / "my.ini").write_text("[pytest]\n")
    (pytester.path / "tox.ini").write_text("[pytest]\n")
    given = [*([f"--rootdir={rootdir}"] if rootdir else []), *(["-c", inifile] if inifile else []), "sub"]
    config = pytester.parseconfig(*given)
    options = SimpleNamespace(rootdir=rootdir, inifilename=inifile)
    assert _compat.root_of(options, ["sub"], pytester.path) == (config.rootpath, config.inipath)


def test_join_threads_ends_pools_and_waits_for_the_others() -> None:
    # Threads only append: `print` writes its text and the newline separately, so two threads could mix their output.
    code = (
        "import threading; from concurrent.futures import ThreadPoolExecutor; from harness import _compat\n"
        "done = []\n"
        "pool = ThreadPoolExecutor(1); pool.submit(done.append, 'pool')\n"
        "go = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (go.wait(), done.append('thread')))\n"
        "thread.start(); go.set(); _compat.join_threads(); print(*sorted(done), thread.is_alive())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["pool", "thread", "False"]


def test_finalizers_can_be_kept_from_running_at_exit() -> None:
    code = (
        "import weakref; from harness import _compat\n"
        "class Thing: pass\n"
        "thing, other = Thing(), Thing()\n"
        "weakref.finalize(thing, print, 'inherited')\n"
        "inherited = _compat.finalizers()\n"
        "weakref.finalize(other, print, 'new')\n"
        "for finalizer in inherited: finalizer.atexit = False\n"
        "_compat.run_exit_callbacks(None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["new"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("None", ["third", "second", "first"]),
        ("first", ["third", "second"]),
        ("third", []),
        ("dead", ["third", "second", "first"]),
    ],
)
def test_only_finalizers_made_after_one_run_at_exit(after: str, expected: list[str]) -> None:
    """Each of them runs once, in reverse order of creation; a finalizer that has already run does not run again."""
    code = (
        "import weakref; from harness import _compat\n"
        "class Thing: pass\n"
        "things = [Thing() for _ in range(5)]\n"
        "first = weakref.finalize(things[0], print, 'first')\n"
        "dead = weakref.finalize(things[1], print, 'ran')\n"
        "second = weakref.finalize(things[2], print, 'second')\n"
        "third = weakref.finalize(things[3], print, 'third')\n"
        "dead()\n"
        f"_compat.run_exit_callbacks({after})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ran", *expected]


def test_is_set_up(pytester: pytest.Pytester) -> None:
    seen = []

    class Looks:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
            seen.append(_compat.is_set_up(item.session))
            result = yield
            seen.append(_compat.is_set_up(item.session))
            return result

    pytester.makepyfile("def test_a(): pass\ndef test_b(): pass")
    pytester.inline_run("-p", "no:harness", plugins=[Looks()])
    assert seen == [False, True, True, False]  # the module stays set up for the second test


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="dictionaries have no version there")
def test_a_dictionary_has_another_version_after_each_change() -> None:
    one, other = object(), object()
    names: dict[str, object] = {"a": one}
    version = _compat.dict_version(names)
    assert version is not None
    seen = [version.value]
    names["a"] = other
    seen.append(version.value)
    names["b"] = one
    seen.append(version.value)
    del names["b"]
    seen.append(version.value)
    names["a"] = one
    seen.append(version.value)
    names.clear()
    seen.append(version.value)
    assert len(set(seen)) == len(seen)
    assert names.get("a") is None
    assert version.value == seen[-1]


def test_tear_down_all(pytester: pytest.Pytester) -> None:
    class RunFirst:
        """Runs the first item as if another one of the same module followed, then requests the end."""

        seen: list[str] = []  # noqa: RUF012

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtestloop(self, session: pytest.Session) -> bool:
            first, second = session.items
            first.ihook.pytest_runtest_protocol(item=first, nextitem=second)
            self.seen.append((pytester.path / "log").read_text())
            _compat.tear_down_all(session)
            self.seen.append((pytester.path / "log").read_text())
            return True

    pytester.makepyfile(
        """
        import pathlib, pytest
        @pytest.fixture(scope="module")
        def shared():
            yield
            with open("log", "a") as file: file.write("down ")
        def test_a(shared):
            pathlib.Path("log").write_text("ran ")
        def test_b(shared): pass
        """
    )
    plugin = RunFirst()
    pytester.inline_run("-p", "no:harness", plugins=[plugin])
    assert plugin.seen == ["ran ", "ran down "]


def test_bare_signal_handler_is_what_python_calls() -> None:
    def handler(_number: int, _frame: object) -> None: ...

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for number in signal.valid_signals():
            assert _compat.bare_signal_handler(number) == signal.getsignal(number)
        assert _compat.bare_signal_handler(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_compiled_autograd_hands_each_backward_pass_to_the_compiler() -> None:
    import torch

    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule) -> Any:
        graphs.append(graph)
        return graph

    x = torch.ones(3, requires_grad=True)
    with _compat.compiled_autograd(compiler):
        torch.autograd.grad(x.sin().sum(), x)
    captured = len(graphs)
    torch.autograd.grad(x.sin().sum(), x)
    torch.compiler.reset()
    assert captured == 1
    assert len(graphs) == captured


def test_dynamo_keeps_streams_and_events_of_the_last_graph_alone() -> None:
    import torch
    from torch._dynamo import graph_bytecode_inputs

    thing = SimpleNamespace()
    graph_bytecode_inputs.stash_graph_created_object(thing)
    assert [each for each in _compat.kept_by_dynamo() if each is thing]
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert not [each for each in _compat.kept_by_dynamo() if each is thing]
    torch.compiler.reset()


@pytest.mark.skipif(software.torch_cuda_version().value is None, reason="needs a CUDA build of torch")
@pytest.mark.parametrize("name", ["_cuda_clearCublasWorkspaces", "_host_emptyCache"])
def test_torch_has_what_releases_its_cuda_caches(name: str) -> None:
    import torch

    assert callable(getattr(torch._C, name))


def test_xdist_sends_in_a_plugin_of_the_worker(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        from harness import _compat

        def pytest_runtest_setup(item):
            sender = _compat.xdist_sender(item.config)
            hooks = [item.config.hook.pytest_runtest_logstart, item.config.hook.pytest_runtest_logreport]
            senders = [each for hook in hooks for each in hook.get_hookimpls() if each.plugin is sender]
            assert len(senders) == 2
        """
    )
    pytester.makepyfile("def test_a(): pass")
    pytester.runpytest_subprocess("-n1").assert_outcomes(passed=1)


def test_without_xdist_nothing_is_sent(pytester: pytest.Pytester) -> None:
    assert _compat.xdist_sender(pytester.parseconfig()) is None


@pytest.mark.parametrize("stop", ["", "-x"])
def test_things_are_added_to_the_last_line(pytester: pytest.Pytester, stop: str) -> None:
    """This also holds if not all tests were reported, when pytest has already chosen the words of the line."""
    pytester.makeconftest(
        """
        import pytest
        from harness import _compat

        @pytest.hookimpl(trylast=True)
        def pytest_terminal_summary(terminalreporter):
            _compat.add_to_last_line(terminalreporter, "finding", [object()])
        """
    )
    last = "assert False" if stop else "pass"
    pytester.makepyfile(f"def test_a(): pass\n\ndef test_b(): {last}\n\ndef test_c(): pass\n")
    done = pytester.runpytest("-pno:cacheprovider", "--color=yes", *filter(None, [stop]))
    line = done.outlines[-1]
    assert "1 finding" in line
    assert "\x1b[31m" in line
    done.assert_outcomes(passed=1 if stop else 3, failed=1 if stop else 0)


def test_kinds_of_results_are_left_out_of_the_short_summary(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from harness import _compat

        def pytest_terminal_summary(terminalreporter):
            _compat.leave_out_of_short_summary(terminalreporter, "fE")
        """
    )
    pytester.makepyfile("import pytest\ndef test_a(): assert 0\ndef test_b(): pytest.skip('why')\n")
    assert "FAILED" not in pytester.runpytest("-pno:cacheprovider").stdout.str()
    done = pytester.runpytest("-pno:cacheprovider", "-rfs").stdout.str()
    assert ("FAILED" in done, "SKIPPED" in done) == (False, True)


def test_a_base_folder_of_temporary_files_is_used(pytester: pytest.Pytester) -> None:
    """Both factories use it; the folder is created at the first use."""
    pytester.makepyfile(
        "from pathlib import Path\n"
        "from harness import _compat\n"
        "def test_it(request, pytestconfig):\n"
        "    wanted = Path.cwd().resolve() / 'ours'\n"
        "    _compat.use_basetemp(pytestconfig, wanted)\n"
        "    assert not wanted.exists()\n"
        "    assert request.getfixturevalue('tmp_path_factory').getbasetemp() == wanted\n"
        "    assert Path(request.getfixturevalue('tmpdir_factory').getbasetemp()) == wanted\n"
    )
    pytester.runpytest("-p", "no:harness").assert_outcomes(passed=1)


def test_a_collector_gets_another_id(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        from harness import _compat

        @pytest.hookimpl(wrapper=True)
        def pytest_collect_file(file_path, parent):
            collectors = yield
            for collector in collectors:
                _compat.set_node_id(collector, "other")
            return collectors
        """
    )
    pytester.maketxtfile(test_a=">>> 1\n1\n")
    done = pytester.runpytest("-pno:cacheprovider", "-v")
    done.stdout.fnmatch_lines(["other::test_a.txt PASSED*"])


@pytest.mark.parametrize("mode", ["rewrite", "plain"])
def test_a_package_is_imported_without_rewriting(pytester: pytest.Pytester, mode: str) -> None:
    """Its asserts then have no more to say than Python's, and those of other packages still do."""
    for name in ("one", "other"):
        pytester.mkpydir(name).joinpath("deep.py").write_text("def check(): assert 1 + 1 == 3\n")
    pytester.makeconftest(
        """
        from harness import _compat

        def pytest_configure(config):
            config.pluginmanager.rewrite_hook.mark_rewrite("one", "other")
            _compat.import_without_rewriting(config.pluginmanager, "one")
        """
    )
    pytester.makepyfile(
        """
        import importlib, pytest

        @pytest.mark.parametrize("name", ["one", "other"])
        def test_it(name, request):
            with pytest.raises(AssertionError) as caught:
                importlib.import_module(f"{name}.deep").check()
            rewritten = name == "other" and request.config.getoption("assertmode") == "rewrite"
            assert bool(str(caught.value)) == rewritten
        """
    )
    pytester.runpytest_subprocess("-p", "no:harness", f"--assert={mode}").assert_outcomes(passed=2)
