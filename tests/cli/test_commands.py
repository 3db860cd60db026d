"""What the commands print, and where: data on standard output, words on standard error."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from cyclopts import App

from slipstream import __version__
from slipstream.bench import decode, forward
from slipstream.cli import COMMANDS, app, main
from slipstream.engine.core import prefill_chunk
from slipstream.llm import build_engine
from slipstream.native import library
from slipstream.trace import Slice, check_no_overlap, read_chrome
from tests.engines import Fleet
from tests.model.tiny import write_tiny_gguf

Capture = pytest.CaptureFixture[str]

ENGINE_OPTIONS = (
    "draft num-steps head dtype graph graph-fallback buckets mixed-sizes extend-graph check task-order device "
    "attention kernels kv-dtype max-requests "
    "max-model-len page-size num-pages memory-mb prefill-chunk threads seed"
)
TRACE_OPTIONS = "advanced width sides rules rank infer clocks"
OPTIONS = {
    "run": "model prompt system raw compare trace graph-metrics json max-tokens temperature top-k top-p stop "
    + ENGINE_OPTIONS,
    "bench decode": "model max-tokens repeats batch eager json " + ENGINE_OPTIONS,
    "bench forward": "model rows context prefill repeats json dtype graph device kernels page-size "
    "prefill-chunk threads",
    "models get": "name",
    "train head": "model out data prompts tokens quick json epochs rows num-steps learning-rate hidden-weight "
    "draft-vocabulary init evaluate-minutes seed threads",
    "check": "file round schedules seed exhaustive timeout json",
    "graphs plan": "max-requests json num-draft-tokens num-speculative-tokens sizes max-size max-batched-tokens "
    "interactive mode attention splitting fallback state-blocks sequence-parallel histogram budget layers "
    "draft-layers tp dp pcp dcp moe expert-parallel shared-expert-overlap hccl probe-streams probe-mib "
    "ascend-rules enforce-eager compile-mode encoder-decoder xlite launch-blocking sleep-mode alloc-conf "
    "warmups inductor a5",
    "graphs explain-error": "file json",
    "plan": "model json " + ENGINE_OPTIONS,
    "env": "json",
    "trace analyse": f"json html round details {TRACE_OPTIONS}",
    "trace diff": f"a b json {TRACE_OPTIONS}",
    "trace whatif": "scale host remove-wait bucket extend-graph perfect-overlap json " + TRACE_OPTIONS,
    "trace export": f"perfetto round {TRACE_OPTIONS}",
    "trace record": "trace analyse",
}

#: Positional arguments of any number: they have no name to write.
_UNNAMED = ("*", "ARGUMENTS", "PATHS", "COMMAND")


@pytest.mark.parametrize("command", OPTIONS)
def test_a_command_has_exactly_these_options(command: str) -> None:
    """People's scripts rest on them: adding one is a decision, renaming or dropping one a break."""
    found = app
    for name in command.split():
        found = found[name]
    options = [argument.names[0] for argument in found.assemble_argument_collection()]
    assert sorted(o.removeprefix("--") for o in options if o not in _UNNAMED) == sorted(
        OPTIONS[command].split()
    )


def test_there_are_exactly_these_commands() -> None:
    def commands(of: Any, prefix: str = "") -> list[str]:
        names = [name for name in of if not name.startswith("-")]
        return [found for n in names for found in (commands(of[n], f"{prefix}{n} ") or [prefix + n])]

    assert sorted(commands(app)) == sorted(OPTIONS)


@pytest.mark.parametrize("place", COMMANDS)
def test_the_list_of_commands_says_of_each_what_it_says_itself(place: str) -> None:
    module, _, name = place.partition(":")
    found = getattr(import_module(module), name)
    own = found.help if isinstance(found, App) else found.__doc__.split("\n\n")[0]
    assert COMMANDS[place] == " ".join(own.split())


def run(
    capsys: Capture, fleet: Fleet, tmp_path: Path, *arguments: str, draft: str = "ngram"
) -> tuple[str, str]:
    """`run` on the tiny model, the trace in `tmp_path`; returns what was printed."""
    common = ["run", str(fleet.path), "--prompt", "hello there", "--threads", "1", "--max-tokens", "12"]
    trace = ["--trace", str(tmp_path / "trace.json.gz"), "--draft", draft, "--buckets", "1,2"]
    assert main([*common, *trace, *arguments]) == 0
    printed = capsys.readouterr()
    return printed.out, printed.err


