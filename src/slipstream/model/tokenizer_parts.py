"""What a tokenizer is made of, from GGUF's metadata or from a Hugging Face folder's JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models

from slipstream.errors import ModelFormatError, UnsupportedModelError
from slipstream.model.bytelevel import adds_bos, ignores_merges, normalizer, pre_tokenizer
from slipstream.model.checkpoint import Checkpoint
from slipstream.model.hf_folder import read_json

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What a checkpoint says about its tokenizer.

    Attributes:
        backend: splits, merges and knows the ids.
        control: ids of special tokens, which are no text.
        verbatim: ids of added tokens that are text as they are written, not in the byte alphabet.
        byte_level: every token stands for bytes.
        bos: begin-of-text token.
        add_bos: prepend it to a prompt that does not begin with it.
        template: chat template.
        special_tokens: "bos_token", "eos_token" and so on, to their text.
    """

    backend: tokenizers.Tokenizer
    control: frozenset[int]
    verbatim: frozenset[int]
    byte_level: bool
    bos: int | None
    add_bos: bool
    template: str | None
    special_tokens: Mapping[str, str] = field(default_factory=dict)


def parts_from_gguf(checkpoint: Checkpoint) -> TokenizerParts:
    """Build the tokenizer of a GGUF file.

    Raises:
        ModelFormatError: its lists are missing, or do not fit together.
        UnsupportedModelError: another kind than byte-level BPE, or an unknown way to split text.
    """
    found = checkpoint.metadata
    kind = found.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UnsupportedModelError(
            f"{checkpoint.path} has a {kind!r} tokenizer. Supported in GGUF: 'gpt2' (byte-level BPE). "
            "A Hugging Face folder with tokenizer.json works too."
        )
    pre = str(found.get("tokenizer.ggml.pre", "default"))
    tokens: list[str] = found.get("tokenizer.ggml.tokens", [])
    merges: list[str] = found.get("tokenizer.ggml.merges", [])
    types: list[int] = found.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if not tokens or len(types) != len(tokens):
        raise ModelFormatError(
            f"{checkpoint.path} is inconsistent: {len(tokens)} tokens, {len(types)} token types. "
            "Download it again."
        )
    try:
        backend = _byte_level_bpe(pre, tokens, types, merges)
    except UnsupportedModelError:
        raise
    except Exception as error:
        # The library raises bare Exception, as for a merge whose product is not in the vocabulary.
        raise ModelFormatError(f"{checkpoint.path} has a damaged tokenizer: {error}.") from error
    bos = found.get("tokenizer.ggml.bos_token_id")
    names = (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding"))
    ids = ((name, found.get(f"tokenizer.ggml.{key}_token_id")) for name, key in names)
    return TokenizerParts(
        backend=backend,
        control=frozenset(index for index, kind in enumerate(types) if kind == _CONTROL),
        verbatim=frozenset(index for index, kind in enumerate(types) if kind == _USER_DEFINED),
        byte_level=True,
        bos=bos,
        add_bos=bool(found.get("tokenizer.ggml.add_bos_token", adds_bos(pre))),
        template=found.get("tokenizer.chat_template"),
        special_tokens={name: tokens[i] for name, i in ids if i is not None and i < len(tokens)},
    )


def _byte_level_bpe(pre: str, tokens: list[str], types: list[int], merges: list[str]) -> tokenizers.Tokenizer:
    splitter = pre_tokenizer(pre)
    # A merge is "left right"; neither part has a space, which the byte alphabet writes as another character.
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    ids = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=pairs, ignore_merges=ignores_merges(pre)))
    backend.pre_tokenizer = splitter
    before = normalizer(pre)
    if before is not None:
        backend.normalizer = before
    backend.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types, strict=True):
        if kind == _CONTROL:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False)])
    return backend


def parts_from_hf(checkpoint: Checkpoint) -> TokenizerParts:
    """Build the tokenizer of a Hugging Face folder.

    Raises:
        ModelFormatError: tokenizer.json is missing or damaged.
    """
    path = checkpoint.path / "tokenizer.json"
    if not path.is_file():
        raise ModelFormatError(
            f"{checkpoint.path} has no tokenizer.json. Download it, or convert the tokenizer."
        )
    stored = read_json(path)
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(stored))
    except Exception as error:
        # The library raises bare Exception.
        raise ModelFormatError(f"{path} is not a tokenizer ({error}). Download it again.") from error
    config_path = checkpoint.path / "tokenizer_config.json"
    config = read_json(config_path) if config_path.is_file() else {}
    added = stored.get("added_tokens") or []
    named = {name: _text(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    special_tokens = {name: text for name, text in named.items() if text is not None}
    bos = backend.token_to_id(special_tokens["bos_token"]) if "bos_token" in special_tokens else None
    bos = checkpoint.config.bos_token_id if bos is None else bos
    # Where the configuration is silent, the tokenizer's own post-processor says what it puts first.
    by_default = bos is not None and backend.encode("").ids[:1] == [bos]
    return TokenizerParts(
        backend=backend,
        control=frozenset(token["id"] for token in added if token.get("special")),
        verbatim=frozenset(token["id"] for token in added if not token.get("special")),
        byte_level=_has_byte_level(stored.get("decoder")),
        bos=bos,
        add_bos=bool(config.get("add_bos_token", by_default)),
        template=_hf_template(checkpoint, config),
        special_tokens=special_tokens,
    )


def _text(token: Any) -> str | None:
    """A special token of tokenizer_config.json: a string, or an object with the string."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _has_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    return decoder.get("type") == "ByteLevel" or any(map(_has_byte_level, decoder.get("decoders", [])))


def _hf_template(checkpoint: Checkpoint, config: dict[str, Any]) -> str | None:
    path = checkpoint.path / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None
