"""The software NPU's machine: streams, gates, graphs and hosts, who runs when, and what goes wrong.

No torch here. `Machine` is the device; a scheduler says which of the legal orders is run; `finish()` returns
what was found. `explore` tries every order of a recorded program.
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
