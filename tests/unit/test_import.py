"""What `import slipstream` costs and offers: no torch before it is needed, and the names that it says."""

import subprocess
import sys
from pathlib import Path

import pytest

import slipstream
from slipstream import config

SOURCE = Path(slipstream.__file__).parent

#: Used by tools that must start fast and run where torch is not installed.
PURE = [
    "check.command",
    "cli_graphs",
    "config",
    "doctor",
    "errors",
    "graph.buckets",
    "graph.descriptor",
    "graph.dispatch",
    "graph.explain",
    "graph.failures",
    "graph.modes",
    "graph.plan_report",
    "graph.planner",
    "plan",
    "timeline",
    "trace",
]

# Blocking torch, rather than looking for it afterwards, shows in the traceback who wanted it.
BLOCK_TORCH = "import sys; sys.modules['torch'] = None; sys.argv = ['slipstream', '--help']\n"


def run_without_torch(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK_TORCH + code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def exists(module: str) -> bool:
    path = SOURCE / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def test_import_needs_no_torch():
    run_without_torch("import slipstream; slipstream.EngineConfig()")


def test_help_needs_no_torch():
    assert "slipstream" in run_without_torch("from slipstream.cli import main; sys.exit(main())")


@pytest.mark.parametrize("module", [module for module in PURE if exists(module)])
def test_pure_modules_need_no_torch(module):
    run_without_torch(f"import slipstream.{module}")


def test_exported_names_are_sorted_and_exist():
    # Sorted as ruff sorts: constants, then classes, then the rest.
    assert slipstream.__all__ == [
        "LLM",
        "EngineConfig",
        "GraphConfig",
        "SamplingParams",
        "SpecConfig",
        "__version__",
    ]
    assert slipstream.EngineConfig is config.EngineConfig
    assert set(slipstream.__all__) <= set(dir(slipstream))
    assert slipstream.__all__[:-1] == list(slipstream._HOMES)


@pytest.mark.parametrize("name", slipstream.__all__)
def test_every_exported_name_can_be_had(name):
    assert getattr(slipstream, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'slipstream' has no attribute 'nothing'"):
        _ = slipstream.nothing
