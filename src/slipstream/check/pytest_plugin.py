"""The pytest plugin: a test that runs on the software NPU, under many schedules, and fails with what was found.

    @pytest.mark.slipstream_check(schedules=50)
    def test_step():                  # in program order, then under 50 seeds; torch.npu and torch_npu are there
        ...

    def test_one(soft_npu):           # the software NPU for this test, in program order; `soft_npu` is its machine
        ...

A marked test is called once for each schedule, with the same fixtures: what it needs anew it makes itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import TestCase

import pytest

from slipstream.check.merge import Findings
from slipstream.check.outcome import Outcome
from slipstream.check.report import finding_text
from slipstream.check.request import DEFAULT_SCHEDULES

if TYPE_CHECKING:
    from slipstream.device.soft.machine import Machine

MARKER = "slipstream_check"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(schedules={DEFAULT_SCHEDULES}, seed=0): run the test on Slipstream's software NPU in program "
        "order and under so many seeded schedules, and fail with what was found",
    )


@pytest.fixture
def soft_npu(request: pytest.FixtureRequest) -> Iterator[Machine | None]:
    """The software NPU in program order; the test fails if something is found. None in a marked test."""
    if request.node.get_closest_marker(MARKER) is not None:
        yield None
        return
    from slipstream.device import soft

    _skip_frames()
    with soft.installed() as machine:
        yield machine
        findings = machine.finish().findings
    if findings:
        pytest.fail("\n\n".join(map(str, findings)), pytrace=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marked test that cannot be called again and again, and would pass without being checked."""
    if item.get_closest_marker(MARKER) is None:
        return
    owner = getattr(item, "cls", None)
    plain = isinstance(item, pytest.Function) and not (owner is not None and issubclass(owner, TestCase))
    if not plain or inspect.iscoroutinefunction(getattr(item, "obj", None)):
        pytest.fail(
            f"{MARKER} is for plain test functions and methods; {item.nodeid} is none: let one call it",
            pytrace=False,
        )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Call a marked test under its schedules."""
    marker = pyfuncitem.get_closest_marker(MARKER)
    if marker is None:
        return None
    schedules, seed = _values(pyfuncitem, marker)
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    _under(lambda: pyfuncitem.obj(**arguments), range(seed, seed + schedules), pyfuncitem.nodeid)
    return True


def _values(item: pytest.Function, marker: pytest.Mark) -> tuple[int, int]:
    """Return the schedules and the first seed of a marker."""
    given = {"schedules": DEFAULT_SCHEDULES, "seed": 0, **marker.kwargs}
    unknown = ", ".join(set(given) - {"schedules", "seed"})
    if marker.args or unknown:
        what = unknown or "values without a name"
        pytest.fail(f"{MARKER} of {item.nodeid} knows schedules= and seed=, not {what}", pytrace=False)
    for name, value in given.items():
        if not isinstance(value, int) or value < 0:
            pytest.fail(f"{MARKER} of {item.nodeid}: {name}={value!r} is no number from 0 on", pytrace=False)
    return given["schedules"], given["seed"]


def _under(call: Callable[[], object], seeds: range, name: str) -> None:
    """Call a test in program order and under seeds; fail with what was found."""
    found = Findings()
    raised: tuple[BaseException, int | None] | None = None
    for seed in (None, *seeds):
        error, findings = _once(call, seed)
        found.add(Outcome(seed, findings=findings))
        if error is not None and raised is None:
            raised = (error, seed)
        if error is not None and not len(found):
            break
    if not len(found):
        if raised is not None:
            error, seed = raised
            if seed is not None:
                error.add_note(f"under schedule seed {seed} of {MARKER}; program order passes")
            raise error
        return
    parts = [
        "\n".join(finding_text(merged, _shown(merged.in_program_order, merged.seeds, len(seeds))))
        for merged in found.merged
    ]
    if raised is not None:
        where = "in program order" if raised[1] is None else f"under seed {raised[1]}"
        parts.append(f"and the test raised {where}: {type(raised[0]).__name__}: {raised[0]}")
    pytest.fail(f"{name}\n\n" + "\n\n".join(parts), pytrace=False)


def _once(call: Callable[[], object], seed: int | None) -> tuple[BaseException | None, list[dict[str, Any]]]:
    """Call a test under one schedule; return what it raised, and the findings."""
    from slipstream.device import soft
    from slipstream.device.soft.machine import ProgramOrder, Seeded
    from slipstream.device.soft.machine.errors import EventSyncTimeout, StreamSyncTimeout

    _skip_frames()
    with soft.installed(ProgramOrder() if seed is None else Seeded(seed)) as machine:
        try:
            call()
            machine.finish()
        except (StreamSyncTimeout, EventSyncTimeout) as error:
            return (None if machine.findings else error), [one.as_dict() for one in machine.findings]
        except Exception as error:
            return error, [one.as_dict() for one in machine.findings]
        return None, [one.as_dict() for one in machine.findings]


def _shown(in_program_order: bool, shown: list[int], seeds: int) -> str:
    words = ["program order"] if in_program_order else []
    if seeds:
        words.append(f"{len(shown)} of {seeds} seeds" + (f", first {shown[0]}" if shown else ""))
    return " and ".join(words)


def _skip_frames() -> None:
    """Leave pytest's frames and ours out of the stacks."""
    from slipstream.device.soft.machine import places

    for part in ("/_pytest/", "/pluggy/", "/pytest/__main__.py", __file__, "<frozen "):
        places.skip(part)
