"""Our torch.npu against the real torch_npu: its Python files are read out of the wheel, not imported.

    pip download torch_npu==2.14.0 --no-deps -d ~/.cache/slipstream/wheels --python-version 3.11 \
        --platform manylinux_2_28_x86_64 --only-binary=:all:

$SLIPSTREAM_TORCH_NPU_WHEEL names another wheel.
"""

from __future__ import annotations

import ast
import inspect
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.device.soft.face import modules, registry
from slipstream.model.catalog import cache_folder

FILES = [
    "__init__",
    "utils",
    "streams",
    "graphs",
    "memory",
    "random",
    "autocast_utils",
    "npu_config",
    "_npugraph_handlers/npugraph_handler",
]

#: (name, default) of each parameter, without `self`, *args and **kwargs (they take what C++ passes on).
Signature = list[tuple[str, str]]


def wheel() -> Path:
    given = os.environ.get("SLIPSTREAM_TORCH_NPU_WHEEL")
    if given:
        return Path(given)
    found = sorted((cache_folder().parent / "wheels").glob(f"torch_npu-{modules.VERSION}*.whl"))
    if not found:
        pytest.skip(f"needs the wheel of torch_npu {modules.VERSION} in {cache_folder().parent / 'wheels'}")
    return found[0]


@pytest.fixture(scope="module")
def real() -> dict[str, ast.AST]:
    """Every function and class at the top of the real torch_npu.npu, by name."""
    found: dict[str, ast.AST] = {}
    with zipfile.ZipFile(wheel()) as archive:
        for name in FILES:
            tree = ast.parse(archive.read(f"torch_npu/npu/{name}.py"))
            for node in tree.body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    found.setdefault(node.name, node)
    return found


@pytest.fixture(scope="module")
def texts() -> str:
    """All Python text of the real torch_npu."""
    with zipfile.ZipFile(wheel()) as archive:
        names = [n for n in archive.namelist() if n.endswith(".py") and n.startswith("torch_npu/")]
        return "\n".join(archive.read(name).decode("utf-8", "replace") for name in names)


def of_ast(function: ast.FunctionDef) -> Signature:
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    defaults = [""] * (len(names) - len(arguments.defaults)) + [ast.unparse(d) for d in arguments.defaults]
    found = list(zip(names, defaults, strict=True))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append((argument.arg, "" if default is None else ast.unparse(default)))
    return [pair for pair in found if pair[0] not in ("self", "cls")]


def of_object(function: Any) -> Signature:
    found = []
    for p in inspect.signature(function).parameters.values():
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in ("self", "cls"):
            found.append((p.name, "" if p.default is p.empty else repr(p.default)))
    return found


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            yield item


def own_methods(cls: type) -> dict[str, Any]:
    """Return a class's public methods and constructors, those of our own bases too."""
    found: dict[str, Any] = {}
    for base in reversed([b for b in cls.__mro__ if b.__module__.startswith("slipstream")]):
        for name, value in vars(base).items():
            if isinstance(value, (classmethod, staticmethod)):
                value = value.__func__
            if inspect.isfunction(value) and (not name.startswith("_") or name in ("__init__", "__new__")):
                found[name] = value
    return found


def test_every_function_that_we_offer_is_there_with_its_signature(real: dict[str, ast.AST]) -> None:
    wrong = {}
    for name, ours in modules.offered().items():
        theirs = real.get(name)
        if theirs is None:
            wrong[name] = "not in torch_npu"
        elif isinstance(theirs, ast.FunctionDef) and of_ast(theirs) != of_object(ours):
            wrong[name] = f"{of_ast(theirs)} there, {of_object(ours)} here"
        elif isinstance(theirs, ast.ClassDef) != inspect.isclass(ours):
            wrong[name] = "a class on one side only"
    assert wrong == {}


def test_every_method_that_we_offer_is_there_with_its_signature(real: dict[str, ast.AST]) -> None:
    wrong = {}
    for name, ours in modules.offered().items():
        theirs = real.get(name)
        if not (inspect.isclass(ours) and isinstance(theirs, ast.ClassDef)):
            continue
        known = {method.name: method for method in methods(theirs)}
        for method, function in own_methods(ours).items():
            if method in ("__init__", "__new__"):
                constructor = known.get(method)
                if constructor is not None and of_ast(constructor) != of_object(function):
                    wrong[f"{name}.{method}"] = f"{of_ast(constructor)} there, {of_object(function)} here"
            elif method not in known:
                wrong[f"{name}.{method}"] = "not in torch_npu"
            elif of_ast(known[method]) != of_object(function):
                wrong[f"{name}.{method}"] = f"{of_ast(known[method])} there, {of_object(function)} here"
    assert wrong == {}


def test_the_graph_class_and_the_streams_lack_only_what_is_listed(real: dict[str, ast.AST]) -> None:
    lacking = set()
    for name in (
        "NPUGraph",
        "graph",
        "Stream",
        "Event",
        "ExternalEvent",
        "StreamContext",
        "NpuGraphOpHandler",
    ):
        theirs, ours = real[name], modules.offered()[name]
        assert isinstance(theirs, ast.ClassDef)
        names = {m.name for m in methods(theirs) if not m.name.startswith("_")}
        lacking |= {f"{name}.{m}" for m in names - set(own_methods(ours))}
    assert lacking == {"NPUGraph.super_kernel_optimize", "Event.from_ipc_handle", "Event.ipc_handle"}


def test_the_ops_that_we_offer_are_named_there(real: dict[str, ast.AST], texts: str) -> None:
    from slipstream.device.soft.face import attention

    attention.register()
    offered = [name for name in registry.OFFERED if not name.startswith("npu_test_")]
    assert "npu_fused_infer_attention_score" in offered
    assert [name for name in offered if name not in texts] == []
