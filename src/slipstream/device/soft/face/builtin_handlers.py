"""The handlers that torch_npu brings along, for the host-list ops that the model has."""

from __future__ import annotations

from typing import Any, ClassVar

from slipstream.device.soft.face.handlers import NpuGraphOpHandler, register_npu_graph_handler
from slipstream.device.soft.face.registry import OFFERED

_FUSED = "npu_fused_infer_attention_score"
_OUTPUT_OPTIONS = (
    "input_layout",
    "quant_scale2",
    "block_table",
    "num_heads",
    "num_key_value_heads",
    "softmax_lse_flag",
    "query_rope",
)


@register_npu_graph_handler([_FUSED, f"{_FUSED}.default", f"{_FUSED}.out"])
class FusedAttentionHandler(NpuGraphOpHandler):
    """Captures the plain form as the `.out` form, with a workspace and outputs that the graph keeps."""

    UPDATE_SPECS: ClassVar = {
        name: [("arg", 5, "actual_seq_lengths"), ("arg", 6, "actual_seq_lengths_kv")]
        for name in (_FUSED, f"{_FUSED}.default", f"{_FUSED}.out")
    }

    @classmethod
    def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the `.out` form."""
        out_form = OFFERED[_FUSED].out
        if func is out_form:
            return func, args, kwargs
        workspace = OFFERED[f"_{_FUSED}_get_max_workspace"](*args, **kwargs)
        options = {name: kwargs[name] for name in _OUTPUT_OPTIONS if name in kwargs}
        outputs = OFFERED[f"_{_FUSED}_infer_output"](args[0], args[2], **options)
        return out_form, args, {**kwargs, "workspace": workspace, "out": list(outputs)}

    @classmethod
    def postprocess_result(cls, result: Any, kwargs: Any) -> Any:
        """Return the outputs."""
        return kwargs["out"]


@register_npu_graph_handler(["_npu_paged_attention.default"])
class PagedAttentionHandler(NpuGraphOpHandler):
    """Lets an update change the context lengths."""

    UPDATE_SPECS: ClassVar = {"_npu_paged_attention.default": [("arg", 7, "context_lens")]}
