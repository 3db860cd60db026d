"""torch.npu's task groups: ops of a captured graph whose host arguments an update replaces."""

from __future__ import annotations

from typing import Any

from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.machine import Task


def graph_task_group_begin(stream: Any) -> None:
    """Begin a group of ops that an update can replace; the stream is being captured."""
    active().machine.begin_task(stream.stream_id)


def graph_task_group_end(stream: Any) -> Task:
    """End the group, and return its handle."""
    return active().machine.end_task(stream.stream_id)


def graph_task_update_begin(stream: Any, handle: Task) -> None:
    """Let the ops issued to `stream` from now on take the place of the group's; it is not being captured."""
    active().machine.begin_update(stream.stream_id, handle)


def graph_task_update_end(stream: Any) -> None:
    """End the update."""
    active().machine.end_update(stream.stream_id)