def run_json(
    capsys: Capture, fleet: Fleet, tmp_path: Path, *arguments: str, **options: str
) -> dict[str, Any]:
    out, _ = run(capsys, fleet, tmp_path, "--json", *arguments, **options)
    assert out.count("\n") == 1
    data: dict[str, Any] = json.loads(out)
    return data


class TestRun:
    def test_text_comes_first_then_the_tables(self, capsys: Capture, tiny: Fleet, tmp_path: Path) -> None:
        data = run_json(capsys, tiny, tmp_path, draft="nextn")
        out, err = run(capsys, tiny, tmp_path, draft="nextn")
        assert out.startswith(data["text"] + "\n")
        for words in (
            "12 tokens (length)",
            "times as fast; same text",
            "mean advanced 1.",
            "acceptance by position  1: ",
            "Where the time of the rounds went",
            "plans, accept, schedule, publish",
            "prefill: eager",
            f"trace: {tmp_path / 'trace.json.gz'}",
        ):
            assert words in out
        for phase in ("draft", "verify", "extend"):
            assert any(phase in line and "replay" in line and "captured" in line for line in out.splitlines())
        assert "error" not in err

    def test_json_is_one_document_and_nothing_else(
        self, capsys: Capture, tiny: Fleet, tmp_path: Path
    ) -> None:
        data = run_json(capsys, tiny, tmp_path, draft="nextn")
        assert data["tokens"] == len(data["token_ids"]) == 12
        assert (data["finish_reason"], data["interrupted"], data["same_text"]) == ("length", False, True)
        assert (data["draft"], data["trace_error"]) == ("nextn", None)
        assert data["tok_s"] > 0
        assert data["plain_tok_s"] > 0
        assert {row["phase"] for row in data["phases"]} == {"draft", "verify", "extend"}
        assert {"route", "reason", "bucket", "width", "rows", "padded_rows", "ms", "share"} <= {
            *data["phases"][0]
        }
        assert {"what", "asked", "got", "why"} == {*data["decisions"][0]}

    def test_graph_metrics_are_vllms_table_or_prometheus(
        self, capsys: Capture, tiny: Fleet, tmp_path: Path
    ) -> None:
        pieces = ("--graph", "full_and_piecewise", "--prefill-chunk", "16", "--no-compare")
        out, _ = run(capsys, tiny, tmp_path, *pieces, "--graph-metrics", "table", draft="none")
        assert "- Mode: FULL_AND_PIECEWISE\n- Capture sizes: [1, 2, 4, 6, 8, 10, 12, 14, 16]" in out
        assert re.search(r"^\| 1 +\| 1 +\| 0 +\| FULL +\| 11 +\|$", out, re.M)
        assert "prefill: replay" in out
        out, _ = run(capsys, tiny, tmp_path, *pieces, "--graph-metrics", "prometheus", draft="none")
        assert 'slipstream_graph_padding_total{unpadded="1",padded="1",mode="FULL"} 11' in out
        data = run_json(capsys, tiny, tmp_path, *pieces, draft="none")
        assert data["graphs"]["mode"] == "full_and_piecewise"
        assert [1, 1, 0, "FULL", 11] in data["graphs"]["padding"]
        assert "prefill 2 rows" in data["graphs"]["never_replayed"]

    def test_metrics_that_there_are_not_are_refused(
        self, capsys: Capture, tiny: Fleet, tmp_path: Path
    ) -> None:
        assert main(["run", str(tiny.path), "--prompt", "x", "--graph-metrics", "tabel"]) == 2
        assert "Did you mean 'table'?" in capsys.readouterr().err

    def test_every_drafter_and_route_gives_the_same_tokens(
        self, capsys: Capture, tiny: Fleet, tmp_path: Path
    ) -> None:
        runs = [
            run_json(capsys, tiny, tmp_path, "--no-compare", "--graph", graph, draft=draft)
            for draft in ("none", "ngram", "nextn")
            for graph in ("full", "piecewise", "none")
        ]
        assert len({tuple(data["token_ids"]) for data in runs}) == 1
        assert {row["route"] for row in runs[-1]["phases"]} == {"eager"}
        assert {row["reason"] for row in runs[-1]["phases"]} == {"graphs are off (--graph none)"}

    def test_without_the_chat_template_the_prompt_is_continued(
        self, capsys: Capture, tiny: Fleet, tmp_path: Path
    ) -> None:
        data = run_json(capsys, tiny, tmp_path, "--raw", "--no-compare")
        prompt = tiny.loaded().tokenizer.encode("hello there")
        assert data["prompt_tokens"] == len(prompt)
        assert (data["plain_tok_s"], data["same_text"]) == (None, None)

    def test_a_system_message_is_part_of_the_prompt(
        self, capsys: Capture, tiny: Fleet, tmp_path: Path
    ) -> None:
        with_system = run_json(capsys, tiny, tmp_path, "--system", "be brief", "--no-compare")
        without = run_json(capsys, tiny, tmp_path, "--no-compare")
        assert with_system["prompt_tokens"] > without["prompt_tokens"]

    def test_a_stop_string_ends_the_answer(self, capsys: Capture, tiny: Fleet, tmp_path: Path) -> None:
        text = run_json(capsys, tiny, tmp_path, "--no-compare")["text"]
        stop = next(letter for letter in text[1:] if letter.isascii() and letter.isprintable())
        data = run_json(capsys, tiny, tmp_path, "--no-compare", "--stop", stop, "--stop", "never")
        assert (data["text"], data["finish_reason"]) == (text[: text.index(stop)], "stop")

    def test_a_temperature_shows_its_decision_in_words_and_in_data(
        self, capsys: Capture, tiny: Fleet, tmp_path: Path
    ) -> None:
        data = run_json(capsys, tiny, tmp_path, "--temperature", "0.9", "--top-k", "20")
        [decision] = [d for d in data["decisions"] if d["what"] == "draft"]
        assert (data["draft"], decision["asked"], decision["got"]) == ("none", "ngram", "none")
        out, _ = run(capsys, tiny, tmp_path, "--temperature", "0.9", "--top-k", "20")
        assert "draft: asked ngram, got none: temperature is above 0" in out
        again = run_json(capsys, tiny, tmp_path, "--temperature", "0.9", "--top-k", "20")
        assert again["token_ids"] == data["token_ids"]
        other = run_json(capsys, tiny, tmp_path, "--temperature", "0.9", "--top-k", "20", "--seed", "5")
        assert other["token_ids"] != data["token_ids"]

    def test_checking_mode_changes_nothing(self, capsys: Capture, tiny: Fleet, tmp_path: Path) -> None:
        plain = run_json(capsys, tiny, tmp_path, "--no-compare")
        checked = run_json(capsys, tiny, tmp_path, "--check", draft="nextn")
        assert (checked["token_ids"], checked["same_text"]) == (plain["token_ids"], True)


