"""How many threads a process gets by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.device.cpu import physical_cores


def system(folder: Path, siblings: dict[int, str]) -> Path:
    for processor, text in siblings.items():
        place = folder / f"cpu{processor}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("processors", "cores"), [({0, 1, 2, 3}, 2), ({0, 2}, 1), ({0, 1}, 2), ({3}, 1), ({0, 9}, 2)]
)
def test_hardware_threads_of_one_core_count_once(tmp_path: Path, processors: set[int], cores: int) -> None:
    """Processors 0 and 2 are one core, 1 and 3 another; of 9 the system says nothing."""
    folder = system(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert physical_cores(processors, folder) == cores
