"""Text to ids and back, streaming, and chat templates."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from slipstream.errors import ModelFormatError, UnsupportedModelError, UsageError
from slipstream.model.bytelevel import KNOWN_PRE_TOKENIZERS, byte_of_character, pre_tokenizer
from slipstream.model.checkpoint import open_checkpoint
from slipstream.model.tokenizer import TextStream, Tokenizer, load_tokenizer
from tests.model.tiny import byte_alphabet, write_tiny_gguf, write_tiny_hf

TEXTS = (
    "",
    "the time and the people",
    "  it's  a\ttab\n\nnew   ",
    "Größe 漢字 🙂👩‍👩‍👧 é",
    "12345 3.14 ١٢٣ ½",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a\r\n\r\n b   \n",
)

#: llama.cpp's ids, with special tokens parsed; transformers' are the same once SmolLM's digits are put back.
SMOLLM2_IDS = {
    "What is 12 + 30?": [1780, 314, 216, 33, 34, 1232, 216, 35, 32, 47],
    "  it's  a\ttab\n\nnew   ": [216, 357, 506, 216, 253, 197, 15999, 198, 198, 2241, 333],
    "Größe 漢字 🙂": [27302, 7466, 34878, 85, 17097, 137, 112, 36518, 47526],
    "<|im_start|>user\nhi<|im_end|>\n": [1, 4093, 198, 6004, 2, 198],
    "def f(x):\n    return x[0]": [1604, 275, 24, 104, 727, 472, 1003, 1792, 75, 32, 77],
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(open_checkpoint(write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")))


def changed_gguf(tmp_path: Path, old: bytes, new: bytes) -> Path:
    """A tiny model with some bytes of its header replaced by as many others."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    data = path.read_bytes()
    assert data.count(old) == 1
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))
    return path


class TestGguf:
    @pytest.mark.parametrize("text", TEXTS)
    def test_equals_the_tokenizers_library(self, tiny: Tokenizer, tmp_path: Path, text: str) -> None:
        folder = write_tiny_hf(tmp_path / "tiny")
        backend = Backend.from_file(str(folder / "tokenizer.json"))
        ours = load_tokenizer(open_checkpoint(folder))
        ids = tiny.encode(text)
        assert ids == ours.encode(text) == backend.encode(text).ids
        assert tiny.decode(ids) == ours.decode(ids) == backend.decode(ids)

    def test_special_tokens_are_ids_and_no_text(self, tiny: Tokenizer) -> None:
        ids = tiny.encode("<|im_start|>the<|im_end|>")
        assert (ids[0], ids[-1]) == (1, 2)
        assert tiny.decode(ids) == "the"
        assert tiny.token_bytes(2) == b""
        assert tiny.eos_ids == {2}

    def test_every_byte_has_a_token(self, tiny: Tokenizer) -> None:
        assert sorted(tiny.token_bytes(token) for token in range(3, 259)) == [bytes([b]) for b in range(256)]
        assert tiny.token_bytes(tiny.encode(" the")[0]) == b" the"
        assert tiny.vocab_size == 320

    def test_ids_outside_are_no_text(self, tiny: Tokenizer) -> None:
        assert tiny.token_bytes(10**9) == tiny.token_bytes(-1) == b""

    def test_digits_are_single(self, tiny: Tokenizer) -> None:
        assert [tiny.token_bytes(token) for token in tiny.encode("2025")] == [b"2", b"0", b"2", b"5"]

    def test_half_a_surrogate_pair(self, tiny: Tokenizer) -> None:
        with pytest.raises(UsageError, match="not valid Unicode at position 1"):
            tiny.encode("a\ud800b")

    def test_unknown_pre_tokenizer(self, tmp_path: Path) -> None:
        path = changed_gguf(tmp_path, b"smollm", b"viking")
        with pytest.raises(UnsupportedModelError, match=r"'viking'.*Supported: smollm, llama-bpe"):
            load_tokenizer(open_checkpoint(path))

    def test_unknown_kind(self, tmp_path: Path) -> None:
        path = changed_gguf(tmp_path, b"gpt2", b"bert")
        with pytest.raises(UnsupportedModelError, match="'bert' tokenizer"):
            load_tokenizer(open_checkpoint(path))

    def test_merge_without_a_product(self, tmp_path: Path) -> None:
        first_merge = "Ġ t".encode()
        with pytest.raises(ModelFormatError, match="damaged tokenizer"):
            load_tokenizer(open_checkpoint(changed_gguf(tmp_path, first_merge, first_merge[:-1] + b"#")))