class TestTrace:
    def test_opens_and_shows_every_phase_on_its_track(
        self, capsys: Capture, tiny: Fleet, tmp_path: Path
    ) -> None:
        data = run_json(capsys, tiny, tmp_path, draft="nextn")
        assert data["trace"] == str(tmp_path / "trace.json.gz")
        trace = read_chrome(tmp_path / "trace.json.gz")
        check_no_overlap(trace.events)
        tracks: dict[str, set[str]] = {}
        for event in trace.events:
            if isinstance(event, Slice):
                tracks.setdefault(event.track, set()).add(event.name)
        graph = tracks.pop("main graph", set())  # a native replay tells the time of its parts
        assert tracks == {
            "main": {"prefill", "draft", "verify", "accept", "extend"},
            "plan": {"verify plan", "extend plan A", "extend plan B"},
            "host": {"schedule", "upload", "draft plan", "record", "settle", "publish"},
        }
        parts = {"embedding", "layer 0 attention", "layer 1 feed-forward", "LM head", "head feed-forward"}
        assert parts <= graph or library.best_isa() is None
        verify = next(event for event in trace.events if isinstance(event, Slice) and event.name == "verify")
        assert {"route", "reason", "bucket", "width", "rows", "padded_rows"} <= {*verify.args}
        runs = {row["phase"]: row["runs"] for row in data["phases"]}
        for phase, count in runs.items():
            assert sum(isinstance(e, Slice) and e.name == phase for e in trace.events) == count
        assert trace.metadata["dropped"] == 0

    def test_that_cannot_be_written_keeps_the_answer(
        self, capsys: Capture, tiny: Fleet, tmp_path: Path
    ) -> None:
        data = run_json(capsys, tiny, tmp_path / "missing")
        assert len(data["token_ids"]) == 12
        assert data["trace"] is None
        assert "cannot write the trace" in data["trace_error"]
        out, _ = run(capsys, tiny, tmp_path / "missing")
        assert out.startswith(data["text"] + "\n")
        assert "no trace: cannot write the trace" in out
        assert list(tmp_path.iterdir()) == []


