"""Traces of any profiler, read into rounds, dependencies, a critical path and answers. No torch."""
