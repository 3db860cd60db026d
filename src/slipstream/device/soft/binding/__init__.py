"""PyTorch on the software NPU: torch ops become the machine's commands."""