class TestPlan:
    def test_shows_every_decision_and_reads_no_weights(
        self, capsys: Capture, tiny: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_weights(*_: object, **__: object) -> None:
            raise AssertionError("weights were loaded")

        monkeypatch.setattr("slipstream.llm.load_llama", no_weights)
        assert main(["plan", str(tiny.path), "--draft", "nextn", "--max-requests", "3"]) == 0
        out = capsys.readouterr().out
        assert "llama, 2 layers of 64, 4 heads on 2, vocabulary 320" in out
        for words in (
            "at most 3 requests run",
            "no head was given, so it is random",
            "the file holds 4-bit blocks",
        ):
            assert words in " ".join(out.split())

    def test_json_has_the_plan_and_its_decisions(self, capsys: Capture, tiny: Fleet) -> None:
        assert main(["plan", str(tiny.path), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["plan"]["width"] == 4
        assert data["plan"]["graph_mode"] == "full"
        assert data["plan"]["buckets"] == [1, 2, 4, 8]
        assert {d["what"] for d in data["decisions"]} >= {"device", "dtype", "draft", "buckets", "num_pages"}
        assert data["model"]["num_layers"] == 2


class TestOthers:
    def test_env_says_what_a_bug_report_needs(self, capsys: Capture) -> None:
        assert main(["env", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert {"python", "torch", "slipstream", "processor", "memory", "device cpu", "models cached"} <= {
            *facts
        }
        assert main(["env"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(facts)

    def test_version(self, capsys: Capture) -> None:
        assert main(["--version"]) == 0
        assert capsys.readouterr().out.strip() == __version__

    @pytest.mark.parametrize("command", ["", *OPTIONS])
    def test_help_describes_every_option(self, capsys: Capture, command: str) -> None:
        assert main([*command.split(), "--help"]) == 0
        out = capsys.readouterr().out
        for option in OPTIONS.get(command, "").split():
            assert f"--{option}" in out


@pytest.fixture(scope="module")
def long_tiny(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """The eight prompts are long for a vocabulary of bytes."""
    return Fleet(write_tiny_gguf(tmp_path_factory.mktemp("long") / "tiny.gguf", tie=False, context=2048))


class TestBenchDecode:
    KEYS = (
        "plain_tok_s spec_tok_s speedup mean_advanced acceptance_by_position greedy_equal replays eager "
        "eager_reasons padded_rows host_share peak_rss_mb model dtype draft"
    )

    def bench(self, capsys: Capture, tiny: Fleet, *arguments: str) -> tuple[str, dict[str, Any]]:
        common = ["bench", "decode", str(tiny.path), "--threads", "1", "--repeats", "1"]
        assert main([*common, *arguments]) == 0
        out = capsys.readouterr().out
        *table, last = out.splitlines()
        return "\n".join(table), json.loads(last)

    def test_ends_in_one_json_line_with_every_figure(self, capsys: Capture, long_tiny: Fleet) -> None:
        table, record = self.bench(capsys, long_tiny, "--json", "--draft=nextn", "--max-tokens=4")
        assert table == ""
        assert record.keys() >= set(self.KEYS.split())
        assert (record["workload"], record["model"], record["draft"]) == ("decode", "tiny", "nextn")
        assert record["greedy_equal"] is True
        assert len(record["by_prompt"]) == 8
        assert record["replays"] > 0
        assert (record["eager"], record["eager_reasons"]) == (0, {})
        assert record["plain_tok_s"] > 0
        assert record["spec_tok_s"] > 0

    def test_shows_a_table_before_it(self, capsys: Capture, long_tiny: Fleet) -> None:
        table, record = self.bench(
            capsys, long_tiny, "--batch=8", "--eager", "--buckets=4", "--max-tokens=16", "--draft=ngram"
        )
        assert all(name in table for name in ("chat1", "copy1", "speed-up"))
        assert record["batch"] == 8
        assert len(record["by_prompt"]) == 1
        assert record["eager"] > 0
        assert any("8 requests exceed the largest bucket 4" in reason for reason in record["eager_reasons"])
        assert record["eager_tok_s"] > 0
        assert all(words in table for words in ("Where a round's time went", "verify 8x1", "(eager)", "rest"))
        assert f"this machine reads {record['read_gb_s']:.1f} GB/s (threads: 1)" in table
        assert table.count("dispatch share") == 3
        assert len(table.splitlines()) <= 41

    @pytest.mark.parametrize("draft", ["nextn", "ngram", "auto"])
    def test_says_which_num_steps_is_best_and_why(
        self, capsys: Capture, long_tiny: Fleet, draft: str
    ) -> None:
        table, record = self.bench(
            capsys, long_tiny, f"--draft={draft}", "--max-tokens=8", "--num-steps=2", "--batch=2"
        )
        by_steps = record["by_num_steps"]
        assert [each["num_steps"] for each in by_steps] == [0, 1, 2]
        speeds = [each["tok_s"] for each in by_steps]
        assert record["best_num_steps"] == speeds.index(max(speeds))
        for steps, each in enumerate(by_steps):
            assert each["verify_ms"] > 0
            assert (each["draft_ms"] > 0, each["extend_ms"] > 0) == (draft == "nextn" and steps > 0,) * 2
            assert each["advanced"] == pytest.approx(1 + sum(record["acceptance_by_position"][:steps]))
            took = each["draft_ms"] + each["verify_ms"] + each["extend_ms"]
            assert each["tok_s"] == pytest.approx(2 * each["advanced"] / took * 1e3)
        assert "best at batch 2, by these times and the drafts accepted above: " in table
        assert table.count("advanced in draft") == 3

    def test_the_parts_of_the_rounds_add_up_to_their_time(self, capsys: Capture, long_tiny: Fleet) -> None:
        _, record = self.bench(capsys, long_tiny, "--json", "--draft=nextn", "--max-tokens=12", "--eager")
        assert record["rounds"].keys() == {"plain", "spec", "eager"}
        for kind, rounds in record["rounds"].items():
            whole = rounds["rounds"] * rounds["round_ms"]
            parts = {part["phase"]: part for part in rounds["parts"]}
            assert sum(part["ms"] for part in parts.values()) == pytest.approx(whole)
            assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
            # What has no name is left; were anything counted twice, it would be negative.
            assert 0 < parts["rest"]["ms"] < whole
            named = {"schedule", "upload", "verify plan", "verify", "accept", "settle", "publish", "rest"}
            drafting = {"draft plan", "draft", "extend plan A", "extend plan B", "extend"}
            more = drafting if kind == "spec" else set()
            assert parts.keys() == named | more
            graphs = sum(part["ms"] for part in parts.values() if part["route"] != "host")
            assert rounds["host_share"] == pytest.approx(1 - graphs / whole)
            assert parts["verify"]["runs"] == parts["accept"]["runs"] == rounds["rounds"]
            assert rounds["forward_ms"] == pytest.approx(parts["verify"]["ms_per_run"])
            assert rounds["gb_s"] == pytest.approx(rounds["read_mb"] / rounds["forward_ms"])

    def test_the_rounds_are_those_of_the_answers(self, capsys: Capture, long_tiny: Fleet) -> None:
        _, record = self.bench(capsys, long_tiny, "--json", "--draft=none", "--max-tokens=5")
        plain = record["rounds"]["plain"]
        # Eight prompts; the first token of each comes from its prefill, and a round gives one.
        assert plain["rounds"] == 8 * 4
        assert plain["round_ms"] == pytest.approx(1e3 / record["plain_tok_s"])
        prompts = [long_tiny.loaded().tokenizer.encode(p.user) for p in decode.decode_prompts()]
        assert plain["context"] > sum(map(len, prompts)) / 8 + 2.5

    def test_texts_that_differ_are_a_finding(
        self, capsys: Capture, long_tiny: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = decode.complete
        odd = iter(range(10_000))

        def differ(engine: Any, prompts: Any, sampling: Any) -> Any:
            return [replace(answer, token_ids=[next(odd)]) for answer in whole(engine, prompts, sampling)]

        monkeypatch.setattr(decode, "complete", differ)
        arguments = ["--threads", "1", "--repeats", "1", "--max-tokens", "2", "--json", "--batch", "8"]
        assert main(["bench", "decode", str(long_tiny.path), *arguments]) == 1
        assert json.loads(capsys.readouterr().out)["greedy_equal"] is False


class TestBenchForward:
    def forward(self, capsys: Capture, tiny: Fleet, *arguments: str) -> tuple[str, dict[str, Any]]:
        common = ["bench", "forward", str(tiny.path), "--threads", "1", "--repeats", "5", "--context", "100"]
        assert main([*common, *arguments]) == 0
        *table, last = capsys.readouterr().out.splitlines()
        return "\n".join(table), json.loads(last)

    def test_measures_each_number_of_rows_and_a_prefill(self, capsys: Capture, tiny: Fleet) -> None:
        table, record = self.forward(capsys, tiny, "--rows=4,1,17,1", "--prefill=300")
        assert (record["workload"], record["model"], record["context"]) == ("forward", "tiny", 100)
        assert [row["rows"] for row in record["rows"]] == [1, 4, 17]
        assert record["rows"][0]["over_one_row"] == 1
        for row in record["rows"]:
            assert (row["route"], row["reason"]) == ("replay", "captured")
            assert row["gb_s"] == pytest.approx(record["read_mb"] / row["ms"])
        assert record["prefill_tokens"] == 300
        assert record["prefill_tok_s"] == pytest.approx(300 / record["prefill_ms"] * 1e3)
        assert record["read_gb_s"] > 0
        assert "prefill of 300 tokens, 256 at a time" in table
        assert len(table.splitlines()) <= 12

    def test_the_matrices_are_a_part_of_the_forward(self, capsys: Capture, tiny: Fleet) -> None:
        if not library.load():
            pytest.skip("the native library is not built")
        _, record = self.forward(capsys, tiny, "--json", "--rows=1,8", "--prefill=0", "--kernels=native")
        assert (record["prefill_ms"], record["kernels"]) == (0, "native")
        for row in record["rows"]:
            assert 0 < row["matrices_ms"] < row["ms"]
            assert row["over_matrices"] == pytest.approx(row["ms"] / row["matrices_ms"])
            matrices = sum(ms for kernel, ms in row["kernel_ms"].items() if kernel.startswith("linear"))
            assert matrices == pytest.approx(row["matrices_ms"], rel=0.2)

    def test_without_graphs_or_native_kernels_it_says_so(self, capsys: Capture, tiny: Fleet) -> None:
        table, record = self.forward(
            capsys, tiny, "--rows=2", "--prefill=0", "--graph=none", "--kernels=torch"
        )
        [row] = record["rows"]
        assert (row["route"], row["matrices_ms"], row["over_one_row"]) == ("eager", None, None)
        assert row["kernel_ms"] == {}
        assert "prefill of" not in table

    def test_its_rows_are_those_of_one_request(
        self, capsys: Capture, tiny: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The forward that is timed is the one that decoding would run: same logits, behind the same context."""
        cores: list[Any] = []

        def keep(loaded: Any, plan: Any) -> Any:
            cores.append(engine := build_engine(loaded, plan))
            return engine

        monkeypatch.setattr(forward, "build_engine", keep)
        self.forward(capsys, tiny, "--json", "--rows=3", "--prefill=0", "--dtype=f32")
        core = cores[0].core
        ids = core.buffers.view("verify.ids", 3).tolist()
        assert core.buffers.view("verify.positions", 3).tolist() == [100, 101, 102]
        dispatch = core.runner.dispatcher.dispatch("verify", 1, 3)
        timed = core.runner.run(dispatch, 1, core.main)[1].clone()
        context = forward._ids(core, 100)
        pages = list(range(1, 8))
        hidden = prefill_chunk(core, context + ids, 0, pages)
        assert torch.allclose(timed, core.target.logits(hidden[100:]), atol=1e-4)
