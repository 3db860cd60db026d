"""Programs on "npu" give what plain CPU tensors give, bit for bit, in every order."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch

from slipstream.device.soft.machine import Machine


def arithmetic(device: str) -> list[torch.Tensor]:
    x = torch.arange(12.0, device=device).view(3, 4) / 7
    y = torch.full((4,), 0.3, device=device)
    z = x @ x.t() + y[:3]
    return [
        x * y - 2,
        z.softmax(-1),
        z.sum(0),
        x.half().float(),
        (x > 0.5).int(),
        z.max(1).indices,
        z.sort().values,
    ]


def in_place(device: str) -> list[torch.Tensor]:
    x = torch.zeros(4, 6, device=device)
    x[1:3] += 1
    x[:, ::2].mul_(3).add_(x[:, 1::2])
    x.t()[2].fill_(7)
    x.view(-1)[5:9] = torch.arange(4.0, device=device)
    out = torch.empty(4, 4, device=device)
    torch.mm(x, x.t(), out=out)
    grown = torch.empty(0, device=device)
    torch.add(out, 1, out=grown)
    return [x, out, grown, torch.cat([x, x], 1), torch.stack(list(x.unbind(1)))]


def indexing(device: str) -> list[torch.Tensor]:
    x = torch.arange(20.0, device=device).view(4, 5)
    rows = torch.tensor([3, 0, 3], device=device)
    y = x[rows]
    x[rows[:2], 1] = -1.0
    x.index_add_(0, rows, torch.ones(3, 5, device=device))
    x.scatter_(1, torch.tensor([[4], [0]], device=device), 9.0)
    mask = x > 8
    picked = x[mask]
    x[mask] = 0.5
    return [x, y, picked, mask.nonzero(), torch.where(mask, x, -x), x.gather(1, rows.view(1, 3))]


def random_numbers(device: str) -> list[torch.Tensor]:
    torch.manual_seed(5)
    generator = torch.Generator(device=device)
    generator.manual_seed(9)
    a = torch.rand(8, device=device)
    b = torch.randn(8, device=device, generator=generator)
    c = torch.multinomial(torch.softmax(b, 0), 4)
    d = torch.nn.functional.dropout(a, 0.5)
    e = torch.empty(6, device=device).exponential_(generator=generator)
    return [
        a,
        b,
        c,
        d,
        e,
        torch.randperm(7, device=device),
        torch.bernoulli(a),
        torch.randint(0, 9, (4,), device=device),
    ]


def training(device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
    )
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.linspace(-1, 1, 24).view(4, 6).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return [loss.detach(), *(p.detach() for p in model.parameters())]


def inference(device: str) -> list[torch.Tensor]:
    with torch.inference_mode():
        x = torch.ones(2, 3, device=device)
        x.add_(1)
        y = torch.nn.functional.linear(x, torch.full((4, 3), 0.5, device=device)).reshape(4, 2)
        x.mul_(2)
    return [x, y.contiguous(), y.to(torch.float64)]


def copies(device: str) -> list[torch.Tensor]:
    host = torch.arange(6.0)
    x = host.to(device)
    back = torch.empty(6)
    back.copy_(x)
    x.copy_(back + 1)
    y = copy.deepcopy(x).add_(1)
    z = pickle.loads(pickle.dumps(y))
    like = torch.zeros_like(host, device=device) + torch.ones_like(x, device="cpu").to(device)
    return [x, back, y, z, like, x.to(torch.int32), x.new_full((2,), 3.0), x.clone().resize_(2, 5)[:1]]


PROGRAMS = [arithmetic, in_place, indexing, random_numbers, training, inference, copies]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_values_equal_those_of_the_cpu(
    any_order: Machine, program: Callable[[str], list[torch.Tensor]]
) -> None:
    expected = program("cpu")
    found = program("npu")
    assert any(t.device.type == "npu" for t in found)
    for index, (cpu, npu) in enumerate(zip(expected, found, strict=True)):
        assert npu.dtype == cpu.dtype
        assert torch.equal(npu.cpu(), cpu), f"result {index} of {program.__name__}"
    assert any_order.finish().findings == ()


def test_streams_ordered_by_events_give_the_values_of_one_stream(any_order: Machine) -> None:
    main, side = torch.npu.current_stream(), torch.npu.Stream()
    x = torch.zeros(64, device="npu")
    for step in range(5):
        side.wait_stream(main)
        with torch.npu.stream(side):
            y = x * 2 + step
        main.wait_stream(side)
        x = x + y
        y.record_stream(main)
    assert x[0].item() == 58.0
    assert any_order.finish().findings == ()


def test_a_value_is_computed_when_its_command_runs(machine: Machine) -> None:
    gate = torch.npu.ExternalEvent()
    x = torch.ones(2, device="npu")
    gate.wait()
    x.add_(1)
    assert x.raw.tolist() == [1, 1]
    side = torch.npu.Stream()
    gate.record(side)
    assert x.raw.tolist() == [2, 2]


def test_slipstreams_own_ops_run_by_their_schemas(any_order: Machine) -> None:
    from slipstream.ops.registry import OPS

    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(1))
    assert "argmax" in OPS
    found = torch.ops.slipstream.argmax(logits.npu())
    assert found.device.type == "npu"
    assert torch.equal(found.cpu(), torch.ops.slipstream.argmax(logits))


def test_an_op_whose_shape_needs_values_makes_the_host_wait(machine: Machine) -> None:
    from slipstream.ops.registry import OPS

    assert "kv_index" in OPS
    pages, positions = torch.arange(32).view(1, 32), torch.tensor([5])
    expected = torch.ops.slipstream.kv_index(pages, positions, 4, 1)
    found = torch.ops.slipstream.kv_index(pages.npu(), positions.npu(), 4, 1)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))
    graph, on_device = torch.npu.NPUGraph(), (pages.npu(), positions.npu())
    with torch.npu.stream(torch.npu.Stream()):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="107030"):
            torch.ops.slipstream.kv_index(*on_device, 4, 1)


def test_metadata_and_refusals(machine: Machine) -> None:
    x = torch.ones(2, 3, device="npu:0")
    assert (x.device.type, x.device.index, x.is_npu, x.is_cpu) == ("npu", 0, True, False)
    assert x[1].storage_offset() == 3
    assert x[1].data_ptr() == x.data_ptr() + 12
    assert "npu:0" in repr(x)
    with pytest.raises(TypeError, match="can't convert npu:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="broadcast"):
        x.add_(torch.ones(4, device="npu"))
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    assert torch.accelerator.current_stream() == torch.npu.current_stream()


def test_an_error_on_the_device_names_the_line_that_issued_it(machine: Machine) -> None:
    x, gate = torch.ones(3, device="npu"), torch.npu.ExternalEvent()
    rows = torch.tensor([7], device="npu")
    gate.wait()
    x[rows] = 1.0  # runs later, and there is no row 7
    with pytest.raises(IndexError) as raised:
        gate.record(torch.npu.Stream())
    assert "test_values.py" in "".join(raised.value.__notes__)


def test_autocast_lowers_products(machine: Machine) -> None:
    x, layer = torch.ones(2, 3, device="npu"), torch.nn.Linear(3, 2).npu()
    with torch.autocast("npu", dtype=torch.bfloat16):
        y = layer(x)
        assert (x + 1).dtype == torch.float32
        assert torch.zeros(2, device="npu").tolist() == [0, 0]
    expected = torch.nn.functional.linear(
        x.cpu().bfloat16(), layer.weight.cpu().bfloat16(), layer.bias.cpu().bfloat16()
    )
    assert torch.equal(y.cpu(), expected)


def test_compile_leaves_a_function_as_it_is(machine: Machine) -> None:
    compiled = torch.compile(lambda x: x * 2 + 1, fullgraph=True)
    assert compiled(torch.ones(2, device="npu")).tolist() == [3, 3]
