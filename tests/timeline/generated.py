"""Small traces with known truth as files: speculative rounds as SGLang marks them, on any number of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.timeline.as_traces import kineto_of
from tests.timeline.speculative import Shape, play


def sglang(folder: Path, shape: Shape, *, run: str = "nccl") -> Path:
    """Write a folder of ranks, as PyTorch's profiler does with SGLang's annotations."""
    folder.mkdir(parents=True, exist_ok=True)
    world = play(shape)
    for rank in range(shape.ranks):
        document: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "virtual"}],
            "distributedInfo": {"backend": run, "rank": rank, "world_size": shape.ranks},
            "traceEvents": kineto_of(world, rank),
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return folder
