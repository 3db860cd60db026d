"""Paged KV: which pages are free, which request has which, and the tensors behind them."""
