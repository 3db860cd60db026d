"""Pinned memory: what the host does while a copy may be in flight is found, by torch and by numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.device.soft.machine import Machine

REWRITES: dict[str, Callable[[Any], Any]] = {
    "fill_": lambda p: p.fill_(2),
    "a view": lambda p: p[1:].zero_(),
    "an item": lambda p: p.__setitem__(0, 5.0),
    "numpy": lambda p: p.numpy().__setitem__(slice(1, 3), 7),
    "numpy item": lambda p: p.numpy().__setitem__(2, 7),
    "numpy in place": lambda p: np.add(p.numpy(), 1, out=p.numpy()),
    "numpy copyto": lambda p: np.copyto(p.numpy(), 3),
}


@pytest.mark.parametrize("name", REWRITES)
def test_a_rewrite_during_a_copy_is_found(any_order: Machine, name: str) -> None:
    pinned, x = torch.ones(4).pin_memory(), torch.zeros(4, device="npu")
    x.copy_(pinned, non_blocking=True)
    REWRITES[name](pinned)
    assert [finding.kind for finding in any_order.finish().findings] == ["host-buffer"]


@pytest.mark.parametrize("name", REWRITES)
def test_a_rewrite_after_an_event_is_clean(any_order: Machine, name: str) -> None:
    pinned, x = torch.ones(4, pin_memory=True), torch.zeros(4, device="npu")
    x.copy_(pinned, non_blocking=True)
    copied = torch.npu.Event()
    copied.record()
    copied.synchronize()
    REWRITES[name](pinned)
    assert any_order.finish().findings == ()


def test_other_elements_may_be_rewritten(any_order: Machine) -> None:
    pinned, x = torch.zeros(8, pin_memory=True), torch.zeros(4, device="npu")
    x.copy_(pinned[:4], non_blocking=True)
    pinned[4:] = 1
    pinned.numpy()[5] = 2
    assert any_order.finish().findings == ()


def test_a_blocking_copy_and_pageable_memory_leave_no_race(any_order: Machine) -> None:
    pinned, pageable, x = torch.ones(4).pin_memory(), torch.ones(4), torch.zeros(4, device="npu")
    x.copy_(pinned)
    pinned.fill_(2)
    x.copy_(pageable, non_blocking=True)
    pageable.fill_(3)
    assert x.tolist() == [1, 1, 1, 1]
    assert any_order.finish().findings == ()


def test_a_result_read_before_its_copy_is_done_is_found(any_order: Machine) -> None:
    host = torch.ones(4, device="npu").to("cpu", non_blocking=True)
    assert host.is_pinned()
    host.tolist()
    assert [finding.kind for finding in any_order.finish().findings] == ["race"]


def test_a_result_read_after_synchronize_is_right(any_order: Machine) -> None:
    host = torch.ones(4, device="npu").to("cpu", non_blocking=True)
    torch.npu.current_stream().synchronize()
    assert host.tolist() == [1, 1, 1, 1]
    assert host.numpy().sum() == 4
    assert (host + 1).tolist() == [2, 2, 2, 2]
    assert any_order.finish().findings == ()


def test_arrays_elsewhere_are_not_watched(machine: Machine) -> None:
    pinned, x = torch.ones(4).pin_memory(), torch.zeros(4, device="npu")
    array = pinned.numpy()
    doubled = array * 2
    x.copy_(pinned, non_blocking=True)
    doubled[0] = 5
    array.copy()[1] = 3
    assert machine.finish().findings == ()
