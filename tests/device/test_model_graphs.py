"""The graphs of our own models: all of their nodes are Slipstream's ops."""

from __future__ import annotations

import pytest

from tests.engines import Fleet


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("dtype", ["f32", "q4", "bf16"])
def test_no_node_calls_back_into_torch(tiny: Fleet, dtype: str, num_steps: int) -> None:
    engine = tiny.engine(dtype=dtype, draft="nextn", num_steps=num_steps, buckets=(1, 2))
    graphs = engine.core.runner.graphs
    assert {key.phase for key in graphs} == {"draft", "verify", "extend"}
    for key, graph in graphs.items():
        assert graph.node_counts
        assert graph.callbacks == {}, key


@pytest.mark.parametrize("num_steps", [1, 3, 5])
def test_the_draft_graph_holds_one_forward_less_than_steps(tiny: Fleet, num_steps: int) -> None:
    """Candidate 1 comes from the extend before."""
    engine = tiny.engine(draft="nextn", num_steps=num_steps, buckets=(1,))
    counts = {key.phase: graph.node_counts for key, graph in engine.core.runner.graphs.items()}
    assert counts["draft"].get("paged_attention", 0) == num_steps - 1
    assert counts["extend"]["paged_attention"] == 1
    assert counts["verify"]["paged_attention"] == tiny.loaded().target.config.num_layers
