"""Speculative decoding: draft, verify, accept, extend. Read `speculative.round` first."""
