"""Tests of the benchmark that holds Slipstream against other engines; none of these is needed."""
