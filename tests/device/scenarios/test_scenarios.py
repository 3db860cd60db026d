"""Every scenario is found as what it is, by its names, in every order; and its mended form is clean."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Sequence

import pytest

from slipstream.device.soft.machine import Finding
from slipstream.device.soft.machine.errors import SoftError
from slipstream.device.soft.machine.findings import KINDS
from tests.device.scenarios.all import HERE, SCENARIOS, table
from tests.device.scenarios.registry import REFUSED, VALUES, Scenario, by_variable, orders, run

BROKEN_SEEDS, MENDED_SEEDS = 5, 10


def of_kinds(kinds: Sequence[str]) -> pytest.MarkDecorator:
    chosen = [one for one in SCENARIOS if one.kind in kinds]
    return pytest.mark.parametrize("scenario", chosen, ids=lambda one: one.name)


every = of_kinds([*KINDS, REFUSED, VALUES])
found = of_kinds(KINDS)
refused = of_kinds([REFUSED])
silent = of_kinds([VALUES])


@found
def test_it_is_found_in_every_order(scenario: Scenario) -> None:
    for scheduler in orders(BROKEN_SEEDS):
        fitting = [one for one in run(scenario, False, scheduler).findings if one.kind == scenario.kind]
        assert any(not lacking(scenario, one) for one in fitting), "\n\n".join(
            f"lacks {lacking(scenario, one)}: {by_variable(str(one))}" for one in fitting
        )


def lacking(scenario: Scenario, finding: Finding) -> list[str]:
    """Return what the finding should name and doesn't."""
    text = by_variable(str(finding))
    streams = [by_variable(name) for name in finding.streams]
    lacks = [name for name in scenario.says if name not in text]
    lacks += [name for name in scenario.streams if not any(name in stream for stream in streams)]
    if scenario.buffer is not None and scenario.buffer not in by_variable(finding.buffer or ""):
        lacks.append(scenario.buffer)
    mend = scenario.mend or scenario.mending[0]
    if (scenario.mend or "wait_stream" in mend) and mend not in by_variable(finding.missing):
        lacks.append(mend)
    if scenario.code is not None and finding.code != scenario.code:
        lacks.append(str(scenario.code))
    return lacks + [field for field in ("title", "missing", "order") if not getattr(finding, field)]


@refused
def test_it_is_refused_in_every_order(scenario: Scenario) -> None:
    for scheduler in orders(BROKEN_SEEDS):
        refusals = run(scenario, False, scheduler).refusals
        assert refusals, "nothing was refused"
        codes = [one.code for one in refusals if isinstance(one, SoftError)]
        assert scenario.code in codes or scenario.code is None
        text = by_variable("\n".join(map(str, refusals)))
        assert not [name for name in scenario.says if name not in text], text


@silent
def test_it_gives_other_values_and_no_finding(scenario: Scenario) -> None:
    for scheduler in orders(BROKEN_SEEDS):
        broken = run(scenario, False, scheduler)
        assert broken.findings == ()
        assert broken.error is None
        assert broken.value != run(scenario, True, scheduler).value


@every
def test_mended_it_is_clean_and_its_values_do_not_depend_on_the_order(scenario: Scenario) -> None:
    values = set()
    for scheduler in orders(MENDED_SEEDS):
        outcome = run(scenario, True, scheduler)
        assert outcome.error is None
        assert outcome.findings == (), "\n\n".join(map(str, outcome.findings))
        values.add(repr(outcome.value))
    assert len(values) == 1


@every
def test_one_line_mends_it(scenario: Scenario) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(scenario.program)))
    asked = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "mended"]
    assert len(asked) == 1
    assert len(scenario.mending) == 1
    assert len(inspect.getsource(scenario.program).splitlines()) <= 40


def test_every_scenario_has_a_known_kind_and_a_name_of_its_own() -> None:
    assert {one.kind for one in SCENARIOS} <= {*KINDS, REFUSED, VALUES}
    assert len({one.name for one in SCENARIOS}) == len(SCENARIOS)


def test_thirty_public_threads_are_found() -> None:
    threads = {one.thread for one in SCENARIOS if one.kind != VALUES and "#" in one.thread}
    assert len(threads) >= 30


def test_the_table_is_that_of_the_registry() -> None:
    assert (HERE / "README.md").read_text() == table(), "run `python -m tests.device.scenarios`"
