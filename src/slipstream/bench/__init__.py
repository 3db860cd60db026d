"""Named workloads, measured: each prints a card, a table, and one JSON document as its last line."""
