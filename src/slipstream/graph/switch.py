"""Whether a phase's graphs are worth their memory, measured: so switching them off is a choice. Pure: no torch.

SGLang got a kill switch for its draft-extend graphs because their pool ran devices out of memory, and no figure to
decide by (sglang#30944). Here memory stands beside the time that a replay saves, per round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.graph.descriptor import BatchDescriptor


@dataclass(frozen=True, slots=True)
class ShapeSaving:
    """One shape's phase, replayed and eager: the best of a few runs each, in nanoseconds."""

    shape: BatchDescriptor
    replay_ns: int
    eager_ns: int

    @property
    def saved_ns(self) -> int:
        """What a replay saves a round; below 0 where it costs time."""
        return self.eager_ns - self.replay_ns


@dataclass(frozen=True, slots=True)
class GraphSaving:
    """What the graphs of a phase cost and save.

    Attributes:
        phase: as "extend".
        asked: "auto", "on" or "off".
        graphs: how many were captured.
        memory_bytes: what they hold alone; the memory that all graphs compute in is not theirs.
        capture_ns: what capturing them took.
        shapes: a few shapes, measured; none where "on" or "off" was asked.
        kept: whether they are used.
    """

    phase: str
    asked: str
    graphs: int = 0
    memory_bytes: int = 0
    capture_ns: int = 0
    shapes: Sequence[ShapeSaving] = ()
    kept: bool = False

    @property
    def why(self) -> str:
        """The decision in words, with the figures."""
        if not self.shapes:
            return f"the {self.phase} graphs are {self.asked} (--{self.phase}-graph {self.asked})"
        verdict = "kept" if self.kept else "dropped: a replay saves nothing"
        return f"{verdict}; {self.figures}"

    @property
    def figures(self) -> str:
        """Memory and time, for people."""
        times = ", ".join(
            f"{each.shape.num_reqs}x{each.shape.width}: {each.eager_ns / 1e6:.3f} ms eager, "
            f"{each.replay_ns / 1e6:.3f} replayed"
            for each in self.shapes
        )
        return (
            f"{self.graphs} {self.phase} graphs hold {self.memory_bytes / 1e6:.2f} MB and took "
            f"{self.capture_ns / 1e6:.0f} ms; {times}"
        )

    def data(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "asked": self.asked,
            "kept": self.kept,
            "graphs": self.graphs,
            "memory_mb": self.memory_bytes / 1e6,
            "capture_ms": self.capture_ns / 1e6,
            "shapes": [
                {
                    "bucket": each.shape.num_reqs,
                    "width": each.shape.width,
                    "eager_ms": each.eager_ns / 1e6,
                    "replay_ms": each.replay_ns / 1e6,
                    "saved_ms": each.saved_ns / 1e6,
                }
                for each in self.shapes
            ],
        }


def pays(shapes: Sequence[ShapeSaving]) -> bool:
    """Return whether replays save time, over all measured shapes together."""
    return sum(each.saved_ns for each in shapes) > 0
