"""Everything that is counted of graphs, and its texts: vLLM's padding table, plain data, Prometheus."""

from __future__ import annotations

import re

import msgspec
import pytest

from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatcher
from slipstream.graph.modes import GraphMode
from slipstream.graph.reasons import Reason
from slipstream.graph.stats import KEPT_TIMES, GraphRecord, GraphStats
from slipstream.graph.stats_text import (
    captured_rows,
    graph_records,
    padding_counts,
    padding_table,
    prometheus,
)
from tests.engines import Fleet, answers, greedy

WIDTHS = {"verify": (4, 1), "draft": (3,)}


def some() -> GraphStats:
    """Replays whole and in pieces, with and without padding, and eager steps for three reasons."""
    dispatcher, stats = Dispatcher(GraphMode.FULL_AND_PIECEWISE, (1, 4), WIDTHS, (16,)), GraphStats()
    for phase, widths in WIDTHS.items():
        for width in widths:
            for bucket in (4, 1):
                key = BatchDescriptor(phase, bucket, width)
                stats.note_capture(GraphMode.FULL, key, 1000, memory_bytes=100 * key.rows, streams=1)
    stats.note_capture(
        GraphMode.PIECEWISE, BatchDescriptor.relaxed("prefill", 16), 5000, pieces=3, memory_bytes=64
    )
    for time_ns in range(1, 101):
        stats.count(dispatcher.dispatch("verify", 3, 4), time_ns)
    stats.count(dispatcher.dispatch("verify", 5, 4), 7)
    stats.count(dispatcher.dispatch("verify", 1, 2), 7)
    stats.count(dispatcher.dispatch("draft", 3, 3), 7)
    stats.count(dispatcher.dispatch_mixed("prefill", 10), 7)
    stats.count(dispatcher.dispatch_mixed("prefill", 20), 7)
    return stats


class TestCounts:
    def test_of_a_graph(self) -> None:
        record = some().graphs[GraphMode.FULL, BatchDescriptor("verify", 4, 4)]
        assert (record.captures, record.capture_ns, record.memory_bytes, record.streams) == (1, 1000, 1600, 1)
        assert (record.replays, record.raw_rows, record.padded_rows) == (100, 1200, 400)
        assert [record.percentile_ns(percent) for percent in (0, 50, 90, 99, 100)] == [1, 51, 91, 100, 100]

    def test_rounds_and_chunks_of_prompts_are_apart(self) -> None:
        stats = some()
        assert (stats.replays, stats.eager, stats.padded_rows) == (101, 2, 403)
        assert stats.phase_ns == 5050 + 21
        assert {str(key): (p.replays, p.eager, p.rows) for key, p in stats.mixed.items()} == {
            "prefill 1x16": (1, 0, 16),
            "prefill 1x20": (0, 1, 20),
        }

    def test_every_eager_step_has_a_kind(self) -> None:
        assert some().eager_kinds() == {
            ("verify", Reason.TOO_LARGE): 1,
            ("verify", Reason.WIDTH_DIFFERS): 1,
            ("prefill", Reason.TOO_LARGE): 1,
        }

    def test_graphs_that_were_never_replayed_are_named(self) -> None:
        stats = some()
        names = {str(key) for _, key in stats.never_replayed()}
        assert names == {"verify 1x4", "verify 4x1", "verify 1x1", "draft 1x3"}
        stats.reset()
        assert len(stats.never_replayed()) == len(stats.graphs) == 7
        assert (stats.captures, stats.replays, dict(stats.eager_kinds())) == (7, 0, {})

    def test_percentiles_are_of_the_newest_replays(self) -> None:
        record = GraphRecord()
        assert record.percentile_ns(50) == 0
        for time_ns in [10**9] * 50 + [5] * KEPT_TIMES:
            record.times.append(time_ns)
        assert (record.percentile_ns(99), len(record.times)) == (5, KEPT_TIMES)


class TestTexts:
    def test_the_padding_table_is_vllms(self) -> None:
        text = padding_table(some(), GraphMode.FULL_AND_PIECEWISE, [1, 4, 16])
        assert text == (
            "**CUDAGraph Config Settings:**\n\n- Mode: FULL_AND_PIECEWISE\n- Capture sizes: [1, 4, 16]\n\n"
            "**CUDAGraph Stats:**\n\n"
            "| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |\n"
            "|-----------------|---------------|--------------|--------------|-------|\n"
            "| 12              | 16            | 4            | FULL         | 100   |\n"
            "| 20              | 20            | 0            | NONE         | 2     |\n"
            "| 2               | 2             | 0            | NONE         | 1     |\n"
            "| 10              | 16            | 6            | PIECEWISE    | 1     |\n"
        )

    def test_records_are_plain_data(self) -> None:
        records = graph_records(some())
        assert msgspec.json.decode(msgspec.json.encode(records)) == records
        [pieces] = [record for record in records if record["mode"] == "piecewise"]
        assert (pieces["graph"], pieces["pieces"], pieces["requests"]) == ("prefill 16 rows", 3, None)
        assert captured_rows(some()) == [1, 4, 16]

    def test_prometheus_can_read_it(self) -> None:
        text = prometheus(some())
        families = re.findall(r"^# TYPE (\S+) (counter|gauge|summary)$", text, re.M)
        assert len(families) == len(set(families)) == 12
        for line in text.splitlines():
            assert line.startswith("#") or re.fullmatch(
                r'[a-z_]+\{([a-z]+="[^"\n]*",?)+\} [-+.e\d]+', line
            ), line
        assert 'slipstream_graph_replays_total{phase="verify",mode="full",graph="verify 4x4"} 100' in text
        assert 'slipstream_graph_eager_total{phase="verify",reason="too large"} 1' in text
        assert 'slipstream_graph_padding_total{unpadded="12",padded="16",mode="FULL"} 100' in text

    @pytest.mark.parametrize("mode", ["full", "full_and_piecewise"])
    def test_of_an_engine(self, tiny: Fleet, mode: str) -> None:
        engine = tiny.engine(draft="nextn", graph=mode, prefill_chunk=16, buckets=(4,))
        answers(engine, tiny.prompts()[1:4], greedy(8))
        stats = engine.stats.graphs
        record = stats.graphs[GraphMode.FULL, BatchDescriptor("verify", 4, 4)]
        assert record.replays > 0 < record.percentile_ns(50) <= record.percentile_ns(99)
        counts = padding_counts(stats)
        assert sum(count for *_, count in counts) == record.replays + sum(
            chunk.replays + chunk.eager for chunk in stats.mixed.values()
        )
        modes = {row[3] for row in counts}
        assert modes == ({"FULL", "NONE"} if mode == "full" else {"FULL", "PIECEWISE"})
        assert 'graph="verify 4x4"' in prometheus(stats)
