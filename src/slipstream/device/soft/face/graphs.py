"""torch.npu's graphs: NPUGraph, the capture context, task groups and updates."""

from __future__ import annotations

import gc
import json
import os
from typing import Any

from slipstream.device.soft.binding.memory import PoolId
from slipstream.device.soft.binding.naming import named
from slipstream.device.soft.binding.runtime import Capture, active
from slipstream.device.soft.face import streams
from slipstream.device.soft.face.figures import empty_cache, host_empty_cache
from slipstream.device.soft.face.handlers import GraphDispatchMode
from slipstream.device.soft.machine import Graph, Region
from slipstream.device.soft.machine.errors import GraphCheck

_MODES = ("global", "thread_local", "relaxed")


class NPUGraph:
    """Work captured once and replayed over the same memory. It takes one capture; `reset` makes it new."""

    def __init__(self) -> None:
        self.graph_dispatch_mode = GraphDispatchMode()
        self.auto_dispatch_capture = False
        self._graph: Graph = active().machine.graph(named("graph"))
        self._capture: Capture | None = None
        self._pool: PoolId | None = None
        self._stream = -1
        self._inputs: dict[str, Region] = {}

    def __del__(self) -> None:
        # A dropped graph gives its streams back, as after `reset`; what it was replayed for is still reported.
        graph = getattr(self, "_graph", None)
        if graph is not None and graph.state != "capturing":
            graph.streams = 0

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begin to capture what the current stream is given.

        Args:
            pool: what `graph_pool_handle()` or another graph's `pool()` returned, to share memory with.
            capture_error_mode: "global", "thread_local" or "relaxed".

        Raises:
            RuntimeError: the mode is unknown, the stream is the default one, or the device refuses.
        """
        if capture_error_mode not in _MODES:
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
                f"{capture_error_mode}"
            )
        runtime = active()
        stream, own = runtime.current_stream(), tuple(pool) if pool is not None else runtime.new_pool()
        self._capture = runtime.begin_capture(stream, self._graph, capture_error_mode, own)
        self._stream, self._pool = stream, own
        for memory in runtime.memories:
            memory.use_pool(own)

    def capture_end(self) -> None:
        """End the capture, on the stream on which it was begun.

        Raises:
            RuntimeError: another stream is current, a stream was not joined, or the capture broke before.
        """
        active().end_capture(active().current_stream(), self._graph)

    def replay(self) -> None:
        """Run the captured work on the current stream.

        Raises:
            RuntimeError: nothing was captured.
        """
        runtime = active()
        stream = runtime.current_stream()
        if self._graph.state == "captured" and self._capture is not None:
            for draw in self._capture.draws:
                draw.take()
        runtime.machine.replay(stream, self._graph, self._inputs)

    def reset(self) -> None:
        """Let go of the captured work, and of its memory pool.

        Raises:
            RuntimeError: it is being captured, or a replay is not finished (107037).
        """
        runtime = active()
        runtime.machine.reset(self._graph)
        if self._pool is not None:
            for memory in runtime.memories:
                memory.leave_pool(self._pool)
        self._capture, self._pool, self._inputs = None, None, {}

    def pool(self) -> PoolId:
        """Return the memory pool, for another graph to share."""
        if self._graph.state != "captured" or self._pool is None:
            raise GraphCheck("NPUGraph.pool() was called without a successful capture before it.")
        return self._pool

    def update(self, cpu_update_input: list[dict[str, Any]]) -> None:
        """Give the host-list ops of the graph new lists, in capture order; one dict is for all of them.

        Raises:
            RuntimeError: the capture was not made with auto_dispatch_capture=True, or the number of dicts differs
                from the number of ops.
        """
        if not self.auto_dispatch_capture:
            raise RuntimeError(
                "The current graph configuration does not support update. "
                "Try to capture by setting auto_dispatch_capture=True during capture"
            )
        self.graph_dispatch_mode.update_capture_record(cpu_update_input)

    def _note_inputs(self, inputs: dict[str, Region]) -> None:
        """Note where the inputs lie: the first time those of the capture, then those of the next replay."""
        if self._inputs:
            self._inputs = inputs
        else:
            active().machine.bind_inputs(self._graph, inputs)
            self._inputs = inputs

    def debug_dump(self, debug_path: str) -> None:
        """Write the captured nodes as JSON: index, op, stream, the nodes waited for, reads and writes."""
        if self._graph.state != "captured":
            return
        nodes = [
            {
                "index": node.index,
                "op": node.op,
                "stream": node.chain,
                "waits_for": list(node.deps),
                "reads": [region.label or region.buffer.name for region in node.reads],
                "writes": [region.label or region.buffer.name for region in node.writes],
                "place": node.place.where,
            }
            for node in self._graph.nodes
        ]
        with open(debug_path, "w", encoding="utf-8") as file:
            json.dump({"name": self._graph.name, "nodes": nodes}, file, indent=1)


class graph:
    """Captures what is done inside the block into `npu_graph`, on a stream of its own unless one is given.

    It waits for the device and empties the cache before. `capture_end` is called whether the block raised or not,
    and where it raises in turn, the stream stays the current one: as in torch_npu.
    """

    default_capture_stream: Any = None

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: Any = None,
        stream: Any = None,
        auto_dispatch_capture: bool = False,
        capture_error_mode: str = "global",
    ) -> None:
        if stream is None:
            stream = active().once_a_rank("capture stream", streams.Stream)
            graph.default_capture_stream = stream
        self.pool: tuple[Any, ...] = () if pool is None else (pool,)
        self.capture_stream = stream
        self.stream_ctx = streams.stream(self.capture_stream)
        self.npu_graph = npu_graph
        self.capture_error_mode = capture_error_mode
        self.npu_graph.auto_dispatch_capture = auto_dispatch_capture

    def __enter__(self) -> None:
        streams.synchronize()
        if os.getenv("TORCH_NPUGRAPH_GC", "0") == "1":
            gc.collect()
        empty_cache()
        host_empty_cache()
        self.stream_ctx.__enter__()
        if self.npu_graph.auto_dispatch_capture:
            self.npu_graph.graph_dispatch_mode.__enter__()  # type: ignore[no-untyped-call]
        pool = self.pool[0] if self.pool else None
        self.npu_graph.capture_begin(pool=pool, capture_error_mode=self.capture_error_mode)

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        self.npu_graph.capture_end()
        if self.npu_graph.auto_dispatch_capture:
            self.npu_graph.graph_dispatch_mode.__exit__(exc_type, exc_value, traceback)  # type: ignore[no-untyped-call]
        self.stream_ctx.__exit__(exc_type, exc_value, traceback)


def graph_pool_handle() -> PoolId:
    """Return a new memory pool that graphs can share."""
    return active().new_pool()


def is_current_stream_capturing() -> bool:
    """Return whether the current stream is being captured."""
    runtime = active()
    return runtime.machine.is_capturing(runtime.current_stream()) is not None
