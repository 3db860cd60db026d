"""The pytest plugin, as another project would use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from slipstream.check.worker import warm_up

pytest_plugins = ["pytester"]

RACE = """
import pytest
import torch

def step():
    side = torch.npu.Stream()
    hidden = torch.zeros(4, device="npu")
    with torch.npu.stream(side):
        hidden.add_(1)
    {wait}
    return hidden.sum().item()
"""
WAIT = "torch.npu.current_stream().wait_stream(side)"
# Here also the first half of the order: `zeros` on the current stream comes before.
MENDED = RACE.replace(
    "    with torch", "    side.wait_stream(torch.npu.current_stream())\n    with torch"
).format(wait=WAIT)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Iterator[None]:
    """pytester takes out what a run imports, and the software NPU can be imported once in a process."""
    threads = torch.get_num_threads()
    warm_up()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of its own; the plugin is named, so that it need not be installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    return pytester


def run(project: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    project.makepyfile(source)
    return project.runpytest_inprocess(
        "-p", "slipstream.check.pytest_plugin", "--strict-markers", "-W", "error", *arguments
    )


def test_a_race_fails_with_its_report(project: pytest.Pytester) -> None:
    source = RACE.format(wait="pass") + (
        "\n@pytest.mark.slipstream_check(schedules=6)\ndef test_step():\n    assert step() == 4\n"
    )
    result = run(project, source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*write-write race on float32*",
            "*test_a_race_fails_with_its_report.py:8 in step: hidden.add_(1)",
            "*to mend it: *wait_stream(default)*",
            "*shown by program order and 6 of 6 seeds*",
            "*write-read race*",
            "*and the test raised under seed *: AssertionError*",
        ]
    )
    result.stdout.no_fnmatch_line("*in _multicall*")


def test_a_mended_one_passes(project: pytest.Pytester) -> None:
    source = MENDED + "\n@pytest.mark.slipstream_check\ndef test_step():\n    assert step() == 4\n"
    run(project, source).assert_outcomes(passed=1)


def test_every_schedule_is_run(project: pytest.Pytester) -> None:
    source = MENDED + (
        "\ncalls = []\n"
        "@pytest.fixture\ndef tenfold():\n    return 10\n"
        "@pytest.mark.slipstream_check(schedules=5, seed=3)\n"
        "@pytest.mark.parametrize('factor', [1])\n"
        "def test_step(tenfold, factor, soft_npu):\n    assert soft_npu is None\n"
        "    calls.append(tenfold * factor)\n    step()\n"
        "def test_calls():\n    assert calls == [10] * 6\n    assert not torch.npu.is_available()\n"
    )
    run(project, source).assert_outcomes(passed=2)


def test_a_failure_without_findings_is_the_test_s_own(project: pytest.Pytester) -> None:
    source = MENDED + (
        "\ncalls = []\n"
        "@pytest.mark.slipstream_check(schedules=4)\ndef test_step():\n"
        "    calls.append(step())\n    assert len(calls) < 3, 'the third'\n"
    )
    result = run(project, source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*AssertionError: the third*", "*under schedule seed 1 of slipstream_check*"]
    )


def test_a_hang_is_a_finding(project: pytest.Pytester) -> None:
    source = (
        "import pytest, torch\n@pytest.mark.slipstream_check(schedules=2)\ndef test_hang():\n"
        "    torch.npu.ExternalEvent().wait(torch.npu.Stream())\n    torch.npu.synchronize()\n"
    )
    result = run(project, source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*hang: *for ever: nobody has opened it*"])


def test_the_fixture(project: pytest.Pytester) -> None:
    source = RACE.format(wait="pass") + (
        "\ndef test_step(soft_npu):\n    step()\n    assert soft_npu.findings\n"
        "\ndef test_clean(soft_npu):\n    torch.ones(2, device='npu').sum().item()\n"
    )
    result = run(project, source)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*write-write race*"])


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("slipstream_check(5)", "*knows schedules= and seed=, not values without a name*"),
        ("slipstream_check(orders=5)", "*knows schedules= and seed=, not orders*"),
        ("slipstream_check(schedules=-1)", "*schedules=-1 is no number from 0 on*"),
    ],
)
def test_a_marker_that_cannot_be(project: pytest.Pytester, mark: str, said: str) -> None:
    result = run(project, f"import pytest\n@pytest.mark.{mark}\ndef test_it():\n    pass\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([said])


@pytest.mark.parametrize(
    "source",
    [
        "import unittest\nclass TestIt(unittest.TestCase):\n    @mark\n    def test_it(self):\n        pass\n",
        "@mark\nasync def test_it():\n    pass\n",
    ],
)
def test_a_test_that_cannot_be_called_again(project: pytest.Pytester, source: str) -> None:
    result = run(project, "import pytest\nmark = pytest.mark.slipstream_check\n" + source)
    assert result.parseoutcomes() in ({"errors": 1}, {"failed": 1})
    result.stdout.fnmatch_lines(["*slipstream_check is for plain test functions and methods*"])


def test_a_method_of_a_class(project: pytest.Pytester) -> None:
    source = MENDED + (
        "\nclass TestIt:\n    @pytest.mark.slipstream_check(schedules=2)\n"
        "    def test_step(self):\n        assert step() == 4\n"
    )
    run(project, source).assert_outcomes(passed=1)


def test_torch_is_imported_only_when_needed(project: pytest.Pytester) -> None:
    project.makepyfile("import sys\ndef test_it():\n    assert 'torch' not in sys.modules\n")
    result = project.runpytest_subprocess("-p", "slipstream.check.pytest_plugin")
    result.assert_outcomes(passed=1)
