"""Static graphs: which there are, which one a batch takes and why, their inputs, capture and replay."""
