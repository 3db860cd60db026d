"""torch.npu.make_graphed_callables: forward and backward of a function as two graphs inside one autograd node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, arg_tree_leaves, tree_flatten, tree_leaves, tree_unflatten

from slipstream.device.soft.face import streams
from slipstream.device.soft.face.graphs import NPUGraph, graph, graph_pool_handle


@dataclass
class _Graphed:
    """One callable: its two graphs, and their static tensors.

    Attributes:
        num_args: how many of `inputs` the caller passes; the others are a module's parameters.
        grad_inputs: for each input its gradient, or None.
    """

    forward: NPUGraph
    backward: NPUGraph
    inputs: tuple[torch.Tensor, ...]
    num_args: int
    outputs: tuple[torch.Tensor, ...] = ()
    spec: TreeSpec | None = None
    grad_outputs: tuple[torch.Tensor | None, ...] = ()
    grad_inputs: tuple[torch.Tensor | None, ...] = ()


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
) -> Any:
    """Return graphed versions of functions or modules.

    Args:
        callables: one, or a tuple of them in the order in which they will be called.
        sample_args: a tuple of tensors, or one such tuple a callable. They become the static inputs.
        num_warmup_iters: eager runs before the capture.
        allow_unused_input: whether an input may have no part in the result.
        pool: a memory pool to share.

    Raises:
        RuntimeError: autocast caches, a module has hooks or buffers with gradients, or an argument is no tensor.
    """
    if torch.is_autocast_enabled("npu") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`."
        )
    single = not isinstance(callables, tuple)
    functions = (callables,) if single else callables
    samples = (sample_args,) if single else sample_args
    graphed = []
    for function, args in zip(functions, samples, strict=True):
        flat = _checked(function, args)
        parameters = tuple(function.parameters()) if isinstance(function, torch.nn.Module) else ()
        graphed.append(_Graphed(NPUGraph(), NPUGraph(), flat + parameters, len(flat)))
    _warm_up(functions, samples, graphed, num_warmup_iters, allow_unused_input)
    shared = graph_pool_handle() if pool is None else pool
    for function, args, one in zip(functions, samples, graphed, strict=True):
        with graph(one.forward, pool=shared):
            results = function(*args)
        flat_results, one.spec = tree_flatten(results)
        one.outputs = tuple(flat_results)
    for one in reversed(graphed):  # the order in which a training step will come by
        _capture_backward(one, shared, allow_unused_input)
    made = [_callable(function, one) for function, one in zip(functions, graphed, strict=True)]
    return made[0] if single else tuple(made)


def _checked(function: Any, args: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(function, torch.nn.Module):
        if function._backward_hooks or function._forward_hooks or function._forward_pre_hooks:
            raise RuntimeError(
                "Modules must not have hooks registered at the time they are passed. However, registering hooks "
                "on modules after passing them through make_graphed_callables is allowed."
            )
        if any(buffer.requires_grad for buffer in function.buffers()):
            raise RuntimeError(
                "In any Module passed to make_graphed_callables, only parameters may be trainable. All buffers "
                "must have requires_grad=False."
            )
    flat = tuple(arg_tree_leaves(*args))
    if not all(isinstance(arg, torch.Tensor) for arg in flat):
        raise RuntimeError(
            "sample_args for each callable must contain only Tensors. Other types are not allowed."
        )
    return flat


def _warm_up(functions: Any, samples: Any, graphed: list[_Graphed], times: int, allow_unused: bool) -> None:
    streams.synchronize()
    with streams.stream(streams.Stream()):
        for function, args, one in zip(functions, samples, graphed, strict=True):
            for _ in range(times):
                outputs = tuple(o for o in tree_leaves(function(*args)) if o.requires_grad)
                if outputs:
                    torch.autograd.grad(
                        outputs=outputs,
                        inputs=tuple(i for i in one.inputs if i.requires_grad),
                        grad_outputs=tuple(torch.empty_like(o) for o in outputs),
                        only_inputs=True,
                        allow_unused=allow_unused,
                    )
    streams.synchronize()


def _capture_backward(one: _Graphed, pool: Any, allow_unused: bool) -> None:
    one.grad_outputs = tuple(torch.empty_like(o) if o.requires_grad else None for o in one.outputs)
    outputs = tuple(o for o in one.outputs if o.requires_grad)
    gradients: Any = None
    if outputs:
        with graph(one.backward, pool=pool):
            gradients = torch.autograd.grad(
                outputs=outputs,
                inputs=tuple(i for i in one.inputs if i.requires_grad),
                grad_outputs=tuple(o for o in one.grad_outputs if o is not None),
                only_inputs=True,
                allow_unused=allow_unused,
            )
    left = iter(gradients or ())
    one.grad_inputs = tuple(next(left) if i.requires_grad and outputs else None for i in one.inputs)


def _node(one: _Graphed) -> type[torch.autograd.Function]:
    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> Any:
            for static, given in zip(one.inputs[: one.num_args], inputs, strict=False):
                if static.data_ptr() != given.data_ptr():
                    static.copy_(given)
            one.forward.replay()
            return tuple(output.detach() for output in one.outputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            for static, given in zip(one.grad_outputs, gradients, strict=True):
                if static is not None and static.data_ptr() != given.data_ptr():
                    static.copy_(given)
            one.backward.replay()
            return tuple(None if gradient is None else gradient.detach() for gradient in one.grad_inputs)

    return Graphed


def _callable(function: Any, one: _Graphed) -> Any:
    node, parameters = _node(one), one.inputs[one.num_args :]

    def call(*args: Any) -> Any:
        results = node.apply(*arg_tree_leaves(*args), *parameters)
        assert one.spec is not None
        return tree_unflatten(results, one.spec)

    if isinstance(function, torch.nn.Module):
        function.forward = _in_the_same_mode(function, call, function.forward)
        return function
    return call


def _in_the_same_mode(module: torch.nn.Module, graphed: Callable[..., Any], eager: Callable[..., Any]) -> Any:
    captured_in = module.training

    def forward(*args: Any) -> Any:
        return graphed(*args) if module.training == captured_in else eager(*args)

    return forward
