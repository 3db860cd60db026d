"""Which weights a head was trained for: a hash of the target's tensors, whatever file they are in."""

from __future__ import annotations

import hashlib

import numpy as np

from slipstream.model.checkpoint import Checkpoint

#: Of each tensor, this many runs of this many bytes, evenly spread: fine-tuning changes nearly every weight, so a
#: few show it, and a model of any size is hashed in the time of its tensors' count.
_RUNS, _RUN_BYTES = 16, 256


def target_hash(checkpoint: Checkpoint) -> str:
    """Return 64 hexadecimal digits that depend on names, shapes, encodings and weights of all tensors."""
    digest = hashlib.sha256()
    for name in checkpoint.tensor_names:
        raw = checkpoint.tensor(name)
        digest.update(f"{name} {raw.type} {raw.shape};".encode())
        stored = np.ascontiguousarray(raw.data).view(np.uint8).reshape(-1)
        if stored.size <= _RUNS * _RUN_BYTES:
            digest.update(stored.tobytes())
            continue
        for start in np.linspace(0, stored.size - _RUN_BYTES, _RUNS, dtype=np.int64):
            digest.update(stored[start : start + _RUN_BYTES].tobytes())
    return digest.hexdigest()
