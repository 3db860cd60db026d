"""The command line: `slipstream run | check | graphs | trace | bench | train | models | plan | env`.

Data goes to standard output, words about it to standard error. Exit codes: 0 done, 1 a failure or findings, 2
wrong usage, 130 interrupted. A command is imported when it is asked for, and what it needs, as torch, when it
runs: so `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from cyclopts import App, CycloptsError

from slipstream import __version__
from slipstream.errors import INTERRUPTED, SlipstreamError, UsageError

app = App(
    name="slipstream",
    help="Speculative decoding on static graphs, and where the time of every round goes.",
    version=__version__,
    result_action="return_value",
)
#: Commands by the place they are loaded from when they are asked for, and what `slipstream --help` says of them.
COMMANDS: Final = {
    "slipstream.cli_graphs:graphs_app": "Plan graphs before a launch, and explain why they failed.",
    "slipstream.cli_bench:bench_app": "Measure a named workload.",
    "slipstream.cli_bench:train_app": "Train a draft head for a model.",
    "slipstream.cli_run:models_app": "Models that Slipstream knows where to get.",
    "slipstream.timeline.command:trace_app": (
        "Read any profiler's trace into rounds, a critical path, and what it waits for."
    ),
    "slipstream.cli_run:run": ("Answer one prompt: the text streams, then a table says what each round did."),
    "slipstream.cli_run:plan": "Show every resolved setting and why, without loading weights.",
    "slipstream.cli_run:env": (
        "Show what a bug report needs: versions, processor, cores, memory, cached models."
    ),
    "slipstream.cli_run:check": (
        "Run a torch_npu program on a model of the NPU, in many legal orders, and name its races and hangs."
    ),
}
for _place, _help in COMMANDS.items():
    app.command(_place, name=_place.rpartition(":")[2].removesuffix("_app"), help=_help)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        code = app(
            list(sys.argv[1:] if arguments is None else arguments),
            exit_on_error=False,
            print_error=False,
        )
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(" ".join(str(error).split()), UsageError.exit_code)
    except SlipstreamError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away, as `head` does; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
