"""`StepBuffers`: fixed addresses, one upload, poison for what was not written."""

from __future__ import annotations

import pytest
import torch

from slipstream.errors import PlanAccessError
from slipstream.graph.buffers import POISON, BufferSpec, PlanBuffers, StepBuffers

SPECS = (
    BufferSpec("slots", (4,), uploaded=True),
    BufferSpec("ids", (8,)),
    BufferSpec("pages", (4, 3), uploaded=True),
    BufferSpec("hidden", (8, 2), floating=True),
    BufferSpec("nothing", (4, 0), uploaded=True),
)


def make(check: bool = False) -> StepBuffers:
    return StepBuffers(SPECS, torch.device("cpu"), check=check)


def addresses(buffers: StepBuffers) -> dict[str, int]:
    return {name: buffers.view(name, buffers.rows(name)).data_ptr() for name in buffers.names()}


def test_have_the_declared_shapes_and_types() -> None:
    buffers = make()
    assert buffers.names() == ["hidden", "ids", "nothing", "pages", "slots"]
    assert (buffers.rows("ids"), buffers.rows("pages")) == (8, 4)
    assert buffers.view("pages", 2).shape == (2, 3)
    assert buffers.view("pages", 2).dtype == torch.int64
    assert (buffers.view("hidden", 8).shape, buffers.view("hidden", 8).dtype) == ((8, 2), torch.float32)


def test_uploading_copies_every_mirror_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = make()
    buffers.host["slots"].copy_(torch.arange(4))
    buffers.host["pages"].copy_(torch.arange(12).view(4, 3))
    assert not buffers.view("slots", 4).any()
    copies = []
    copy = torch.Tensor.copy_

    def counted(self: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        copies.append(self)
        return copy(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    buffers.upload()
    assert len(copies) == 1
    assert buffers.view("slots", 4).tolist() == [0, 1, 2, 3]
    assert buffers.view("pages", 4).tolist() == torch.arange(12).view(4, 3).tolist()


def test_addresses_stay_over_uploads_and_writes() -> None:
    buffers = make(check=True)
    before = addresses(buffers)
    for _ in range(3):
        buffers.upload()
        PlanBuffers(buffers, "p", (), ("ids", "hidden")).write("ids", torch.arange(5))
    assert addresses(buffers) == before
    assert len(set(before.values()) - {0}) >= 4  # no two of them share memory


def test_a_view_is_the_first_rows_and_always_the_same_tensor() -> None:
    buffers = make()
    assert buffers.view("ids", 3) is buffers.view("ids", 3)
    assert buffers.view("ids", 3).data_ptr() == buffers.view("ids", 8).data_ptr()
    assert buffers.view("ids", 3).shape == (3,)


def test_checking_mode_poisons_what_plans_have_to_write() -> None:
    buffers = make(check=True)
    buffers.host["slots"].fill_(7)
    buffers.upload()
    assert (buffers.view("ids", 8) == POISON).all()
    assert buffers.view("hidden", 8).isnan().all()
    assert buffers.view("slots", 4).tolist() == [7] * 4
    PlanBuffers(buffers, "p", (), ("ids",)).write("ids", torch.arange(2))
    assert buffers.view("ids", 8).tolist() == [0, 1] + [POISON] * 6
    buffers.upload()
    assert (buffers.view("ids", 8) == POISON).all()


def test_without_checking_nothing_is_overwritten() -> None:
    buffers = make()
    PlanBuffers(buffers, "p", (), ("ids",)).write("ids", torch.arange(8))
    buffers.upload()
    assert buffers.view("ids", 8).tolist() == list(range(8))


def test_torch_refuses_to_index_with_poison() -> None:
    table = torch.randn(10, 2)
    with pytest.raises((IndexError, RuntimeError)):
        table.index_select(0, torch.tensor([POISON]))
    with pytest.raises((IndexError, RuntimeError)):
        table[torch.tensor([POISON])]


class TestPlanBuffers:
    def test_read_and_write_what_they_declare(self) -> None:
        plan = PlanBuffers(make(), "p", ("slots",), ("ids",))
        plan.write("ids", torch.arange(3))
        assert plan.read("slots", 2).tolist() == [0, 0]

    def test_do_not_read_what_they_only_write(self) -> None:
        with pytest.raises(PlanAccessError, match=r"plan 'p' may not read 'ids'; it declares: slots"):
            PlanBuffers(make(), "p", ("slots",), ("ids",)).read("ids", 1)

    def test_do_not_write_what_they_only_read(self) -> None:
        with pytest.raises(PlanAccessError, match=r"may not write 'slots'.*declares: ids"):
            PlanBuffers(make(), "p", ("slots",), ("ids",)).write("slots", torch.arange(3))

    def test_name_the_nearest_buffer(self) -> None:
        with pytest.raises(PlanAccessError, match=r"nearest buffer: 'hidden'.*declares: nothing"):
            PlanBuffers(make(), "p", (), ()).read("hiden", 1)
