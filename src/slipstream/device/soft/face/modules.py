"""torch.npu and torch_npu as modules. A name that the model lacks is an error that says what is nearest."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from slipstream.device.soft.binding.tensor import weak_reference
from slipstream.device.soft.face import (
    devices,
    figures,
    graphed,
    graphs,
    handlers,
    options,
    registry,
    seeds,
    streams,
    tasks,
)
from slipstream.errors import SlipstreamError, nearest_name

#: The torch_npu whose names, signatures and behaviour are offered.
VERSION = "2.14.0"

_NPU = {
    devices: (
        "device device_of is_available device_count current_device set_device get_device_name "
        "get_device_properties get_device_capability can_device_access_peer mem_get_info is_initialized init "
        "is_bf16_supported get_amp_supported_dtype _is_in_bad_fork _lazy_init"
    ),
    figures: (
        "empty_cache host_empty_cache memory_allocated max_memory_allocated memory_reserved max_memory_reserved "
        "reset_peak_memory_stats reset_max_memory_allocated reset_accumulated_memory_stats memory_stats "
        "memory_snapshot"
    ),
    graphed: "make_graphed_callables",
    graphs: "NPUGraph graph graph_pool_handle is_current_stream_capturing",
    handlers: "NpuGraphOpHandler register_npu_graph_handler",
    options: (
        "set_compile_mode is_jit_compile_false set_option set_mm_bmm_format_nd get_mm_bmm_format_nd "
        "set_op_timeout_ms set_sync_debug_mode ipc_collect"
    ),
    seeds: (
        "get_rng_state set_rng_state get_rng_state_all set_rng_state_all manual_seed manual_seed_all seed "
        "seed_all initial_seed"
    ),
    streams: (
        "Stream Event ExternalEvent SyncLaunchStream StreamContext stream set_stream current_stream "
        "default_stream synchronize"
    ),
    tasks: "graph_task_group_begin graph_task_group_end graph_task_update_begin graph_task_update_end",
}

#: Submodules of torch_npu.npu, and where their names come from.
_SUBMODULES = {
    "streams": (streams,),
    "graphs": (graphs, graphed, tasks),
    "memory": (figures,),
    "random": (seeds,),
    "utils": (devices, streams),
    "npu_config": (options,),
}


class MissingNameError(AttributeError, SlipstreamError):
    """A name of torch_npu that the software NPU lacks."""

    exit_code = 2


class FaceModule(types.ModuleType):
    """A module that answers for an unknown name with what is nearest to it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        nearest = nearest_name(name, [known for known in vars(self) if not known.startswith("__")])
        hint = f" The nearest that it has is {self.__name__}.{nearest}." if nearest else ""
        if self.__name__ == "torch_npu":
            way = f'slipstream.device.soft.register_op("{name}(Tensor self, ...) -> Tensor", function)'
        else:
            way = f'slipstream.device.soft.register("{name}", function)'
        raise MissingNameError(
            f"{self.__name__}.{name} is not in the software NPU.{hint} To give it one: {way}.",
            name=name,
            obj=self,
        )


class MissingModules(importlib.abc.MetaPathFinder):
    """Says so when a part of torch_npu is imported that the model lacks; runs those whose import does something.

    Args:
        effects: by the module's name, what its import does.
    """

    def __init__(self, effects: Mapping[str, Callable[[], None]]) -> None:
        self._effects = effects

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Leave all other modules to the finders behind this one."""
        if fullname in self._effects:
            return importlib.machinery.ModuleSpec(fullname, _Effect(self._effects[fullname]))
        if fullname.startswith(("torch_npu.", "torch.npu.")):
            known = sorted(name for name in sys.modules if name.startswith("torch_npu"))
            raise ModuleNotFoundError(
                f"{fullname} is not in the software NPU, which has {', '.join(known)}", name=fullname
            )
        return None


class _Effect(importlib.abc.Loader):
    """An empty module whose import does something."""

    def __init__(self, effect: Callable[[], None]) -> None:
        self._effect = effect

    def exec_module(self, module: types.ModuleType) -> None:
        self._effect()


def build() -> tuple[FaceModule, FaceModule, dict[str, types.ModuleType]]:
    """Return torch.npu, torch_npu, and all modules by the names under which they can be imported."""
    npu = FaceModule("torch.npu", "The software NPU as torch.npu.")
    for source, names in _NPU.items():
        for name in names.split():
            setattr(npu, name, getattr(source, name))
    vars(npu).update(_initialized=True, default_generators=(), __path__=[])
    vars(npu).update(config=options.Config(), matmul=options.Hf32(), conv=options.Hf32())
    top = FaceModule("torch_npu", "The software NPU as torch_npu.")
    native = FaceModule("torch_npu._C")
    vars(native)["_weak_ref_tensor"] = weak_reference
    vars(top).update(registry.OFFERED, npu=npu, _C=native, __version__=VERSION, __path__=[])
    modules: dict[str, types.ModuleType] = {
        "torch.npu": npu,
        "torch_npu": top,
        "torch_npu.npu": npu,
        "torch_npu._C": native,
        "torch_npu.contrib": FaceModule("torch_npu.contrib"),
    }
    vars(modules["torch_npu.contrib"])["__path__"] = []
    for name, sources in _SUBMODULES.items():
        part = FaceModule(f"torch_npu.npu.{name}")
        for source in sources:
            for known in _NPU[source].split():
                setattr(part, known, getattr(source, known))
        vars(npu).setdefault(name, part)
        modules[f"torch_npu.npu.{name}"] = part
    return npu, top, modules


def offered() -> dict[str, Any]:
    """Return everything that torch.npu offers, by name."""
    return {name: getattr(source, name) for source, names in _NPU.items() for name in names.split()}
