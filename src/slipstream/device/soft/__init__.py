"""The software NPU: a model of Ascend's streams, gates and graphs that runs on a CPU."""
