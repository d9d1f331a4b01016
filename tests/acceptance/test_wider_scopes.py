"""What a fixture of a wider scope holds while its cases run belongs to the fixture, and is judged once, at its end."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject

HELD = """
import faulthandler, multiprocessing, os, resource, signal, socketserver, subprocess, sys, tempfile, threading
import pytest

def hold(folder):
    process = subprocess.Popen(["sleep", "1000"])
    pool = multiprocessing.get_context("fork").Pool(2)
    server = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    before, limit = os.getcwd(), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[0] - 1, limit[1]))
    signal.setitimer(signal.ITIMER_REAL, 1000)
    faulthandler.dump_traceback_later(1000)
    tracer = threading.gettrace()
    threading.settrace(lambda *_: None)
    stream, sys.stdin = sys.stdin, open(os.devnull)
    with tempfile.NamedTemporaryFile():
        yield
    sys.stdin.close()
    sys.stdin = stream
    threading.settrace(tracer)
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_REAL, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    os.chdir(before)
    server.shutdown()
    thread.join()
    server.server_close()
    pool.terminate()
    pool.join()
    process.kill()
    process.wait()

@pytest.fixture(scope=SCOPE)
def held(tmp_path_factory):
    yield from hold(tmp_path_factory.mktemp("held"))

class TestIt:
    def test_before(self): pass
    def test_first(self, held): print(os.getpid())
    def test_second(self, held): print(os.getpid())
    def test_unrelated(self): pass
"""
#: A pool that starts its processes and threads when they are needed, in the call of a test.
POOLS = """
import concurrent.futures, multiprocessing, os, unittest

def setUpModule():
    global THREADS
    THREADS = concurrent.futures.ThreadPoolExecutor(8)

def tearDownModule():
    THREADS.shutdown()

class TestPools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pool = concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork"))

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()

    def test_a(self): assert self.pool.submit(abs, -1).result() == 1
    def test_b(self): assert self.pool.submit(abs, -1).result() == 1
    def test_c(self): assert THREADS.submit(abs, -1).result() == 1

def test_unrelated(): pass
"""


@pytest.mark.parametrize("arguments", [("-n0",), ("-n0", "--leak-check=off"), ("-n2", "--leak-check=full")])
def test_a_fixture_that_ends_what_it_holds_is_no_case_s_matter(
    make_project: MakeProject, arguments: tuple[str, ...]
) -> None:
    project = make_project()
    for scope in ("class", "module", "package", "session"):
        project.write(f"suites/{scope}/__init__.py", "")
        project.write(f"suites/{scope}/test_held.py", HELD.replace("SCOPE", repr(scope)))
    project.write("suites/test_pools.py", POOLS)
    result = project.run(*arguments, "--dist=loadfile" if "-n2" in arguments else "-q")
    assert (result.status, set(result.verdicts.values())) == (0, {"passed"}), result.tail()
    assert len(result.verdicts) == 20
    ended = [line["reason"] for line in result.lines if line["event"] == "executor" and line["state"] == "ended"]
    # glibc may have made an arena for a thread of the pool, so the case may have been repeated, and acquitted.
    kept = [reason for reason in ended if reason != "rehearsal"]
    assert len(kept) == (2 if "-n2" in arguments else 1), "no process was replaced"


def test_a_fixture_that_ends_with_its_process_is_a_finding(make_project: MakeProject) -> None:
    """The last case, which does not use the fixture, is not to blame. See the suite for the end of the scope."""
    project = make_project("wider_scopes")
    project.keep("test_left_unused.py")
    result = project.run("-n0")
    assert set(result.verdicts.values()) == {"passed"}, result.tail()
    assert result.status == 1
    (finding,) = result.ledger.findings
    assert finding.kind == "teardown"
    assert "the module fixture 'leaves_a_process' left a child process running: " in finding.message
    assert "the module fixture 'leaves_its_folder' did not restore the working folder (now '/', was " in finding.message
