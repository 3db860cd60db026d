"""How findings call what the user's code makes."""

from __future__ import annotations

import re

from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.machine.places import here

#: A line that gives something new a name: `plan = torch.npu.Stream()`, `self.graph: Graph = NPUGraph()`.
_NAMING = re.compile(r"([A-Za-z_][\w.]*)\s*(?::[^=]+)?=\s*[\w.]*\(")


def named(kind: str) -> str:
    """Return how findings call what the user's code makes here: by its variable, else by its line.

    What one line makes again and again is numbered from the second on.
    """
    place = here()
    naming = _NAMING.match(place.source)
    name, rest = (naming[1], f" ({place.where})") if naming else (kind, f" made at {place.where}")
    times = active().times_named
    times[name + rest] += 1
    return name + (f" #{times[name + rest]}" if times[name + rest] > 1 else "") + rest
