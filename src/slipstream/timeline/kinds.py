"""What an operation is, by its name: a table of rules that users extend; and by its stream, where no name says it.

A user's file, TOML or JSON, is looked at before the rules below:

    [[rule]]
    name = "my_fast_all_reduce|fabric_"     # a regular expression, looked for anywhere in the name
    kind = "communication"                  # or kernel, copy, set, record, wait

    [[stream]]
    name = "stream 20"                      # as it is shown
    role = "communication"                  # or compute, copy
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from slipstream.errors import UnknownNameError, UsageError
from slipstream.timeline.part import Part
from slipstream.timeline.table import Bool, Kind, Role, Source, Stream

#: What a user may call a kind.
KIND_NAMES: Final = {
    "kernel": Kind.KERNEL,
    "copy": Kind.COPY,
    "set": Kind.SET,
    "communication": Kind.COMM,
    "record": Kind.RECORD,
    "wait": Kind.WAIT,
}
ROLE_NAMES: Final = {
    "compute": Role.COMPUTE,
    "communication": Role.COMM,
    "copy": Role.COPY,
    "other": Role.OTHER,
}

#: A stream is one for communication, or for copies, if this much of its busy time is.
_MOST: Final = 0.8


@dataclass(frozen=True, slots=True)
class Rule:
    """A name that says what an operation is.

    Attributes:
        pattern: looked for anywhere in the name.
        kind: what the operation is.
        what: whose such operations are, as a person calls it.
    """

    pattern: re.Pattern[str]
    kind: Kind
    what: str


def _rule(pattern: str, kind: Kind, what: str) -> Rule:
    return Rule(re.compile(pattern), kind, what)


#: Begins a pattern that no matrix product fused with a collective matches: that is work in the first place.
_NO_PRODUCT: Final = r"(?i)^(?!.*(?:gemm|matmul|mm_))"

#: In this order; the first that matches decides.
RULES: Final = (
    _rule(r"^_*nccl\w*[Kk]ernel|ncclDevKernel|ncclKernel|rccl\w*[Kk]ernel", Kind.COMM, "NCCL or RCCL"),
    _rule(r"^hcom_|^[Hh]ccl|(?i:(?:reduce|gather|scatter|alltoall\w*|broadcast))AicpuKernel", Kind.COMM, "HCCL"),
    _rule(r"^aiv_(?:all|reduce|broad|batch|send|recv)\w*|hccl_aiv_sync", Kind.COMM, "HCCL on vector cores"),
    _rule(r"MoeDistribute(?:Dispatch|Combine)|moe_distribute_(?:dispatch|combine)", Kind.COMM, "Ascend MoE"),
    _rule(r"::ep::|deep_ep::|deepep", Kind.COMM, "DeepEP"),
    _rule(r"(?i)nvshmem", Kind.COMM, "NVSHMEM"),
    _rule(r"(?i)mscclpp|userbuffers_fp16_sum|pplx::|uccl_", Kind.COMM, "another library"),
    _rule(r"cross_device_reduce|(?i:custom_?all_?reduce)", Kind.COMM, "custom all-reduce"),
    _rule(r"(?i)(?:one|two)_?shot_?all_?(?:reduce|gather)|multimem_(?:all|one)", Kind.COMM, "symmetric memory"),
    _rule(rf"{_NO_PRODUCT}.*allreduce_?(?:fusion|prototype|kernel)", Kind.COMM, "fused all-reduce"),
    _rule(
        rf"{_NO_PRODUCT}.*"
        r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)(?:v|_v|d|single|base)?(?:_?kernel|_\w*kernel|\b|_)",
        Kind.COMM,
        "named like a collective",
    ),
    _rule(r"^__amd_rocclr_copyBuffer|^(?:Memcpy|MEMCPY)", Kind.COPY, "copy"),
    _rule(r"^__amd_rocclr_fillBuffer|^(?:Memset|MEMSET)", Kind.SET, "set"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules in force.

    Attributes:
        own: a user's rules; they also decide over what the trace itself says.
        roles: of streams, by their names.
    """

    own: tuple[Rule, ...] = ()
    roles: tuple[tuple[str, Role], ...] = ()


