"""Text to token ids and back, for the tokenizer that comes with a checkpoint.

Splitting and merging are the `tokenizers` library's, built in `tokenizer_parts`; this file is what the engine
sees of it, and turns ids back into text piece by piece.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from slipstream.errors import InvalidTextError, ModelFormatError, UsageError
from slipstream.model.bytelevel import byte_of_character
from slipstream.model.chat_template import Message, render_chat
from slipstream.model.checkpoint import Checkpoint
from slipstream.model.tokenizer_parts import TokenizerParts, parts_from_gguf, parts_from_hf

_REPLACEMENT = "\ufffd"

#: Tokens that one character can take: UTF-8 has at most four bytes.
_LONGEST_CHARACTER = 4


class Tokenizer:
    """The tokenizer of one model. Safe to share between requests.

    Attributes:
        eos_ids: tokens that end an answer.
        vocab_size: tokens that the tokenizer knows; an embedding may have more rows.
    """

    def __init__(self, parts: TokenizerParts, eos_ids: Iterable[int]) -> None:
        self.eos_ids = frozenset(eos_ids)
        self.vocab_size = parts.backend.get_vocab_size(with_added_tokens=True)
        self._parts = parts
        self._byte_of = byte_of_character()
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. Special tokens written in it are parsed as such.

        The begin-of-text token is put before it only where the model asks for one and the text, as a chat
        template may render it, does not begin with it already.

        Raises:
            InvalidTextError: the text has lone surrogates, which no encoding has.
        """
        try:
            text.encode()  # the library answers half a surrogate pair with a TypeError
        except UnicodeEncodeError as error:
            raise InvalidTextError(
                f"the text is not valid Unicode at position {error.start}: {error.reason}."
            ) from None
        ids = list(self._parts.backend.encode(text, add_special_tokens=False).ids)
        bos = self._parts.bos
        if self._parts.add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens. Invalid UTF-8 becomes U+FFFD."""
        if self._parts.byte_level:
            return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")
        return str(self._parts.backend.decode(list(ids), skip_special_tokens=True))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text, empty for special and unknown ids.

        Only a byte-level vocabulary has bytes for every token; of another, it is the token decoded alone.
        """
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._make_bytes(token)
        return found

    def chat(self, messages: Sequence[Message]) -> str:
        """Render a conversation with the model's chat template, up to where the answer begins.

        Args:
            messages: each with "role" ("system", "user", "assistant") and "content".

        Raises:
            UsageError: the model has no chat template, or its template refuses the messages.
        """
        if self._parts.template is None:
            raise UsageError("the model has no chat template; give the prompt as text.")
        return render_chat(self._parts.template, messages, self._parts.special_tokens)

    def stream(self) -> TextStream:
        """Return a new incremental detokeniser, for one answer."""
        return TextStream(self)

    @property
    def byte_level(self) -> bool:
        """Whether every token stands for bytes."""
        return self._parts.byte_level

    def _make_bytes(self, token: int) -> bytes:
        text = None if token < 0 else self._parts.backend.id_to_token(token)
        if text is None or token in self._parts.control:
            return b""
        if not self._parts.byte_level:
            return self.decode([token]).encode()
        if token in self._parts.verbatim or not all(letter in self._byte_of for letter in text):
            return str(text).encode()
        return bytes(self._byte_of[letter] for letter in text)


class TextStream:
    """Ids of one answer to text, as they come. The pieces together are what `Tokenizer.decode` gives."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # For vocabularies without bytes: the ids of the last piece shown, then those not shown yet.
        self._ids: list[int] = []
        self._shown = 0

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that is new and complete. An unfinished character is held back."""
        if self._tokenizer.byte_level:
            return self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, ids)))
        return "".join(map(self._push_one, ids))

    def flush(self) -> str:
        """Return what is held back; bytes of an unfinished character become U+FFFD."""
        if self._tokenizer.byte_level:
            return self._decoder.decode(b"", final=True)
        return self._show(self._tokenizer.decode(self._ids))

    def _push_one(self, token: int) -> str:
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        waiting = len(self._ids) - self._shown
        if text.endswith(_REPLACEMENT) and waiting < _LONGEST_CHARACTER:
            return ""
        return self._show(text)

    def _show(self, text: str) -> str:
        # Decoded behind the last piece: whether a word begins with a space depends on what is before it.
        before = self._tokenizer.decode(self._ids[: self._shown])
        if text.startswith(before):
            new = text[len(before) :]
        else:
            # Invalid bytes have spoilt what they follow; they are shown alone.
            new = self._tokenizer.decode(self._ids[self._shown :])
        if new:
            self._ids = self._ids[self._shown :]
            self._shown = len(self._ids)
        return new


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """Build the tokenizer of a checkpoint.

    Raises:
        ModelFormatError: the checkpoint has none, or it is damaged.
        UnsupportedModelError: it is of a kind that is not implemented.
    """
    parts = parts_from_gguf(checkpoint) if checkpoint.format == "gguf" else parts_from_hf(checkpoint)
    tokenizer = Tokenizer(parts, checkpoint.config.eos_token_ids)
    if tokenizer.vocab_size > checkpoint.config.vocab_size:
        raise ModelFormatError(
            f"{checkpoint.path} is inconsistent: its tokenizer has {tokenizer.vocab_size} tokens, "
            f"its embedding {checkpoint.config.vocab_size} rows. Download or convert it again."
        )
    return tokenizer
