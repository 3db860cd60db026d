"""Training data on disk: one safetensors file a shard, a shard a fixed slice of the list of prompts.

A shard is written whole or not at all, and says which prompts it answers, so a run that was interrupted makes the
missing ones only. What is in a shard:

    tokens          int32 [sum of n + 1]      prompt and answer of each sequence, one behind the other
    hidden          float16 [sum of n, H]     the target's rows before its final norm: token t + 1 was chosen from
                                              the row at position t
    rows            int64 [prompts]           n of each sequence; 0 where the prompt could not be served
    prompt_lengths  int64 [prompts]           tokens of the prompt
    prompt_hashes   int64 [prompts]           of the prompts' texts
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from slipstream.errors import TrainingError, UsageError

#: The metadata's one key; its value is JSON. safetensors writes several keys in any order, and the same shard is
#: to be the same bytes.
FORMAT = "slipstream-shard-1"
_NAMES = {"tokens", "hidden", "rows", "prompt_lengths", "prompt_hashes"}


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One prompt and the target's answer, n + 1 tokens.

    Attributes:
        ids: int32 [n + 1], the ending token included.
        hidden_TH: float16 [n, H], the target's rows before its final norm; the last token has none.
        prompt_length: tokens of the prompt.
    """

    ids: torch.Tensor
    hidden_TH: torch.Tensor
    prompt_length: int


