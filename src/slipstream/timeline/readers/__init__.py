"""Readers of profilers' traces, one module a format."""
