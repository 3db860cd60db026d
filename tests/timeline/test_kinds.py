"""Names that say what an operation is, users' rules, and roles of streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.errors import SlipstreamError, UnknownNameError, UsageError
from slipstream.timeline.kinds import RULES, load_rules
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.table import Kind, Role, Source
from tests.timeline.writers import Task, kineto_events, write_kineto


def kind_of(name: str) -> Kind | None:
    return next((rule.kind for rule in RULES if rule.pattern.search(name)), None)


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
        "void moe_cuda::ep::internode_ll::combine<true, 3, 7168>(void*)",
        "moe_cuda::ep::intranode::cached_notify_combine(void**, int*)",
        "void nvshmemi_transfer_rma<(threadgroup_t)2>(void*)",
        "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)",
        "void vllm::cross_device_reduce_2stage<half, 4>(vllm::RankData*, vllm::RankSignals)",
        "void aiter::cross_device_reduce_1stage<__hip_bfloat16, 8>(aiter::RankData*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<T>(P)",
        "one_shot_all_reduce_kernel<c10::BFloat16, 8>",
        "multimem_all_reduce_kernel<c10::BFloat16>",
        "hcom_allReduce__586_0_1",
        "hcom_batchSendRecv__128_3_1",
        "allReduceAicpuKernel",
        "aiv_all_to_all_v_bfloat16_t",
        "aiv_all_gather_bfloat16_t",
        "hccl_aiv_sync",
        "MoeDistributeDispatchV2",
        "aclnnMoeDistributeCombine_MoeDistributeCombine_MoeDistributeCombine",
        "mscclpp::allreduce7",
        "triton_all_gather_kernel",
    ],
)
def test_communication(name: str) -> None:
    assert kind_of(name) is Kind.COMM


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64_nn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(R)",
        "void gather_kernel<float>(float*)",
        "aclnnMatmulAllReduce_MatmulAllReduce",
        "cutlass_gemm_all_gather_kernel",
        "_fused_moe_kernel",
        "aclnnInplaceCopy_TensorMove_TensorMove",
        "step::epilogue",
        "GroupedMatmulAlltoAllv",
        "void dispatch_tokens<float>()",
    ],
)
def test_no_communication(name: str) -> None:
    assert kind_of(name) is None


def test_rules_of_a_user_decide(tmp_path: Path) -> None:
    tasks = [
        Task("fabric_sum<4>", 0, 10),
        Task("ncclKernel_AllReduce", 10, 20),
        Task("gemm", 20, 30, stream=9),
    ]
    trace = write_kineto(tmp_path / "t.json", kineto_events(tasks))
    toml = tmp_path / "rules.toml"
    toml.write_text(
        '[[rule]]\nname = "^fabric_"\nkind = "communication"\n[[rule]]\nname = "nccl"\nkind = "kernel"\n'
        '[[stream]]\nname = "stream 9"\nrole = "copy"\n'
    )
    line = open_timeline(trace, rules=load_rules(toml))
    assert line.kind.tolist() == [Kind.COMM, Kind.KERNEL, Kind.KERNEL]
    assert line.kind_source[0] == Source.RULE
    assert [(stream.role, stream.role_source) for stream in line.streams if stream.key == 9] == [
        (Role.COPY, Source.GIVEN)
    ]
    as_json = tmp_path / "rules.json"
    as_json.write_text('{"rule": [{"name": "^fabric_", "kind": "communication"}]}')
    assert open_timeline(trace, rules=load_rules(as_json)).kind.tolist() == [
        Kind.COMM,
        Kind.COMM,
        Kind.KERNEL,
    ]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ('[[rule]]\nname = "a"\nkind = "comunication"', UnknownNameError, "communication"),
        ('[[rule]]\nname = "(a"\nkind = "copy"', UsageError, "regular expression"),
        ('[[rule]]\nname = "a"', UsageError, "kind"),
        ('[[stream]]\nname = "a"\nrole = "x"', UnknownNameError, "role"),
        ("[[rules]]", UsageError, "rule"),
        ("not toml", UsageError, "TOML"),
    ],
)
def test_a_mistake_in_the_rules_is_named(
    tmp_path: Path, text: str, error: type[SlipstreamError], said: str
) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(error, match=said):
        load_rules(path)
    with pytest.raises(UsageError, match="cannot read"):
        load_rules(tmp_path / "nothing.toml")


def test_a_stream_for_communication_makes_its_kernels_communication(tmp_path: Path) -> None:
    tasks = [
        *(Task("ncclDevKernel_AllReduce", 100 * n, 100 * n + 90, stream=20) for n in range(5)),
        Task("unknown_layout", 500, 505, stream=20),
        Task("gemm", 0, 500, stream=7),
        Task("Memcpy DtoH", 600, 700, stream=8, kind="copy"),
    ]
    line = open_timeline(write_kineto(tmp_path / "t.json", kineto_events(tasks)))
    roles = {stream.key: (stream.role, stream.role_source) for stream in line.streams}
    assert roles == {
        7: (Role.COMPUTE, Source.INFERRED),
        8: (Role.COPY, Source.INFERRED),
        20: (Role.COMM, Source.INFERRED),
    }
    (row,) = [row for row in range(len(line)) if line.name_of(row) == "unknown_layout"]
    assert (line.kind[row], line.kind_source[row]) == (Kind.COMM, Source.INFERRED)
    assert [note.count for note in line.notes if note.what == "inferred"] == [1]
