"""HolisticTraceAnalysis on one trace, as a process of its own for trace.py: load, and the critical path of a step.

    worker_trace_hta.py PATH

Prints a line of JSON: load_s, path_s (of the third ProfilerStep), without the interpreter's start and imports.
"""

from __future__ import annotations

import json
import logging
import sys
import time


def main() -> None:
    logging.disable(logging.WARNING)
    from hta.trace_analysis import TraceAnalysis

    begun = time.perf_counter()
    analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
    loaded = time.perf_counter()
    _, good = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=2)
    if not good:
        sys.exit("HTA found no critical path")
    print(json.dumps({"load_s": loaded - begun, "path_s": time.perf_counter() - loaded}))


main()