class ShardWriter:
    """Writes the shards of one folder.

    Args:
        folder: made if it is not there.
        facts: what the sequences depend on besides their prompts; all shards of a folder have the same.
        notes: what else is worth knowing; not compared.

    Raises:
        TrainingError: the folder cannot be made.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str], notes: Mapping[str, str]) -> None:
        self._folder, self._facts, self._notes = folder, dict(facts), dict(notes)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for part in folder.glob("*.part"):  # of a run that was killed
                part.unlink()
        except OSError as error:
            raise TrainingError(f"{folder} cannot be used for training data: {error}.") from error

    def has(self, index: int, prompts: Sequence[str]) -> bool:
        """Return whether shard `index` answers all of these prompts.

        Raises:
            UsageError: it was made from other prompts, by another target or with other settings.
            TrainingError: it is damaged.
        """
        path = shard_path(self._folder, index)
        if not path.exists():
            return False
        facts, hashes = _head(path)
        for name, value in self._facts.items():
            if facts.get(name) != value:
                raise UsageError(
                    f"{path} was made with {name} {facts.get(name)}, and now it is {value}. Give another folder "
                    "for this data, or remove the old one."
                )
        wanted = [_hash(prompt) for prompt in prompts]
        common = min(len(hashes), len(wanted))
        if hashes[:common] != wanted[:common]:
            raise UsageError(
                f"{path} was made from other prompts. Give another folder for this data, or remove the old one."
            )
        return len(hashes) >= len(wanted)

    def write(self, index: int, prompts: Sequence[str], sequences: Sequence[TrainingSequence | None]) -> Path:
        """Write shard `index`; a prompt that could not be served has None.

        Raises:
            TrainingError: it cannot be written, the disk is full say; no part of it is left.
        """
        served = [sequence for sequence in sequences if sequence is not None]
        tensors = {
            "tokens": torch.cat([torch.empty(0, dtype=torch.int32), *(one.ids for one in served)]),
            "hidden": torch.cat([one.hidden_TH for one in served]) if served else torch.empty(0, 0).half(),
            "rows": torch.tensor([len(one.hidden_TH) if one else 0 for one in sequences]),
            "prompt_lengths": torch.tensor([one.prompt_length if one else 0 for one in sequences]),
            "prompt_hashes": torch.tensor([_hash(prompt) for prompt in prompts]),
        }
        facts = self._notes | self._facts | {"index": str(index), "sequences": str(len(served))}
        path = shard_path(self._folder, index)
        part = path.with_suffix(".part")
        try:
            save_file(tensors, part, {FORMAT: msgspec.json.encode(facts, order="sorted").decode()})
            os.replace(part, path)
        except (OSError, SafetensorError) as error:
            raise TrainingError(
                f"{path} cannot be written: {error}. The shards before it are complete; the same command goes on "
                "from there."
            ) from error
        finally:
            part.unlink(missing_ok=True)
        return path


class ShardReader:
    """The sequences of a folder, by number; tensors are read when they are asked for.

    Raises:
        UsageError: there is no shard.
        TrainingError: a shard is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.paths = shard_paths(folder)
        self._tensors: dict[int, dict[str, torch.Tensor]] = {}
        self._places: list[_Place] = []
        for shard, path in enumerate(self.paths):
            tensors = self._shard(shard)
            start = number = 0
            for rows, length in zip(
                tensors["rows"].tolist(), tensors["prompt_lengths"].tolist(), strict=True
            ):
                if rows:
                    self._places.append(_Place(shard, start + number, start, rows, length))
                    start, number = start + rows, number + 1
            if len(tensors["tokens"]) != start + number or len(tensors["hidden"]) != start:
                raise TrainingError(
                    f"{path} is damaged: its counts do not add up. Remove it and make it again."
                )

    def __len__(self) -> int:
        return len(self._places)

    @cached_property
    def sizes(self) -> list[tuple[int, int]]:
        """(hidden rows, prompt length) of each sequence."""
        return [(place.rows, place.prompt_length) for place in self._places]

    def ids(self, index: int) -> torch.Tensor:
        """Return one sequence's tokens, int32 [n + 1]."""
        place = self._places[index]
        return self._shard(place.shard)["tokens"][place.token : place.token + place.rows + 1]

    def load(self, index: int) -> TrainingSequence:
        """Return one sequence."""
        place = self._places[index]
        hidden = self._shard(place.shard)["hidden"]
        return TrainingSequence(
            self.ids(index), hidden[place.row : place.row + place.rows], place.prompt_length
        )

    def _shard(self, shard: int) -> dict[str, torch.Tensor]:
        if shard not in self._tensors:
            # safetensors maps the file: pages that are not touched take no memory.
            self._tensors[shard] = _read(self.paths[shard])
        return self._tensors[shard]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a sequence is: its shard, its first token and its first row there."""

    shard: int
    token: int
    row: int
    rows: int
    prompt_length: int


def read_shards(folder: Path) -> Iterator[TrainingSequence]:
    """Yield all sequences of a folder, in the order of their prompts; errors as of `ShardReader`."""
    reader = ShardReader(folder)
    for index in range(len(reader)):
        yield reader.load(index)


def shard_path(folder: Path, index: int) -> Path:
    """Return where a shard is."""
    return folder / f"shard-{index:05d}.safetensors"


def shard_paths(folder: Path) -> list[Path]:
    """Return the shards of a folder, in order.

    Raises:
        UsageError: there is none.
    """
    paths = sorted(folder.glob("shard-*.safetensors"))
    if not paths:
        raise UsageError(f"there is no training data in {folder}: no file shard-*.safetensors.")
    return paths


def shard_facts(path: Path) -> dict[str, str]:
    """Return what a shard says of itself: target_hash, max_tokens, seed and so on.

    Raises:
        TrainingError: it is no shard, or damaged.
    """
    return _head(path)[0]


def _head(path: Path) -> tuple[dict[str, str], list[int]]:
    """Return a shard's metadata and the hashes of its prompts; the large tensors are not read."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if FORMAT not in metadata:
                raise _damaged(path, f"it is not of the format {FORMAT}")
            facts = msgspec.json.decode(metadata[FORMAT], type=dict[str, str])
            return facts, file.get_tensor("prompt_hashes").tolist()
    except (OSError, SafetensorError, msgspec.MsgspecError) as error:
        raise _damaged(path, str(error)) from error


def _read(path: Path) -> dict[str, torch.Tensor]:
    _head(path)
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, str(error)) from error
    if set(tensors) != _NAMES:
        raise _damaged(path, f"it holds {', '.join(sorted(tensors))}")
    return tensors


def _damaged(path: Path, why: str) -> TrainingError:
    return TrainingError(f"{path} is no usable shard: {why}. Remove it; the same command makes it again.")


def _hash(prompt: str) -> int:
    """Return 63 bits of a prompt's hash: no command shows the sign of a number that is none."""
    digest = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