class TestSmollm2:
    @pytest.mark.parametrize("text", SMOLLM2_IDS)
    def test_golden_ids(self, smollm2_path: Path, text: str) -> None:
        tokenizer = load_tokenizer(open_checkpoint(smollm2_path))
        assert tokenizer.encode(text) == SMOLLM2_IDS[text]

    def test_chat(self, smollm2_path: Path) -> None:
        tokenizer = load_tokenizer(open_checkpoint(smollm2_path))
        text = tokenizer.chat([{"role": "user", "content": "Hi"}])
        assert text == (
            "<|im_start|>system\n"
            "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
        assert tokenizer.eos_ids == {2}
        assert tokenizer.vocab_size == 49152


class TestPreTokenizers:
    def split(self, name: str, text: str) -> list[str]:
        pieces = [piece for piece, _ in pre_tokenizer(name).pre_tokenize_str(text)]
        letters = byte_of_character()
        return [bytes(letters[letter] for letter in piece).decode() for piece in pieces]

    @pytest.mark.parametrize(
        ("name", "pieces"),
        [
            ("smollm", ["It", "'s", " ", "1", "2", "3", "4", " o", "'", "clock", ",", "\n", "\n", "OK"]),
            ("gpt-2", ["It", "'s", " 1234", " o", "'", "clock", ",", "\n", "\n", "OK"]),
            ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", " o", "'clock", ",\n\n", "OK"]),
            ("llama-bpe", ["It", "'s", " ", "123", "4", " o", "'clock", ",\n\n", "OK"]),
        ],
    )
    def test_splits(self, name: str, pieces: list[str]) -> None:
        assert self.split(name, "It's 1234 o'clock,\n\nOK") == pieces

    @pytest.mark.parametrize("name", KNOWN_PRE_TOKENIZERS)
    def test_loses_nothing(self, name: str) -> None:
        for text in TEXTS:
            assert "".join(self.split(name, text)) == text

    def test_alphabet(self) -> None:
        assert byte_of_character() == {letter: byte for byte, letter in enumerate(byte_alphabet())}


class TestBos:
    def folder(self, tmp_path: Path, **config: Any) -> Path:
        folder = write_tiny_hf(tmp_path / "tiny")
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
        return folder

    def test_not_by_default(self, tiny: Tokenizer) -> None:
        assert tiny.encode("the")[0] != 1

    def test_once_where_the_model_asks(self, tmp_path: Path) -> None:
        tokenizer = load_tokenizer(open_checkpoint(self.folder(tmp_path, add_bos_token=True)))
        plain = tokenizer.encode("the")
        assert plain[0] == 1
        assert tokenizer.encode("<|im_start|>the") == plain

    def test_post_processor_of_llama3(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text())
        del config["add_bos_token"]
        path.write_text(json.dumps(config))
        backend = Backend.from_file(str(folder / "tokenizer.json"))
        backend.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
        backend.save(str(folder / "tokenizer.json"))
        assert load_tokenizer(open_checkpoint(folder)).encode("the")[0] == 1


class TestTextStream:
    def pieces(self, tokenizer: Tokenizer, data: bytes) -> list[str]:
        """What a stream returns for one byte token at a time, and then for flush."""
        of_byte = {tokenizer.token_bytes(token): token for token in range(3, 259)}
        stream = tokenizer.stream()
        pushed = [stream.push([of_byte[bytes([byte])]]) for byte in data]
        return [*pushed, stream.flush()]

    def test_holds_back_an_unfinished_character(self, tiny: Tokenizer) -> None:
        assert self.pieces(tiny, "aé漢🙂".encode()) == ["a", "", "é", "", "", "漢", "", "", "", "🙂", ""]

    def test_flush_shows_what_is_unfinished(self, tiny: Tokenizer) -> None:
        assert self.pieces(tiny, b"a\xf0\x9f") == ["a", "", "", "\ufffd"]

    def test_invalid_bytes_do_not_hold_the_text(self, tiny: Tokenizer) -> None:
        assert self.pieces(tiny, b"\xff\xe6b\x80c") == ["\ufffd", "", "\ufffdb", "\ufffd", "c", ""]

    def test_special_tokens_are_no_text(self, tiny: Tokenizer) -> None:
        stream = TextStream(tiny)
        assert stream.push([1, *tiny.encode("the"), 2]) == "the"
        assert stream.push([]) == stream.flush() == ""

    def test_any_bytes_in_any_cut_give_decode(self, tiny: Tokenizer) -> None:
        chosen = random.Random(0)
        for _ in range(200):
            ids = [chosen.randrange(320) for _ in range(chosen.randrange(30))]
            stream, text, rest = tiny.stream(), "", list(ids)
            while rest:
                count = chosen.randint(1, 5)
                text += stream.push(rest[:count])
                rest = rest[count:]
            assert text + stream.flush() == tiny.decode(ids)


class TestOtherKinds:
    """A SentencePiece-like vocabulary: spaces as ▁, unknown characters as byte tokens."""

    @pytest.fixture
    def tokenizer(self, tmp_path: Path) -> Tokenizer:
        folder = write_tiny_hf(tmp_path / "tiny")
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnop"]
        ids = {token: index for index, token in enumerate(tokens)}
        backend = Backend(models.BPE(vocab=ids, merges=[], unk_token="<unk>", byte_fallback=True))
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        backend.add_special_tokens([AddedToken(token, special=True) for token in tokens[:3]])
        backend.save(str(folder / "tokenizer.json"))
        return load_tokenizer(open_checkpoint(folder))

    @pytest.mark.parametrize("text", ["a b c", "漢漢漢", "ab 漢字 🙂🙂 é cd", "no flag: 👩‍👩‍👧"])
    def test_stream_gives_the_text(self, tokenizer: Tokenizer, text: str) -> None:
        stream, ids = tokenizer.stream(), tokenizer.encode(text)
        pieces = [stream.push([token]) for token in ids]
        assert "".join(pieces) + stream.flush() == text == tokenizer.decode(ids)
        assert not any("\ufffd" in piece for piece in pieces)
        assert tokenizer.stream().push(ids) == text

    def test_invalid_bytes_do_not_hold_the_text(self, tokenizer: Tokenizer) -> None:
        a, bad = tokenizer.encode("a")[-1], 3 + 0xFF
        stream = tokenizer.stream()
        assert stream.push([a]) == "a"
        text = stream.push([bad, a, a])
        assert text.endswith("aa")
        assert "\ufffd" in text
        assert stream.push([bad]) == ""
        assert "\ufffd" in stream.flush()

    def test_special_tokens_are_no_text(self, tokenizer: Tokenizer) -> None:
        stream = tokenizer.stream()
        assert stream.push([1]) == ""
        assert stream.push(tokenizer.encode("a b")) == "a b"
        assert stream.push([2]) == stream.flush() == ""


class TestChat:
    def folder(self, tmp_path: Path, template: Any) -> Path:
        folder = write_tiny_hf(tmp_path / "tiny")
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
        return folder

    def chat(self, tmp_path: Path, template: Any, *contents: str) -> str:
        tokenizer = load_tokenizer(open_checkpoint(self.folder(tmp_path, template)))
        return tokenizer.chat([{"role": "user", "content": content} for content in contents])

    def test_opens_the_answer(self, tiny: Tokenizer) -> None:
        messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
        assert tiny.chat(messages) == (
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
        )

    def test_whitespace_and_variables_as_in_transformers(self, tmp_path: Path) -> None:
        body = "  {% for m in messages %}\n{{ m.content | tojson }}{% endfor %}\n"
        template = "{{ bos_token }}\n" + body + "{{ eos_token }}"
        assert self.chat(tmp_path, template, "<é>") == '<|im_start|>\n"<é>"<|im_end|>'

    def test_named_templates(self, tmp_path: Path) -> None:
        named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
        assert self.chat(tmp_path, named, "x") == "yes"

    def test_template_in_a_file_of_its_own(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, "no")
        (folder / "chat_template.jinja").write_text("yes")
        assert load_tokenizer(open_checkpoint(folder)).chat([{"role": "user", "content": "x"}]) == "yes"

    def test_no_template(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no chat template; give the prompt as text"):
            self.chat(tmp_path, None, "x")

    @pytest.mark.parametrize(
        ("template", "message"),
        [
            ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
            ("{% for %}", "not valid jinja2"),
            ("{{ messages.append(1) }}", "refuses these messages"),
            ("{{ ''.__class__.__mro__ }}", "refuses these messages"),
            ("{{ messages[7].content }}", "refuses these messages"),
        ],
    )
    def test_template_that_fails(self, tmp_path: Path, template: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            self.chat(tmp_path, template, "x")

    @pytest.mark.parametrize("messages", [[], [{"role": "user"}], [{"role": "user", "content": 3}]])
    def test_malformed_messages(self, tiny: Tokenizer, messages: list[Any]) -> None:
        with pytest.raises(UsageError, match="message"):
            tiny.chat(messages)


class TestHfFolder:
    def test_no_tokenizer(self, tmp_path: Path) -> None:
        folder = write_tiny_hf(tmp_path / "tiny")
        (folder / "tokenizer.json").unlink()
        with pytest.raises(ModelFormatError, match=r"no tokenizer\.json"):
            load_tokenizer(open_checkpoint(folder))

    def test_damaged_tokenizer(self, tmp_path: Path) -> None:
        folder = write_tiny_hf(tmp_path / "tiny")
        (folder / "tokenizer.json").write_text('{"model": 3}')
        with pytest.raises(ModelFormatError, match=r"tokenizer\.json is not a tokenizer"):
            load_tokenizer(open_checkpoint(folder))

    def test_more_tokens_than_rows(self, tmp_path: Path) -> None:
        folder = write_tiny_hf(tmp_path / "tiny")
        backend = Backend.from_file(str(folder / "tokenizer.json"))
        backend.add_tokens(["one more"])
        backend.save(str(folder / "tokenizer.json"))
        with pytest.raises(ModelFormatError, match="321 tokens, its embedding 320 rows"):
            load_tokenizer(open_checkpoint(folder))

    def test_added_token_that_is_text(self, tmp_path: Path) -> None:
        folder = write_tiny_hf(tmp_path / "tiny", vocab=None)
        backend = Backend.from_file(str(folder / "tokenizer.json"))
        tokens = json.loads(backend.to_str())
        tokens["added_tokens"].append(
            {**tokens["added_tokens"][0], "id": 3, "content": "!", "special": False}
        )
        (folder / "tokenizer.json").write_text(json.dumps(tokens))
        tokenizer = load_tokenizer(open_checkpoint(folder))
        assert tokenizer.decode(tokenizer.encode("a!b")) == "a!b"
