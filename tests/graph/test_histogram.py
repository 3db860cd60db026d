"""Histograms of batch sizes, from whatever people have; rubbish is named, skipped and counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from slipstream.errors import UsageError
from slipstream.graph.histogram import Histogram, Unit, read_histogram
from slipstream.trace import Mark, Slice, write_chrome

TABLE = """\
(pid=36) INFO 12-02 16:51:04 [log.py:1] - Mode: FULL_AND_PIECEWISE
(pid=36) INFO 12-02 16:51:04 [log.py:1] | Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |
(pid=36) INFO 12-02 16:51:04 [log.py:1] |-----------------|---------------|--------------|--------------|-------|
(pid=36) INFO 12-02 16:51:04 [log.py:1] | 12 | 16 | 4 | FULL | 700 |
(pid=36) INFO 12-02 16:51:04 [log.py:1] | 37 | 40 | 3 | PIECEWISE | 20 |
(pid=36) INFO 12-02 16:51:04 [log.py:1] | 100 | 100 | 0 | CUDAGraphMode.NONE | 9 |
(pid=36) INFO 12-02 16:51:14 [log.py:1] | Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |
| 12 | 16 | 4 | FULL | 50 |
| 10 | 12 | 2 | FULL | 5 |
| 12 | 8 | 4 | FULL | 1 |
| what | is | this | here | now |
"""


def read(tmp_path: Path, text: str | bytes, name: str = "h.txt") -> Histogram:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_histogram(path)


class TestKinds:
    def test_lines(self, tmp_path: Path) -> None:
        text = "size,count\n# morning\n1 900\n8\t50\n8: 5\n4,7  # noon\n\n16 = 0\n"
        histogram = read(tmp_path, text)
        assert (histogram.kind, histogram.unit) == ("lines", Unit.REQUESTS)
        assert (histogram.counts, histogram.skipped) == ({1: 900, 8: 55, 4: 7, 16: 0}, ())

    def test_a_metrics_table_inside_a_log(self, tmp_path: Path) -> None:
        histogram = read(tmp_path, TABLE)
        assert (histogram.kind, histogram.unit) == ("metrics table", Unit.ROWS)
        assert histogram.counts == {12: 750, 10: 5, 100: 9}
        assert histogram.left_out == {"mixed batches, replayed in pieces": 20}
        assert [(s.line, s.why) for s in histogram.skipped] == [
            (10, "pads to fewer rows than it has"),
            (11, "is no row of the metrics table"),
        ]

    def test_a_table_of_pieces_alone_counts(self, tmp_path: Path) -> None:
        assert read(tmp_path, "| 3 | 4 | 1 | PIECEWISE | 20 |\n").counts == {3: 20}

    def test_a_vllm_log(self, tmp_path: Path) -> None:
        line = (
            "INFO 02-17 18:32:47 log.py:78] Avg generation: 7.5 tokens/s, Running: {} reqs, Waiting: 3 reqs\n"
        )
        histogram = read(tmp_path, "starting\n" + "".join(line.format(n) for n in (13, 13, 2, 0)) + "done\n")
        assert (histogram.kind, histogram.counts) == ("log", {13: 2, 2: 1})
        assert histogram.left_out == {"no running request": 1}

    def test_an_sglang_log_without_its_prefills(self, tmp_path: Path) -> None:
        text = (
            "[2026-09-01] Prefill batch, #new-seq: 1, #running-req: 9, #queue-req: 0\n"
            "[2026-09-01] Decode batch, #running-req: 20, #token: 900, accept len: 2.1, cuda graph: True\n"
        )
        assert read(tmp_path, text).counts == {20: 1}

    @pytest.mark.parametrize(
        "data",
        [
            {"1": 3, "8": 2},
            [[1, 3], [8, 2]],
            [{"size": 1, "count": 3}, {"requests": 8, "count": 2}],
            [1, 8, 1, 8, 1],
            {"histogram": {"1": 3, "8": 2}},
        ],
    )
    def test_json(self, tmp_path: Path, data: object) -> None:
        histogram = read(tmp_path, json.dumps(data))
        assert (histogram.kind, histogram.counts) == ("JSON", {1: 3, 8: 2})

    @pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
    def test_one_of_our_traces(self, tmp_path: Path, name: str) -> None:
        events = [
            Slice("main", "verify", 0, 10, {"requests": 3}),
            Slice("main", "verify", 20, 10, {"requests": 3}),
            Slice("main", "extend", 40, 10, {"requests": 3}),
            Slice("main", "verify", 60, 10, {"requests": 1}),
            Mark("main", "note", 5, {"requests": 9}),
        ]
        path = tmp_path / name
        write_chrome(path, events)
        histogram = read_histogram(path)
        assert (histogram.kind, histogram.counts) == ("trace", {3: 2, 1: 1})

    def test_packed_lines(self, tmp_path: Path) -> None:
        assert read(tmp_path, gzip.compress(b"4 2\n"), "h.gz").counts == {4: 2}


class TestRubbish:
    def test_is_named_skipped_and_counted(self, tmp_path: Path) -> None:
        histogram = read(tmp_path, "4 10\nnonsense here, really\n0 3\n-2 5\n8 -1\n2.5 3\n7\n4 2\n")
        assert histogram.counts == {4: 12}
        assert [str(skipped) for skipped in histogram.skipped] == [
            "line 2: 'nonsense here, really' is not `size count`",
            "line 3: '0 3' has the size 0, which is no batch",
            "line 4: '-2 5' has the size -2, which is no batch",
            "line 5: '8 -1' has the count -1",
            "line 6: '2.5 3' is not `size count`",
            "line 7: '7' is not `size count`",
        ]

    def test_in_json_as_well(self, tmp_path: Path) -> None:
        histogram = read(tmp_path, '[[1, 2], [true, 2], {"a": 1}, "x", 2.5, [3, "4"]]')
        assert histogram.counts == {1: 2, 3: 4}
        assert [skipped.line for skipped in histogram.skipped] == [2, 3, 4, 5]

    def test_a_long_line_is_cut(self, tmp_path: Path) -> None:
        assert len(read(tmp_path, "x" * 500 + "\n1 1\n").skipped[0].text) < 70

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "holds no batch: it is empty"),
            (b"# nothing\n\n", "holds no batch: it is empty"),
            (b"hello\nworld\n", r"holds no batch: 2 lines skipped \(first, line 1: 'hello' is not"),
            (b"\x00\x01\x02", "is not text"),
            (b"4 0\n", "holds no batch"),
            (b'{"a": ', "is neither JSON"),
            (b"[[[[", "is neither JSON"),
            (b'{"traceEvents": []}', "is a trace, but none that `slipstream run` wrote"),
            (b"\x1f\x8bnot packed", "cannot unpack"),
        ],
    )
    def test_a_file_without_a_batch_is_refused(self, tmp_path: Path, content: bytes, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            read(tmp_path, content)

    def test_a_file_that_is_not_there_or_is_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="No such file"):
            read_histogram(tmp_path / "none")
        with pytest.raises(UsageError, match="Is a directory"):
            read_histogram(tmp_path)


class TestRequests:
    def test_rows_become_requests(self, tmp_path: Path) -> None:
        used = read(tmp_path, TABLE).requests(4, 20)
        assert used.counts == {3: 750}
        assert used.left_out == {
            "mixed batches, replayed in pieces": 20,
            "rows that are no multiple of the width 4": 5,
            "more than 20 requests": 9,
        }

    def test_where_nothing_is_left_it_says_why(self, tmp_path: Path) -> None:
        with pytest.raises(
            UsageError, match="no decode batch of 1 to 4 requests: 7 steps have more than 4 requests"
        ):
            read(tmp_path, "9 7\n").requests(1, 4)
