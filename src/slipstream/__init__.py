"""Slipstream: speculative decoding on static graphs, and where the time of every round goes.

    from slipstream import LLM, SamplingParams

    llm = LLM("model.gguf")
    [answer] = llm.generate("What is a pipeline stall?", SamplingParams(max_tokens=64))

Everything here is looked up on first use, so that `import slipstream` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.config import EngineConfig, GraphConfig, SamplingParams, SpecConfig
    from slipstream.llm import LLM

__version__ = "0.1.0"

__all__ = ["LLM", "EngineConfig", "GraphConfig", "SamplingParams", "SpecConfig", "__version__"]

_HOMES = {
    "LLM": "slipstream.llm",
    "EngineConfig": "slipstream.config",
    "GraphConfig": "slipstream.config",
    "SamplingParams": "slipstream.config",
    "SpecConfig": "slipstream.config",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
