"""Failures that users reported in public, each rebuilt as a small program, and what the checker says of it."""
