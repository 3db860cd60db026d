"""Numbers for collectives where the trace has none: the n-th of a group on every rank is one collective."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Final

import numpy as np

from slipstream.timeline.table import Group, Int64, Kind, Note, Timeline

#: What differs between ranks, or between two kernels of one collective: template arguments, protocols, numbers.
_VARIES: Final = re.compile(r"\(.*|<.*|_(?:RING|TREE|COLLNET|NVLS|PAT)\w*|_(?:LL128|LL|SIMPLE)\b.*|\d+")


def number_collectives(line: Timeline) -> Timeline:
    """Return the timeline with `sequence` filled in, and a group for collectives of several ranks without one.

    Within a group the n-th collective of a kind on each rank is taken for the same one, but only where all ranks
    have equally many; else the numbers stay unknown and a note says so.
    """
    if len(line.ranks) < 2:
        return line
    line = _members(line)
    rows = np.flatnonzero((line.kind == Kind.COMM) & (line.sequence < 0))
    if not len(rows):
        return line
    kinds = [_VARIES.sub("", name) for name in line.names]
    lists: dict[tuple[int, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in rows.tolist():
        key = (int(line.group[row]), kinds[line.name[row]])
        lists[key][int(line.rank[row])].append(row)
    sequence, group = line.sequence.copy(), line.group.copy()
    groups, notes = list(line.groups), list(line.notes)
    # Kinds of one group are counted apart, and their numbers must not be equal.
    next_number: Counter[int] = Counter()
    unknown: Counter[str] = Counter()
    numbered = 0
    for (of_group, kind), by_rank in lists.items():
        lengths = {len(found) for found in by_rank.values()}
        if len(by_rank) < 2 or len(lengths) != 1:
            unknown[kind] += sum(map(len, by_rank.values()))
            continue
        if of_group < 0:
            of_group = len(groups)
            groups.append(Group(f"{kind} (all ranks that have it)", tuple(sorted(by_rank))))
        elif of_group not in next_number:
            next_number[of_group] = int(line.sequence[line.group == of_group].max()) + 1
        first = next_number[of_group]
        for found in by_rank.values():
            sequence[found], group[found] = first + np.arange(len(found)), of_group
            numbered += len(found)
        next_number[of_group] += lengths.pop()
    if numbered:
        notes.append(
            Note(
                "inferred", numbered, "collectives matched across ranks by their order: they have no numbers"
            )
        )
    if unknown:
        why = "communication that is not matched across ranks, as the ranks have different numbers of it: "
        notes.append(Note("unresolved", unknown.total(), why + ", ".join(sorted(unknown)[:3])))
    return replace(line, sequence=sequence, group=group, groups=tuple(groups), notes=tuple(notes))


def group_numbers(line: Timeline) -> Int64:
    """Return int64 [G + 1]: a number for each group, by its name and members, so equal on all ranks; last, -1."""
    by_name: dict[tuple[str, tuple[int, ...]], int] = {}
    numbers = [by_name.setdefault((group.name, group.ranks), len(by_name)) for group in line.groups]
    return np.array([*numbers, -1], np.int64)


def _members(line: Timeline) -> Timeline:
    """A group whose ranks the trace does not name has those that took part in it."""
    groups = list(line.groups)
    for number, group in enumerate(groups):
        if not group.ranks:
            found = np.unique(line.rank[line.group == number])
            groups[number] = replace(group, ranks=tuple(found.tolist()))
    return replace(line, groups=tuple(groups))
