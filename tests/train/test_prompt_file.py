"""A user's prompts: what is usable is used, what is not is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.errors import UsageError
from slipstream.train.prompt_file import BadLine, read_prompts


def test_a_text_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(
        "\ufeffWhat is a verb?\n\n  \nFix this:\\n\\nhelo\r\nWhat is a verb?\n{not json}\n", encoding="utf-8"
    )
    found = read_prompts(path)
    assert found.prompts == ["What is a verb?", "Fix this:\n\nhelo", "{not json}"]
    assert (found.bad, found.repeated) == ([], 1)


def test_bad_lines_are_named_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"good\nbad \xff byte\nwith \x00 nul\nalso good\n")
    found = read_prompts(path)
    assert found.prompts == ["good", "also good"]
    assert found.bad == [BadLine(2, "not UTF-8 at byte 4"), BadLine(3, "it holds a NUL character")]


def test_bad_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [
        '"one"',
        '{"prompt": "two"}',
        '{"user": "three\\n"}',
        "{oops",
        '{"text": "x"}',
        "7",
        '{"prompt": 1}',
        '" "',
    ]
    path.write_text("\n".join(lines))
    found = read_prompts(path)
    assert found.prompts == ["one", "two", "three\n"]
    assert [bad.number for bad in found.bad] == [4, 5, 6, 7, 8]
    assert found.bad[0].why.startswith("not JSON")
    assert '"prompt"' in found.bad[1].why
    assert found.bad[4].why == "the prompt is empty"


@pytest.mark.parametrize("content", [b"", b"\n \n\t\n", b"\xff\xfe\n"])
def test_a_file_without_a_prompt_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"no prompt in .*prompts\.txt"):
        read_prompts(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_prompts(tmp_path / "nothing.txt")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_prompts(tmp_path)
