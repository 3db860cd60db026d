"""GPT-2's byte alphabet, and the ways of splitting text that byte-level vocabularies were trained with.

Sources: GPT-2's `bytes_to_unicode`; for the patterns, the `tokenizer.json` of each family, under the names
that llama.cpp writes into `tokenizer.ggml.pre`.
"""

from __future__ import annotations

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from slipstream.errors import UnsupportedModelError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL

_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")
# llama.cpp calls it "default" when the converter did not recognise the vocabulary: GPT-2's is the best guess.
_GPT2_NAMES = ("gpt-2", "default")
_SMOLLM_NAMES = ("smollm",)

KNOWN_PRE_TOKENIZERS = (*_SMOLLM_NAMES, *_LLAMA3_NAMES, *_QWEN2_NAMES, *_GPT2_NAMES)


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return how a vocabulary splits text before merging.

    Raises:
        UnsupportedModelError: no such way is known.
    """
    if name in _GPT2_NAMES:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _SMOLLM_NAMES:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if name in (*_LLAMA3_NAMES, *_QWEN2_NAMES):
        pattern = Regex(_LLAMA3 if name in _LLAMA3_NAMES else _QWEN2)
        split = pre_tokenizers.Split(pattern, behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, byte_level])
    raise UnsupportedModelError(
        f"the model's tokenizer splits text in a way called {name!r}, which is not implemented. "
        f"Supported: {', '.join(KNOWN_PRE_TOKENIZERS)}. A Hugging Face folder with tokenizer.json works too."
    )


def normalizer(name: str) -> Normalizer | None:
    """Return what a vocabulary does to text first, or None for nothing."""
    return normalizers.NFC() if name in _QWEN2_NAMES else None


def ignores_merges(name: str) -> bool:
    """Say whether a whole word of the vocabulary is taken before any merge is tried."""
    return name in _LLAMA3_NAMES


def adds_bos(name: str) -> bool:
    """Say whether the begin-of-text token is prepended where the file does not say."""
    return name in _LLAMA3_NAMES


def byte_of_character() -> dict[str, int]:
    """Return GPT-2's alphabet: 256 printable characters, each standing for one byte.

    Printable Latin-1 characters stand for themselves, the others in order for U+0100 and on.
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in alphabet.values())
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}
