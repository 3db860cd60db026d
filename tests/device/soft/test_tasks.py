"""Host-list attention in graphs: lengths are the capture's until an update brings new ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream.device.soft.machine import Machine

B, N, K, D, PAGE, PAGES = 2, 4, 2, 8, 4, 8


class Attention:
    """One decode step of two requests over paged keys and values."""

    def __init__(self) -> None:
        import torch_npu

        self.npu = torch_npu
        random = torch.Generator().manual_seed(0)
        self.query = torch.randn(B, 1, N * D, generator=random).npu()
        self.key = torch.randn(PAGES, PAGE, K * D, generator=random).npu()
        self.value = torch.randn(PAGES, PAGE, K * D, generator=random).npu()
        self.table = torch.arange(PAGES, dtype=torch.int32, device="npu").view(B, PAGES // B)
        self.options: dict[str, Any] = {
            "num_heads": N,
            "num_key_value_heads": K,
            "input_layout": "BSH",
            "scale": D**-0.5,
            "block_table": self.table,
            "block_size": PAGE,
        }

    def __call__(self, lengths: list[int], **more: Any) -> Any:
        op = self.npu.npu_fused_infer_attention_score
        op = op.out if "out" in more else op
        return op(self.query, self.key, self.value, actual_seq_lengths_kv=lengths, **self.options, **more)

    def expected(self, lengths: list[int]) -> torch.Tensor:
        """The same by PyTorch's own attention."""
        rows = []
        for n, length in enumerate(lengths):
            pages = self.table.cpu()[n].long()
            key, value = (
                t.cpu()[pages].flatten(0, 1)[:length].view(length, K, D).transpose(0, 1)
                for t in (self.key, self.value)
            )
            query = self.query.cpu()[n].view(1, N, D).transpose(0, 1)
            out = torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
            rows.append(out.transpose(0, 1).reshape(1, N * D))
        return torch.stack(rows)

    def workspace(self) -> torch.Tensor:
        return self.npu._npu_fused_infer_attention_score_get_max_workspace(
            self.query, self.key, self.value, actual_seq_lengths_kv=[16, 16], **self.options
        )


def test_the_reference_form_is_attention(any_order: Machine) -> None:
    attention = Attention()
    for lengths in ([1, 16], [5, 7]):
        torch.testing.assert_close(attention(lengths)[0].cpu(), attention.expected(lengths))
    out = torch.empty(B, N, D, device="npu")
    attention.npu._npu_paged_attention(
        query=attention.query.view(B, N, D),
        key_cache=attention.key.view(PAGES, PAGE, K, D),
        value_cache=attention.value.view(PAGES, PAGE, K, D),
        num_kv_heads=K,
        num_heads=N,
        scale_value=D**-0.5,
        block_table=attention.table,
        context_lens=torch.tensor([5, 7], dtype=torch.int32),
        out=out,
    )
    torch.testing.assert_close(out.view(B, 1, N * D).cpu(), attention.expected([5, 7]))
    assert any_order.finish().findings == ()


@pytest.mark.parametrize("layout", ["BSND", "BNSD", "BNSD_BSND", "TND"])
def test_layouts_of_the_reference_form(machine: Machine, layout: str) -> None:
    import torch_npu

    random = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 3, heads, D, generator=random) for heads in (N, K, K))
    causal = torch.nn.functional.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (query, key, value)), is_causal=True, enable_gqa=True
    ).transpose(1, 2)
    options: dict[str, Any] = {"num_heads": N, "num_key_value_heads": K, "scale": D**-0.5, "sparse_mode": 3}
    given = [query, key, value]
    if layout.startswith("BNSD"):
        given = [t.transpose(1, 2).contiguous() for t in given]
    if layout == "TND":
        given = [t.flatten(0, 1) for t in given]
        options |= {"actual_seq_lengths": [3, 6], "actual_seq_lengths_kv": [3, 6]}
    out, lse = torch_npu.npu_fused_infer_attention_score(
        *(t.npu() for t in given), input_layout=layout, softmax_lse_flag=True, **options
    )
    result = out.cpu().transpose(1, 2) if layout == "BNSD" else out.cpu().view(2, 3, N, D)
    torch.testing.assert_close(result, causal)
    assert lse.shape == ((6, N, 1) if layout == "TND" else (2, N, 3, 1))


def test_an_option_without_a_reference_form_is_refused(machine: Machine) -> None:
    attention = Attention()
    with pytest.raises(Exception, match=r"antiquant_mode=\.\.\."):
        attention([3, 4], antiquant_mode=1)


def captured_by_hand(attention: Attention, lengths: list[int], workspace: torch.Tensor) -> tuple[Any, ...]:
    out, lse = torch.empty(B, 1, N * D, device="npu"), torch.empty(0, device="npu")
    graph, event = torch.npu.NPUGraph(), torch.npu.ExternalEvent()
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        attention(lengths, workspace=workspace, out=[out, lse])
        handle = torch.npu.graph_task_group_end(stream)
    return graph, event, handle, out, lse


