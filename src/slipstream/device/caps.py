"""What a device can do. Everything that differs between devices and matters above them is a field here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caps:
    """Capabilities of one device.

    Attributes:
        device: the backend's name.
        dtypes: weight formats it computes in, best first.
        graph_modes: modes that its graphs can be captured in.
        parallel_streams: whether work on two streams may really run at the same time.
        row_invariant: formats in which a row's result never depends on the rows beside it.
        default_threads: CPU threads that this process may use.
        native_isa: instruction set of the native kernels, or None where there are none.
        attentions: "paged", which reads lengths on the device, and "fia", which takes them from the host.
    """

    device: str
    dtypes: tuple[str, ...]
    graph_modes: tuple[str, ...]
    parallel_streams: bool
    row_invariant: tuple[str, ...]
    default_threads: int
    native_isa: str | None = None
    attentions: tuple[str, ...] = ("paged",)
