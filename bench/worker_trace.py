"""Slipstream on one trace, as a process of its own for trace.py: prints a line of JSON.

    worker_trace.py PATH [--load-only]

load_s and analyse_s are without the interpreter's start and imports; the process as a whole is measured outside.
"""

from __future__ import annotations

import argparse
import json
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--load-only", action="store_true")
    args = parser.parse_args()
    from slipstream.timeline.analysis import analyse
    from slipstream.timeline.readers import open_timeline

    begun = time.perf_counter()
    timeline = open_timeline(args.path)
    loaded = time.perf_counter()
    facts = {"load_s": loaded - begun, "events": sum(source.read for source in timeline.sources)}
    if not args.load_only:
        analysis = analyse(timeline)
        facts["analyse_s"] = time.perf_counter() - loaded
        facts["rounds"] = sum(len(reports) for reports in analysis.reports.values())
    print(json.dumps(facts))


main()