@pytest.mark.parametrize("replay_first", [True, False])
def test_an_update_brings_new_lengths(any_order: Machine, replay_first: bool) -> None:
    attention, side = Attention(), torch.npu.Stream()
    workspace = attention.workspace()
    graph, event, handle, out, lse = captured_by_hand(attention, [1, 1], workspace)
    for lengths in ([3, 4], [9, 10]):
        if replay_first:
            graph.replay()
        with torch.npu.stream(side):
            torch.npu.graph_task_update_begin(side, handle)
            attention(lengths, workspace=workspace, out=[out, lse])
            torch.npu.graph_task_update_end(side)
            event.record(side)
        if not replay_first:
            graph.replay()
        torch.npu.synchronize()
        torch.testing.assert_close(out.cpu(), attention.expected(lengths))
    assert any_order.finish().findings == ()


def test_a_missing_update_gives_the_old_lengths(any_order: Machine) -> None:
    attention, side = Attention(), torch.npu.Stream()
    graph, event, _, out, _ = captured_by_hand(attention, [3, 4], attention.workspace())
    graph.replay()
    event.record(side)
    torch.npu.synchronize()
    torch.testing.assert_close(out.cpu(), attention.expected([3, 4]))
    assert "task-count" in [finding.kind for finding in any_order.finish().findings]


def test_a_missing_opening_hangs(any_order: Machine) -> None:
    attention = Attention()
    graph, *_ = captured_by_hand(attention, [3, 4], attention.workspace())
    graph.replay()
    with pytest.raises(RuntimeError, match="never return"):
        torch.npu.synchronize()
    assert "hang" in [finding.kind for finding in any_order.findings]


def test_an_update_without_a_gate_is_found(any_order: Machine) -> None:
    attention, side, graph = Attention(), torch.npu.Stream(), torch.npu.NPUGraph()
    workspace = attention.workspace()
    out, lse = torch.empty(B, 1, N * D, device="npu"), torch.empty(0, device="npu")
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        attention([3, 4], workspace=workspace, out=[out, lse])
        handle = torch.npu.graph_task_group_end(stream)
    graph.replay()
    with torch.npu.stream(side):
        torch.npu.graph_task_update_begin(side, handle)
        attention([9, 9], workspace=workspace, out=[out, lse])
        torch.npu.graph_task_update_end(side)
    findings = any_order.finish().findings
    assert findings
    assert "107037" in str(findings[0]) or findings[0].code == 107037


def test_an_external_event_waited_for_twice_is_refused_on_the_host(machine: Machine) -> None:
    event = torch.npu.ExternalEvent()
    event.record(torch.npu.Stream())
    event.wait()
    with pytest.raises(RuntimeError, match="cannot be associated with multiple wait"):
        event.wait()


def test_auto_dispatch_capture_updates_every_op(any_order: Machine) -> None:
    attention, graph = Attention(), torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        first, _ = attention([1, 1])
        second, _ = attention([2, 2])
    for lengths in ([3, 4], [9, 10]):
        graph.replay()
        graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lengths}])
        torch.npu.synchronize()
        torch.testing.assert_close(first.cpu(), attention.expected(lengths))
        torch.testing.assert_close(second.cpu(), attention.expected(lengths))
    graph.replay()
    graph.update([{"actual_seq_lengths_kv": [5, 5]}, {"actual_seq_lengths_kv": [6, 6]}])
    torch.npu.synchronize()
    torch.testing.assert_close(second.cpu(), attention.expected([6, 6]))
    with pytest.raises(RuntimeError, match="2 operators that need to be updated"):
        graph.update([{}, {}, {}])
    assert any_order.finish().findings == ()


def test_a_users_op_and_handler_are_used(any_order: Machine) -> None:
    from slipstream.device import soft

    soft.register_op(
        "npu_test_scaled.out(Tensor query, int[] factors, *, Tensor(a!) out) -> Tensor(a!)", scaled_out
    )
    import torch_npu

    @torch.npu.register_npu_graph_handler(["npu_test_scaled.out"])
    class Handler(torch.npu.NpuGraphOpHandler):  # type: ignore[misc, name-defined]
        UPDATE_SPECS = {"npu_test_scaled.out": [("arg", 1, "factors")]}  # noqa: RUF012

    x, out, graph = torch.ones(2, device="npu"), torch.empty(2, device="npu"), torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        torch_npu.npu_test_scaled.out(x, [2], out=out)
    for factor in (3, 4):
        graph.replay()
        graph.update([{"factors": [factor]}])
        assert out.tolist() == [factor, factor]
    assert any_order.finish().findings == ()


def scaled_out(query: torch.Tensor, factors: list[int], *, out: torch.Tensor) -> torch.Tensor:
    return torch.mul(query, factors[0], out=out)
