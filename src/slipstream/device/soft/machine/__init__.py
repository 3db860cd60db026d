"""The software NPU's machine: streams, gates, graphs and hosts, who runs when, and what goes wrong. No torch here.

    machine = Machine(Seeded(7))
    plan, hidden = machine.stream("plan"), machine.buffer("hidden", 4096)
    machine.kernel(0, "draft", writes=[Region(hidden, 0, 4096)])       # 0 is the default stream
    machine.kernel(plan, "prepare", reads=[Region(hidden, 0, 4096)])   # nothing orders the two
    print(machine.finish())     # a race, both lines, and `plan.wait_stream(default)`, which would mend it

- Every call is one host call. A scheduler then lets commands run: in program order, at random by a seed, or in an
  order that a report gave. `Machine(keep=True, executes=False)` only notes, and `explore(machine.program())` tries
  every order that can differ.
- What is ordered is known from vector clocks, so one order is enough to find every race of a program whose order
  comes from events and synchronisation. Only gates make orders differ, and those are what `explore` tries.
- What a device refuses is raised, with Ascend's code (`errors`). What it would silently get wrong is a `Finding`.

What is modelled so, though the device may be laxer: two replays of one graph come one after the other; a read that
an opening's wait protects is ordered after that opening only, not after one that was lost before it.
"""

from slipstream.device.soft.machine import errors
from slipstream.device.soft.machine.commands import Event, Gate
from slipstream.device.soft.machine.core import Limits
from slipstream.device.soft.machine.explore import Exploration, explore
from slipstream.device.soft.machine.findings import Finding, ReplayCount, Report, Schedule
from slipstream.device.soft.machine.graphs import Graph, Task
from slipstream.device.soft.machine.machine import Machine
from slipstream.device.soft.machine.places import Place
from slipstream.device.soft.machine.program import Program
from slipstream.device.soft.machine.regions import Buffer, Region
from slipstream.device.soft.machine.schedulers import ProgramOrder, Replayed, Scheduler, Seeded, follow

__all__ = [
    "Buffer",
    "Event",
    "Exploration",
    "Finding",
    "Gate",
    "Graph",
    "Limits",
    "Machine",
    "Place",
    "Program",
    "ProgramOrder",
    "Region",
    "ReplayCount",
    "Replayed",
    "Report",
    "Schedule",
    "Scheduler",
    "Seeded",
    "Task",
    "errors",
    "explore",
    "follow",
]
