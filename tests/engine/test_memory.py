"""Keys, values and graphs in a bounded memory."""

from __future__ import annotations

import pytest

from slipstream.config import SamplingParams
from slipstream.engine import memory
from slipstream.errors import UsageError
from slipstream.llm import complete
from tests.engines import Fleet

GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.mark.parametrize("draft", ["none", "nextn"])
def test_pages_are_what_the_graphs_leave(tiny: Fleet, draft: str) -> None:
    wanted = tiny.engine(draft=draft, page_size=4, max_requests=64).core
    layers = len(wanted.cache.layers) + (draft == "nextn")
    page_bytes = wanted.plan.slot_bytes * 4 * layers // len(wanted.cache.layers)
    graphs = sum(record.memory_bytes for record in wanted.runner.stats.graphs.values())
    graphs += wanted.device.pool_bytes()
    whole_mb = (graphs + (wanted.plan.num_pages + 1) * page_bytes) / 1e6
    engine = tiny.engine(draft=draft, page_size=4, max_requests=64, memory_mb=int(whole_mb / 2))
    plan = engine.core.plan
    assert plan.pages_per_request <= plan.num_pages < wanted.plan.num_pages
    held = sum(record.memory_bytes for record in engine.core.runner.stats.graphs.values())
    held += engine.core.device.pool_bytes() + (plan.num_pages + 1) * page_bytes
    assert held <= int(whole_mb / 2) * 1e6 < held + page_bytes + 1e5
    decision = next(each for each in plan.decisions if each.what == "num_pages")
    assert decision.got == str(plan.num_pages)
    assert "MB of graphs, measured" in decision.why
    prompts = tiny.prompts()
    expected = [tiny.plain("f32", prompt, 12) for prompt in prompts]
    assert [answer.token_ids for answer in complete(engine, prompts, GREEDY)] == expected


def test_more_than_enough_changes_nothing(tiny: Fleet) -> None:
    assert tiny.engine(memory_mb=10_000).core.plan.num_pages == tiny.engine().core.plan.num_pages


def test_too_little_says_how_much_is_needed(tiny: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_graph_bytes", lambda *_: 970_000)
    with pytest.raises(
        UsageError, match=r"memory-mb 1 is not enough: 1 MB less 1\.0 MB .*Give at least 2 MB"
    ):
        tiny.engine(memory_mb=1)


def test_both_ways_to_say_it_are_refused(tiny: Fleet) -> None:
    with pytest.raises(UsageError, match="num-pages 9 and memory-mb 5 both say"):
        tiny.plan(num_pages=9, memory_mb=5)
