"""Well-known pytest plugins by downloads, with a suite that uses each: the table of `benchmarks.plugins`.

Of the most downloaded plugins, these are excluded: those that need a server, a daemon, a screen or a browser
(pytest-postgresql, pytest-celery, pytest-docker, pytest-qt, seleniumbase), those that pytest 9.2 cannot load
(pytest-black, pytest-flake8, pytest-tap, pytest-parallel), and those that are only an environment or run pytest
(pytest-runner, pytest-watch, pytest-homeassistant-custom-component).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PLAIN = "def test_plain(): pass\n"
RED = "def test_red(): assert {'a': 1} == {'a': 2}\n"
#: Fails once, then passes: it counts its runs in a file.
FLAKY = (
    "import pathlib\nRUNS = pathlib.Path(__file__).with_name('runs')\n{mark}def test_flaky():\n"
    "    RUNS.write_text('x' + (RUNS.read_text() if RUNS.exists() else ''))\n    assert len(RUNS.read_text()) > 1\n"
)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin: its requirements, a suite that uses it, and a documented difference from plain pytest.

    `shows`: texts that plain pytest has in its output or in a file that it leaves, so the harness must have them, too.
    `files`: further files of the suite. `ini`: lines of its pytest.ini. `env`: additional variables.
    """

    needs: tuple[str, ...]
    suite: str = PLAIN
    arguments: tuple[str, ...] = ()
    difference: str = ""
    shows: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    ini: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def _of(name: str, suite: str = PLAIN, *arguments: str, **more: object) -> Plugin:
    return Plugin((name, *more.pop("needs", ())), suite, arguments, **more)  # type: ignore[arg-type, misc]


_SERVER_TEST = "import urllib.request\ndef test_a(httpserver):\n    {serve}\n    {ask}\n"
_DJANGO = "SECRET_KEY = 'x'\nDATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}\n"
_BDD = "Feature: sums\n  Scenario: one and one\n    Given one\n    Then one more is two\n"
_BDD_STEPS = (
    "from pytest_bdd import given, scenarios, then\nscenarios('sums.feature')\n"
    "@given('one', target_fixture='one')\ndef _(): return 1\n"
    "@then('one more is two')\ndef _(one): assert one + 1 == 2\n"
)

#: Reporting plugins: they use the reports, in the process that the user started.
REPORTING = {
    "pytest-html": _of("pytest-html", PLAIN + RED, "--html=report.html", shows=("test_red",)),
    "pytest-json-report": _of(
        "pytest-json-report", PLAIN + RED, "--json-report", "--json-report-file=report.json", shows=('"failed": 1',)
    ),
    "pytest-json-ctrf": _of("pytest-json-ctrf", PLAIN + RED, "--ctrf=report.json", shows=("test_red",)),
    "pytest-metadata": _of("pytest-metadata", PLAIN, "--metadata", "who", "me", "-v", shows=("'who': 'me'",)),
    "pytest-instafail": _of("pytest-instafail", RED + PLAIN, "--instafail"),
    "pytest-sugar": _of("pytest-sugar", PLAIN + RED),
    "pytest-icdiff": _of("pytest-icdiff", RED),
    "pytest-clarity": _of("pytest-clarity", RED),
    "pytest-pretty": _of("pytest-pretty", PLAIN + RED, shows=("Summary of Failures",)),
    "pytest-rich": _of("pytest-rich", PLAIN, "--rich"),
    "pytest-github-actions-annotate-failures": _of(
        "pytest-github-actions-annotate-failures", RED, env={"GITHUB_ACTIONS": "true"}, shows=("::error file=",)
    ),
    "pytest-azurepipelines": _of("pytest-azurepipelines", PLAIN, shows=("##vso[results.publish",)),
    "pytest-reportlog": _of("pytest-reportlog", PLAIN + RED, "--report-log=log.json", shows=("test_red",)),
    "pytest-csv": _of("pytest-csv", PLAIN + RED, "--csv=report.csv", shows=("test_red",)),
    "pytest-md-report": _of("pytest-md-report", PLAIN, "--md-report", "--md-report-output=r.md", shows=("test_it.py",)),
    "pytest-nunit": _of("pytest-nunit", PLAIN + RED, "--nunit-xml=nunit.xml", shows=("test_red",)),
    "allure-pytest": _of(
        "allure-pytest",
        "import allure\ndef test_a():\n    with allure.step('a step'): allure.attach('text', 'attached')\n" + RED,
        "--alluredir=allure",
        "--clean-alluredir",
        shows=("a step", "attached", "test_red"),
    ),
    "pytest-durations": _of(
        "pytest-durations",
        "import time\ndef test_a(): time.sleep(0.2)\n",
        "--pytest-durations=3",
        shows=("test_a",),
        difference="its figures have no test in them: the header names it",
    ),
    "pytest-custom-exit-code": _of(
        "pytest-custom-exit-code",
        RED,
        "--suppress-tests-failed-exit-code",
        difference="no plugin makes a red run green",
    ),
}

