"""What peers.py says in the end: a table, and the record that its last line prints."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peers_engine import QUIET, Series
from peers_kinds import INT4, LLAMA, PLAIN, SPEC

#: What Slipstream is to reach: words, the figure's row and name, the least or, for memory, the most.
TARGETS = (
    ("plain decoding / llama.cpp", PLAIN, "llama_ratio", 2.0),
    ("plain decoding / OpenVINO int4", PLAIN, "int4_ratio", 1.4),
    ("drafts / plain decoding", SPEC, "own_ratio", 1.25),
    ("prefill of 512 / llama.cpp", PLAIN, "prefill_llama_ratio", 1.0),
    ("batch 8 / batch 1", PLAIN, "batch_ratio", 4.0),
    ("memory less torch / llama.cpp", PLAIN, "memory_llama_ratio", 1.3),
)
AT_MOST = {"memory_llama_ratio"}
#: Targets that hold at one size only.
SIZES = {"prefill_llama_ratio": ("prefill", 512), "batch_ratio": ("batch", 8)}

Row = dict[str, Any]


def make_record(
    args: argparse.Namespace,
    prompts: dict[str, Any],
    running: Mapping[tuple[str, int], Series],
    failed: dict[str, str],
) -> dict[str, Any]:
    """Return all that was measured; engines that failed are under "left_out"."""
    alone = {name: one for (name, batch), one in running.items() if batch == 1}
    rows = {name: _row(one, args.prefill) for name, one in alone.items()}
    for name, one in alone.items():
        _compare_alone(rows[name], one, alone, rows)
        together = running.get((name, args.batch)) if args.batch > 1 else None
        if together is not None:
            rows[name] |= _together(one, together)
    others = [cores for one in running.values() for cores in one.others]
    record = {
        "workload": "peers",
        "model": prompts["name"],
        "file": Path(prompts["path"]).name,
        "prompts": [prompt["name"] for prompt in prompts["prompts"]],
        "prefill": args.prefill,
        "draft": args.draft,
        "num_steps": args.num_steps,
        "lookup": args.lookup,
        "batch": args.batch,
        "max_tokens": args.max_tokens,
        "repeats": args.repeats,
        "threads": args.threads,
        "context": args.context,
        "engines": rows,
        "targets": [_target(rows, args, *target) for target in TARGETS],
        "left_out": failed,
        "texts_differ": _texts_differ(args, running),
        "noisy_share": sum(cores > QUIET for cores in others) / len(others) if others else None,
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }
    return record


def _row(one: Series, prefill: int) -> Row:
    about = one.worker.about
    return {
        "engine": about["engine"],
        "version": about["version"],
        "weights": about["weights"],
        "settings": about["settings"],
        "tok_s": statistics.median(one.tok_s),
        "tok_s_by_repeat": one.tok_s,
        "tok_s_by_prompt": {name: statistics.median(speeds) for name, speeds in one.by_prompt.items()},
        "first_token_ms": statistics.median(one.first_s) * 1e3,
        "prefill_tok_s": prefill / statistics.median(one.prefill_s) if one.prefill_s else None,
        "load_s": about["load_s"],
        "rss_mb": one.rss_mb,
        "peak_rss_mb": one.peak_rss_mb,
        "torch_mb": about["torch_mb"],
        "import_mb": about["import_mb"],
        "rss_less_torch_mb": one.rss_mb - about["torch_mb"],
        "same_text_every_repeat": one.steady,
        "other_cores": statistics.median(one.others),
        "idle_cores": statistics.median(one.idle),
    }


def _compare_alone(row: Row, one: Series, alone: Mapping[str, Series], rows: Mapping[str, Row]) -> None:
    """Add the ratios between engines: this one's over the other's, except where the name says plain or spec."""
    if plain := alone.get(PLAIN):
        row["text_as_ours"] = _compare(plain.texts, one.texts)
        row["own_ratio"] = _ratio(one.tok_s, plain.tok_s)
        row["plain_ratio"] = _ratio(plain.tok_s, one.tok_s)
        row["plain_ratio_by_prompt"] = _ratios(plain, one)
    if spec := alone.get(SPEC):
        row["spec_ratio"] = _ratio(spec.tok_s, one.tok_s)
        row["spec_ratio_by_prompt"] = _ratios(spec, one)
    if int4 := alone.get(INT4):
        row["int4_ratio"] = _ratio(one.tok_s, int4.tok_s)
    if llama := alone.get(LLAMA):
        row["llama_ratio"] = _ratio(one.tok_s, llama.tok_s)
        row["memory_llama_ratio"] = row["rss_less_torch_mb"] / rows[LLAMA]["rss_mb"]
        row["memory_less_import_llama_ratio"] = (one.rss_mb - row["import_mb"]) / rows[LLAMA]["rss_mb"]
        if one.prefill_s:
            row["prefill_llama_ratio"] = _ratio(llama.prefill_s, one.prefill_s)


def _together(alone: Series, together: Series) -> Row:
    return {
        "batch_tok_s": statistics.median(together.tok_s),
        "batch_tok_s_by_repeat": together.tok_s,
        "batch_ratio": _ratio(together.tok_s, alone.tok_s),
        "batch_rss_mb": together.rss_mb,
        "batch_text_as_alone": _compare(alone.texts, together.texts),
    }


def _texts_differ(args: argparse.Namespace, running: Mapping[tuple[str, int], Series]) -> list[str]:
    """Which of our runs gave other texts than plain decoding of one prompt at a time: a defect, every one."""
    plain = running.get((PLAIN, 1))
    ours = [(name, batch) for name in (PLAIN, SPEC) for batch in sorted({1, args.batch})]
    return [
        f"{name}, batch {batch}"
        for name, batch in ours
        if plain and (name, batch) in running and running[name, batch].texts != plain.texts
    ]


def _target(
    rows: Mapping[str, Row], args: argparse.Namespace, words: str, name: str, key: str, wanted: float
) -> dict[str, Any]:
    """Hold a figure against its target; None where it was not measured, or at another size."""
    size = SIZES.get(key)
    value = rows.get(name, {}).get(key) if size is None or getattr(args, size[0]) == size[1] else None
    at_most = key in AT_MOST
    met = None if value is None else value <= wanted if at_most else value >= wanted
    return {"what": words, "wanted": wanted, "at_most": at_most, "value": value, "met": met}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b if b else 0.0 for a, b in zip(ours, theirs, strict=True))


def _ratios(ours: Series, theirs: Series) -> dict[str, float]:
    return {name: _ratio(ours.by_prompt[name], theirs.by_prompt[name]) for name in ours.by_prompt}


def _compare(ours: dict[str, list[int]], theirs: dict[str, list[int]]) -> dict[str, Any]:
    """How many texts are ours, and where the others part from it (0 is the first token)."""
    part = {}
    for name, tokens in ours.items():
        if theirs[name] != tokens:
            pairs = zip(tokens, theirs[name], strict=False)
            shorter = min(len(tokens), len(theirs[name]))
            part[name] = next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)
    return {"equal": len(ours) - len(part), "of": len(ours), "first_difference": part}


def print_table(record: dict[str, Any]) -> None:
    """Print the engines, what Slipstream was to reach, and what spoils the figures."""
    print(
        f"{record['file']}, {len(record['prompts'])} prompts, {record['max_tokens']} tokens, "
        f"context {record['context']}, {record['threads']} threads, median of {record['repeats']}"
    )
    rows = [_head(record), *(_cells(name, row) for name, row in record["engines"].items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print(
        "/llama, /int4, /1: over llama.cpp, over OpenVINO int4, over one prompt at a time. MB: resident after the "
        "runs; net: less what\nimporting torch alone takes. others: cores that other processes used meanwhile."
    )
    for name, why in record["left_out"].items():
        print(f"{name}: left out: {why}")
    _print_targets(record)
    for name in record["texts_differ"]:
        print(f"OUR TEXT OF {name} IS NOT OUR PLAIN TEXT, which is a defect: please report it.")
    if record["noisy_share"]:
        share = f"{record['noisy_share']:.1%} of the measurements"
        print(
            f"NOISY: during {share} other processes used more than {QUIET} cores. Engines suffer unequally from "
            "that (threads that wait for each other most), so do not quote these ratios."
        )


def _head(record: dict[str, Any]) -> tuple[str, ...]:
    return (
        *("engine", "weights", "tok/s", "/llama", "/int4"),
        *(f"{record['prefill']} tok/s", "/llama"),
        *(f"batch {record['batch']}", "/1"),
        *("MB", "net", "/llama", "text as ours", "others"),
    )


def _cells(name: str, row: Row) -> tuple[str, ...]:
    def cell(key: str, digits: int = 2) -> str:
        value = row.get(key)
        return "-" if value is None else f"{value:.{digits}f}"

    text = row.get("text_as_ours")
    same = "-"
    if text:
        parts = sorted(text["first_difference"].values())
        same = f"{text['equal']}/{text['of']}" + (f", parts at {parts[0]}" if parts else "")
    return (
        *(name, row["weights"], cell("tok_s", 1), cell("llama_ratio"), cell("int4_ratio")),
        *(cell("prefill_tok_s", 0), cell("prefill_llama_ratio")),
        *(cell("batch_tok_s", 1), cell("batch_ratio")),
        *(cell("rss_mb", 0), cell("rss_less_torch_mb", 0), cell("memory_llama_ratio")),
        *(same, cell("other_cores")),
    )


def _print_targets(record: dict[str, Any]) -> None:
    measured = [target for target in record["targets"] if target["value"] is not None]
    if measured:
        print("Targets of Slipstream:")
    for target in measured:
        limit = f"{'at most' if target['at_most'] else 'at least'} {target['wanted']:.2f}"
        verdict = "met" if target["met"] else "MISSED"
        print(f"  {target['what']:<32}{target['value']:6.2f}   {limit}   {verdict}")