def load_rules(path: str | Path) -> Rules:
    """Read a user's rules.

    Raises:
        UsageError: the file cannot be read or is not as above.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read the rules {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"the rules {path} are neither TOML nor JSON (by their suffix): {error}") from error
    if not isinstance(table, dict) or set(table) - {"rule", "stream"}:
        raise UsageError(f"{path} may hold [[rule]] (name, kind) and [[stream]] (name, role), nothing else.")
    own = []
    for entry in _entries(path, table, "rule", "kind"):
        try:
            pattern = re.compile(entry["name"])
        except re.error as error:
            raise UsageError(f"{path}: {entry['name']!r} is no regular expression: {error}") from error
        if entry["kind"] not in KIND_NAMES:
            raise UnknownNameError("kind", entry["kind"], KIND_NAMES)
        own.append(Rule(pattern, KIND_NAMES[entry["kind"]], str(path)))
    roles = []
    for entry in _entries(path, table, "stream", "role"):
        if entry["role"] not in ROLE_NAMES:
            raise UnknownNameError("role", entry["role"], ROLE_NAMES)
        roles.append((entry["name"], ROLE_NAMES[entry["role"]]))
    return Rules(tuple(own), tuple(roles))


def _entries(path: Path, table: dict[str, Any], key: str, value: str) -> list[dict[str, str]]:
    entries = table.get(key, [])
    for entry in entries if isinstance(entries, list) else [None]:
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(name), str) for name in ("name", value)
        ):
            raise UsageError(f'{path}: every [[{key}]] needs name = "..." and {value} = "...".')
    return entries  # type: ignore[no-any-return]


def apply_rules(part: Part, rules: Rules) -> None:
    """Say of every row of a device what it is, and of every stream what it is for."""
    if not len(part):
        return
    kind, source = part.column("kind"), part.column("kind_source")
    device = np.array([stream.device is not None for stream in part.streams], np.bool_)[
        part.columns["stream"]
    ]
    names = part.columns["name"]
    used = np.zeros(len(part.names), np.bool_)
    used[names[device]] = True
    _by_name(part, RULES, used, device & (kind == Kind.KERNEL), Source.RULE)
    _by_name(part, rules.own, used, device & (kind != Kind.SUBTASK), Source.RULE)
    _by_stream(part, dict(rules.roles), device)
    part.columns["kind"], part.columns["kind_source"] = kind, source


def _by_name(part: Part, rules: tuple[Rule, ...], used: Bool, rows: Bool, source: Source) -> None:
    """Set the kinds of `rows` whose names a rule knows. Each name is looked at once."""
    if not rules:
        return
    nothing = 255
    by_name = np.full(len(part.names), nothing, np.uint8)
    for number in np.flatnonzero(used):
        text = part.names[number]
        for rule in rules:
            if rule.pattern.search(text):
                by_name[number] = rule.kind
                break
    found = by_name[part.columns["name"]]
    change = rows & (found != nothing) & (found != part.columns["kind"])
    part.columns["kind"][change] = found[change]
    part.columns["kind_source"][change] = source


def _by_stream(part: Part, roles: dict[str, Role], device: Bool) -> None:
    """Give streams their roles; kernels of a stream for communication that no rule knows are communication."""
    kind, streams = part.columns["kind"], part.columns["stream"]
    dur_ns = part.columns["end_ns"] - part.columns["start_ns"]
    work = device & (kind <= Kind.COMM)

    def shares(of: Bool) -> tuple[Any, Any]:
        count = len(part.streams)
        return np.bincount(streams[of], dur_ns[of], count), np.bincount(streams[of], minlength=count)

    time, number = shares(work)
    comm_time, comm_number = shares(work & (kind == Kind.COMM))
    copy_time, copy_number = shares(work & ((kind == Kind.COPY) | (kind == Kind.SET)))
    inferred = 0
    for place, stream in enumerate(part.streams):
        if stream.device is None:
            continue
        if stream.name in roles:
            part.streams[place] = _with_role(stream, roles[stream.name], Source.GIVEN)
        elif comm_number[place] * 2 > number[place] and comm_time[place] >= _MOST * time[place]:
            part.streams[place] = _with_role(stream, Role.COMM, Source.INFERRED)
        elif copy_number[place] * 2 > number[place] and copy_time[place] >= _MOST * time[place]:
            part.streams[place] = _with_role(stream, Role.COPY, Source.INFERRED)
        elif number[place]:
            part.streams[place] = _with_role(stream, Role.COMPUTE, Source.INFERRED)
        if part.streams[place].role is Role.COMM:
            rows = (streams == place) & (kind == Kind.KERNEL)
            kind[rows] = Kind.COMM
            part.columns["kind_source"][rows] = Source.INFERRED
            inferred += int(rows.sum())
    if inferred:
        part.note("inferred", inferred, "kernels taken for communication because they run on a stream for it")


def _with_role(stream: Stream, role: Role, source: Source) -> Stream:
    return stream if stream.role is not Role.OTHER else replace(stream, role=role, role_source=source)