#: Plugins that select, order, repeat or distribute tests.
SELECTING = {
    "pytest-xdist": _of("pytest-xdist", PLAIN + RED, "-n2"),
    "pytest-split": _of(
        "pytest-split", PLAIN, "--store-durations", "--durations-path=times.json", shows=("test_it.py::test_plain",)
    ),
    "pytest-shard": _of(
        "pytest-shard", "".join(f"def test_{n}(): pass\n" for n in range(9)), "--num-shards=2", "--shard-id=0"
    ),
    "pytest-test-groups": _of("pytest-test-groups", PLAIN + RED, "--test-group-count=2", "--test-group=1"),
    "pytest-order": _of("pytest-order", "import pytest\n@pytest.mark.order(1)\ndef test_a(): pass\n"),
    "pytest-ordering": _of(
        "pytest-ordering", "import pytest\n@pytest.mark.run(order=1)\ndef test_a(): pass\n", "-Wignore"
    ),
    "pytest-randomly": _of("pytest-randomly", PLAIN, "-p", "randomly"),
    "pytest-random-order": _of("pytest-random-order", PLAIN + RED, "--random-order"),
    "pytest-repeat": _of("pytest-repeat", PLAIN, "--count=3"),
    "pytest-flakefinder": _of("pytest-flakefinder", PLAIN, "--flake-finder", "--flake-runs=3"),
    "pytest-dependency": _of(
        "pytest-dependency",
        "import pytest\n@pytest.mark.dependency\ndef test_a(): pass\n"
        "@pytest.mark.dependency(depends=['test_a'])\ndef test_b(): pass\n",
    ),
    "pytest-describe": _of("pytest-describe", "def describe_it():\n    def has_a(): pass\n"),
    "pytest-rerunfailures": _of(
        "pytest-rerunfailures",
        FLAKY.format(mark=""),
        "--reruns=1",
    ),
    "pytest-retry": _of(
        "pytest-retry",
        FLAKY.format(mark=""),
        "--retries",
        "1",
        shows=("Retrying!",),
        difference="its report is missing; the header names it",
    ),
    "flaky": _of(
        "flaky",
        "from flaky import flaky\n" + FLAKY.format(mark="@flaky\n"),
        shows=("Flaky Test Report",),
        difference="its report is missing; the header names it",
    ),
    "pytest-forked": _of("pytest-forked", PLAIN + RED, "--forked"),
    "pytest-testmon": _of("pytest-testmon", "import lib\ndef test_a(): assert lib.a() == 1\n", "--testmon"),
}

