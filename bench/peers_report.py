"""What peers.py says in the end: a table, and the record that its last line prints."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from peers_engine import QUIET, Series

#: Slipstream without and with drafts, which all engines are held against.
PLAIN, SPEC = "slipstream", "slipstream-spec"

HEAD = (
    "engine",
    "weights",
    "tok/s",
    "plain x",
    "spec x",
    "1st ms",
    "RSS MB",
    "peak",
    "text as ours",
    "others",
)


def make_record(
    args: argparse.Namespace,
    prompts: dict[str, Any],
    context: int,
    series: dict[str, Series],
    failed: dict[str, str],
) -> dict[str, Any]:
    plain, spec = series.get(PLAIN), series.get(SPEC)
    engines = {}
    for name, one in series.items():
        about = one.worker.about
        row: dict[str, Any] = {
            "engine": about["engine"],
            "version": about["version"],
            "weights": about["weights"],
            "tok_s": statistics.median(one.tok_s),
            "tok_s_by_repeat": one.tok_s,
            "tok_s_by_prompt": {
                prompt: statistics.median(speeds) for prompt, speeds in one.by_prompt.items()
            },
            "first_token_ms": statistics.median(one.prefill_s) * 1e3,
            "load_s": about["load_s"],
            "rss_mb": one.rss_mb,
            "peak_rss_mb": one.peak_rss_mb,
            "same_text_every_repeat": one.steady,
            "other_cores": statistics.median(one.others),
            "idle_cores": statistics.median(one.idle),
        }
        if plain is not None:
            row["text_as_ours"] = _compare(plain.texts, one.texts)
            row["plain_ratio"] = _ratio(plain.tok_s, one.tok_s)
            row["plain_ratio_by_prompt"] = _ratios(plain, one)
        if spec is not None:
            row["spec_ratio"] = _ratio(spec.tok_s, one.tok_s)
            row["spec_ratio_by_prompt"] = _ratios(spec, one)
        engines[name] = row
    others = [cores for one in series.values() for cores in one.others]
    return {
        "workload": "peers",
        "model": prompts["name"],
        "file": Path(prompts["path"]).name,
        "prompts": [prompt["name"] for prompt in prompts["prompts"]],
        "draft": args.draft,
        "num_steps": args.num_steps,
        "lookup": args.lookup,
        "batch": args.batch,
        "max_tokens": args.max_tokens,
        "repeats": args.repeats,
        "threads": args.threads,
        "context": context,
        "engines": engines,
        "left_out": failed,
        "spec_text_equal": plain.texts == spec.texts if plain and spec else None,
        "noisy_share": sum(cores > QUIET for cores in others) / len(others) if others else None,
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }


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
    title = f"{record['file']}, {len(record['prompts'])} prompts, {record['max_tokens']} tokens, "
    print(f"{title}batch {record['batch']}, {record['threads']} threads, median of {record['repeats']}")
    rows = [HEAD]
    for name, row in record["engines"].items():
        text = row.get("text_as_ours")
        parts = sorted(text["first_difference"].values()) if text else []
        rows.append(
            (
                name,
                row["weights"],
                f"{row['tok_s']:.1f}",
                f"{row['plain_ratio']:.2f}" if "plain_ratio" in row else "-",
                f"{row['spec_ratio']:.2f}" if "spec_ratio" in row else "-",
                f"{row['first_token_ms']:.0f}",
                f"{row['rss_mb']:.0f}",
                f"{row['peak_rss_mb']:.0f}",
                (f"{text['equal']}/{text['of']}" + (f", parts at {parts[0]}" if parts else ""))
                if text
                else "-",
                f"{row['other_cores']:.2f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for row in rows:
        cells = [
            cell.ljust(w) if at < 2 else cell.rjust(w)
            for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells))
    print(
        f"plain x, spec x: Slipstream plain, and with {record['draft']} drafts, over that engine. "
        "others: cores that other processes used meanwhile."
    )
    for name, why in record["left_out"].items():
        print(f"{name}: left out: {why}")
    if record["spec_text_equal"] is False:
        print("OUR SPECULATIVE TEXT IS NOT OUR PLAIN TEXT, which is a defect: please report it.")
    if record["noisy_share"]:
        share = f"{record['noisy_share']:.0%} of the measurements"
        print(
            f"NOISY: during {share} other processes used more than {QUIET} cores. Engines suffer unequally from "
            "that (threads that wait for each other most), so do not quote these ratios."
        )
