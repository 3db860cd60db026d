"""What a bug report needs to know of a machine."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import torch

from slipstream.config import DEVICES
from slipstream.device.registry import open_device
from slipstream.errors import DeviceError, ModelNotFoundError
from slipstream.model.catalog import CATALOG, resolve_model

_PACKAGES = ("slipstream", "torch", "numpy", "tokenizers", "safetensors")


def environment() -> dict[str, str]:
    """Return facts by name, in the order to show them."""
    facts = {"python": platform.python_version(), "system": platform.platform()}
    for package in _PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = "not installed"
    facts["processor"] = _processor()
    facts["cpu kernels"] = torch.backends.cpu.get_cpu_capability()
    facts["memory"] = _memory()
    for name in DEVICES:
        try:
            caps = open_device(name).caps
        except DeviceError:
            facts[f"device {name}"] = "not present"
            continue
        facts[f"device {name}"] = (
            f"dtypes {','.join(caps.dtypes)}; graphs {','.join(caps.graph_modes)}; "
            f"{caps.default_threads} threads"
        )
    facts["cuda"] = "present, not supported yet" if torch.cuda.is_available() else "not present"
    facts["models cached"] = ", ".join(_cached()) or "none"
    return facts


def _cached() -> list[str]:
    found = []
    for name in CATALOG:
        try:
            resolve_model(name)
        except ModelNotFoundError:
            continue
        found.append(name)
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> str:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return "unknown"
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return f"{sizes['MemTotal'] / 1e6:.1f} GB, {sizes['MemAvailable'] / 1e6:.1f} GB available"