#: Plugins with fixtures, or that run a test in another way.
FIXTURES = {
    "pytest-asyncio": _of(
        "pytest-asyncio", "import pytest\n@pytest.mark.asyncio\nasync def test_a(): pass\n", "-Wignore"
    ),
    "anyio": _of("anyio", "import pytest\n@pytest.mark.anyio\nasync def test_a(): pass\n", "-Wignore"),
    "pytest-trio": _of(
        "pytest-trio", "import pytest, trio\n@pytest.mark.trio\nasync def test_a(): await trio.sleep(0)\n", "-Wignore"
    ),
    "pytest-twisted": _of(
        "pytest-twisted",
        "import pytest_twisted\n@pytest_twisted.inlineCallbacks\ndef test_a():\n"
        "    from twisted.internet import reactor, task\n    yield task.deferLater(reactor, 0, lambda: 1)\n",
        "--reactor=default",
        difference="the first test of a process is contaminated: the reactor keeps its handlers of signals",
        needs=("twisted",),
    ),
    "pytest-tornado": _of(
        "pytest-tornado",
        "import pytest, tornado.gen\n@pytest.mark.gen_test\ndef test_a(): yield tornado.gen.sleep(0)\n",
        "-Wignore",
        needs=("setuptools<81",),
    ),
    "pytest-aiohttp": _of(
        "pytest-aiohttp",
        "from aiohttp import web\nasync def test_a(aiohttp_client):\n"
        "    client = await aiohttp_client(web.Application())\n"
        "    assert (await client.get('/')).status == 404\n",
        "-Wignore",
        ini="asyncio_mode = auto\n",
    ),
    "pytest-mock": _of("pytest-mock", "def test_a(mocker): assert mocker.Mock(return_value=1)() == 1\n"),
    "pytest-timeout": _of(
        "pytest-timeout", "import pytest\n@pytest.mark.timeout(60, method='thread')\ndef test_a(): pass\n"
    ),
    "pytest-check": _of("pytest-check", "def test_a(check):\n    check.equal(1, 2)\n    check.equal(3, 4)\n"),
    "pytest-assume": _of("pytest-assume", "import pytest\ndef test_a(): pytest.assume(1 == 2)\n"),
    "pytest-subtests": _of("pytest-subtests", "def test_a(subtests):\n    with subtests.test('one'): assert 1\n"),
    "pytest-unordered": _of(
        "pytest-unordered", "from pytest_unordered import unordered\ndef test_a(): assert [1, 2] == unordered(2, 1)\n"
    ),
    "pytest-cases": _of(
        "pytest-cases",
        "from pytest_cases import parametrize_with_cases\ndef case_a(): return 1\n"
        "@parametrize_with_cases('n', cases='.')\ndef test_a(n): assert n == 1\n",
        needs=("pytest==9.0.*",),  # it uses private names that pytest 9.2 has changed
    ),
    "pytest-lazy-fixtures": _of(
        "pytest-lazy-fixtures",
        "import pytest\nfrom pytest_lazy_fixtures import lf\n@pytest.fixture\ndef one(): return 1\n"
        "@pytest.mark.parametrize('n', [lf('one')])\ndef test_a(n): assert n == 1\n",
    ),
    "pytest-factoryboy": _of(
        "pytest-factoryboy",
        "import factory\nfrom pytest_factoryboy import register\nclass Thing:\n    def __init__(self, n): self.n = n\n"
        "@register\nclass ThingFactory(factory.Factory):\n    class Meta: model = Thing\n    n = 1\n"
        "def test_a(thing): assert thing.n == 1\n",
    ),
    "pytest-bdd": _of(
        "pytest-bdd", _BDD_STEPS, "--cucumberjson=steps.json", files={"sums.feature": _BDD}, shows=("one more is two",)
    ),
    "pytest-django": _of(
        "pytest-django",
        "import pytest\n@pytest.mark.django_db\ndef test_a():\n    from django.db import connection\n"
        "    assert connection.cursor().execute('select 1').fetchone() == (1,)\n",
        needs=("django",),
        files={"project_settings.py": _DJANGO},
        ini="DJANGO_SETTINGS_MODULE = project_settings\n",
    ),
    "pytest-flask": _of(
        "pytest-flask",
        "import flask, pytest\n@pytest.fixture\ndef app(): return flask.Flask('app')\n"
        "def test_a(client): assert client.get('/').status_code == 404\n",
        "-Wignore",
    ),
    "pytest-httpx": _of(
        "pytest-httpx",
        "import httpx\ndef test_a(httpx_mock):\n    httpx_mock.add_response(text='x')\n"
        "    assert httpx.get('http://a').text == 'x'\n",
    ),
    "pytest-httpserver": _of(
        "pytest-httpserver",
        _SERVER_TEST.format(
            serve="httpserver.expect_request('/a').respond_with_data('x')",
            ask="assert urllib.request.urlopen(httpserver.url_for('/a')).read() == b'x'",
        ),
    ),
    "pytest-localserver": _of(
        "pytest-localserver",
        _SERVER_TEST.format(
            serve="httpserver.serve_content('x')", ask="assert urllib.request.urlopen(httpserver.url).read() == b'x'"
        ),
    ),
    "pytest-socket": _of(
        "pytest-socket",
        "import pytest, socket, pytest_socket\ndef test_a():\n"
        "    with pytest.raises(pytest_socket.SocketBlockedError): socket.socket()\n",
        "--disable-socket",
        "--allow-unix-socket",
    ),
    "pytest-recording": _of(
        "pytest-recording",
        "import pytest, socket\n@pytest.mark.block_network\ndef test_a():\n"
        "    with pytest.raises(RuntimeError): socket.create_connection(('127.0.0.1', 9))\n",
    ),
    "pytest-vcr": _of("pytest-vcr", "import pytest\n@pytest.mark.vcr\ndef test_a(vcr): assert vcr.play_count == 0\n"),
    "pytest-freezer": _of(
        "pytest-freezer",
        "import time\ndef test_a(freezer):\n"
        "    freezer.move_to('2000-01-01')\n    assert time.gmtime().tm_year == 2000\n",
    ),
    "pytest-freezegun": _of(
        "pytest-freezegun",
        "import pytest, time\n@pytest.mark.freeze_time('2000-01-01')\n"
        "def test_a(): assert time.gmtime().tm_year == 2000\n",
        needs=("setuptools<81",),
    ),
    "pytest-env": _of(
        "pytest-env", "import os\ndef test_a(): assert os.environ['ONE'] == '1'\n", ini="env =\n    ONE=1\n"
    ),
    "pytest-dotenv": _of(
        "pytest-dotenv",
        "import os\ndef test_a(): assert os.environ['ONE'] == '1'\n",
        "--envfile=one.env",
        files={"one.env": "ONE=1\n"},
    ),
    "pytest-base-url": _of(
        "pytest-base-url", "def test_a(base_url): assert base_url == 'http://a'\n", "--base-url=http://a"
    ),
    "pytest-datadir": _of(
        "pytest-datadir",
        "def test_a(shared_datadir): assert (shared_datadir / 'one').read_text() == '1'\n",
        files={"data/one": "1"},
    ),
    "pytest-playwright": _of(
        "pytest-playwright", "def test_a(device): assert device == 'iPhone'\n", "--device", "iPhone"
    ),
    "pytest-console-scripts": _of(
        "pytest-console-scripts", "def test_a(script_runner): assert script_runner.run(['true']).success\n"
    ),
    "pytest-xprocess": _of(
        "pytest-xprocess",
        "import sys\nfrom xprocess import ProcessStarter\ndef test_a(xprocess):\n"
        "    class Starter(ProcessStarter):\n        pattern = 'up'\n"
        "        args = [sys.executable, '-uc', 'print(\"up\"); import time; time.sleep(60)']\n"
        "    xprocess.ensure('one', Starter)\n    xprocess.getinfo('one').terminate()\n",
    ),
    "pytest-reraise": _of(
        "pytest-reraise",
        "import threading\ndef test_a(reraise):\n    thread = threading.Thread(target=reraise.wrap(lambda: 1 / 0))\n"
        "    thread.start(); thread.join()\n",
    ),
    "hypothesis": _of(
        "hypothesis",
        "from hypothesis import given, settings, strategies\n@settings(database=None)\n"
        "@given(strategies.integers())\ndef test_a(n): assert n + 1 > n\n",
    ),
}

