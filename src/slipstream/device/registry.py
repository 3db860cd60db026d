"""Devices by name. The only module above the backends that imports them, and only the one that is asked for."""

from __future__ import annotations

from slipstream.config import DEVICES
from slipstream.device.api import Device
from slipstream.errors import UnknownNameError


def open_device(name: str) -> Device:
    """Return the device called `name`.

    Raises:
        UnknownNameError: there is none by that name.
        DeviceError: it is not on this machine.
    """
    if name == "cpu":
        from slipstream.device.cpu import CpuDevice

        return CpuDevice()
    if name == "cuda":
        from slipstream.device.cuda import CudaDevice

        return CudaDevice()
    if name == "npu":
        from slipstream.device.npu import NpuDevice

        return NpuDevice()
    raise UnknownNameError("device", name, DEVICES)