#: Plugins that keep data in the process of a test, or measure it there.
MEASURING = {
    "pytest-cov": _of(
        "pytest-cov", "import lib\ndef test_a(): assert lib.a() == 1\n", "--cov=lib", "--cov-fail-under=75"
    ),
    "pytest-benchmark": _of(
        "pytest-benchmark",
        "def test_a(benchmark): benchmark(lambda: 1)\n",
        "--benchmark-json=times.json",
        shows=("test_a", "OPS"),
    ),
    "pytest-benchmark without options": _of(
        "pytest-benchmark",
        "def test_a(benchmark): benchmark(lambda: 1)\n",
        difference="no table, as with xdist: the header names it",
        shows=("OPS",),
    ),
    "pytest-profiling": _of(
        "pytest-profiling",
        PLAIN,
        "--profile",
        shows=("test_plain",),
        difference="its figures have no test in them: the header names it",
        needs=("setuptools<81",),
    ),
    "pytest-memray": _of(
        "pytest-memray", "def test_a(): bytearray(5_000_000)\n", "--memray", shows=("MEMRAY REPORT", "test_a")
    ),
    "pytest-monitor": _of(
        "pytest-monitor", PLAIN, "--db=times.db", needs=("setuptools<81",), shows=("test_plain",), env={"CI": ""}
    ),
    "pytest-harvest": _of(
        "pytest-harvest",
        "def test_a(results_bag): results_bag.n = 1\n"
        "def test_all(module_results_dct): assert module_results_dct['test_a']['results_bag'].n == 1\n",
        needs=("setuptools<81",),
    ),
    "syrupy": _of("syrupy", "def test_a(snapshot): assert 'a' == snapshot\n", "--snapshot-update"),
    "snapshottest": _of(
        "snapshottest",
        "def test_a(snapshot): snapshot.assert_match('a')\n",
        "--snapshot-update",
        needs=("setuptools<81", "fastdiff"),
    ),
    "inline-snapshot": _of(
        "inline-snapshot",
        "from inline_snapshot import snapshot\ndef test_a(): assert 1 == snapshot(1)\n",
        "--inline-snapshot=create",
    ),
    "pytest-snapshot": _of(
        "pytest-snapshot", "def test_a(snapshot): snapshot.assert_match('a', 'a.txt')\n", "--snapshot-update"
    ),
    "pytest-regressions": _of(
        "pytest-regressions", "def test_a(data_regression): data_regression.check({'a': 1})\n", "--force-regen"
    ),
}

#: Items that are not functions.
OTHER_ITEMS = {
    "pytest-doctestplus": _of(
        "pytest-doctestplus",
        'def a():\n    """\n    >>> 1 + 1\n    2\n    """\n',
        "--doctest-plus",
        "--doctest-modules",
    ),
    "pytest-ruff": _of("pytest-ruff", "import os\ndef test_a(): pass\n", "--ruff", needs=("ruff",)),
    "pytest-mypy": _of(
        "pytest-mypy",
        "def test_a() -> None:\n    x: int = ''\n",
        "--mypy",
        difference="its first item of a process is contaminated: mypy changes the recursion limit",
    ),
    "nbval": _of("nbval", PLAIN, "--nbval-lax", needs=("ipykernel",)),
}

PLUGINS: dict[str, Plugin] = {**REPORTING, **SELECTING, **FIXTURES, **MEASURING, **OTHER_ITEMS}
