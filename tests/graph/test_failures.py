"""The classifier: the right kind of each reported message, whatever stands around it or before it in the chain."""

from __future__ import annotations

import time

import pytest

from slipstream.device.soft.machine import errors
from slipstream.graph.failure_kinds import EXPLANATIONS, FailureKind
from slipstream.graph.failure_table import CODE_NAMES, CODES
from slipstream.graph.failures import chain_texts, classify
from tests.graph.failure_messages import HARMLESS, MESSAGES, Message

K = FailureKind


def test_there_are_sixty_messages_of_nearly_every_kind() -> None:
    assert len(MESSAGES) >= 60
    assert {message.kind for message in MESSAGES} >= set(K) - {K.UNKNOWN, K.RESOURCES, K.HOST_MEMORY}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: f"{message.seen}-{message.kind.name}")
def test_a_message_is_of_its_kind(message: Message) -> None:
    diagnosis = classify(message.text)
    assert diagnosis.kind is message.kind
    assert classify(RuntimeError(message.text)).kind is message.kind
    # In a log between other lines it is the same.
    log = "\n".join((*HARMLESS, message.text, *HARMLESS))
    assert classify(log).kind is message.kind
    assert diagnosis.explanation.meaning
    assert diagnosis.explanation.change


def test_none_is_misread_as_memory_or_disk() -> None:
    full = {K.MEMORY, K.HOST_MEMORY, K.DISK}
    for message in MESSAGES:
        if message.kind not in full:
            assert not full & {classify(message.text).kind, *classify(message.text).also}, message.seen


@pytest.mark.parametrize("text", HARMLESS)
def test_numbers_and_words_alone_are_no_failure(text: str) -> None:
    diagnosis = classify(text)
    assert (diagnosis.kind, diagnosis.codes, diagnosis.known) == (K.UNKNOWN, (), False)


@pytest.mark.parametrize("code", CODES)
def test_a_code_alone_is_enough_however_it_is_written(code: int) -> None:
    kind = CODES[code].kind
    for text in (
        f"error code is {code}",
        f"error code:{code}",
        f"ErrCode={code}, desc=[?]",
        f"x failed, runtime result = {code}[LINE:1]",
        f"launch failed: {code}",
        f"refused ({code})",
        f"{code} of the runtime",
    ):
        assert classify(text).kind is kind, text


def test_names_of_codes_are_read() -> None:
    for name, code in CODE_NAMES.items():
        assert classify(f"it said {name} and ended").codes == (CODES[code],)


def test_codes_of_devices_are_not_codes_of_captures() -> None:
    assert classify("error code is 507033").kind is K.DEVICE
    assert classify("error code is 507901").kind is K.DEVICE


def test_the_storage_text_alone_is_a_guess_and_says_so() -> None:
    alone = classify(
        "[Error]: Failed to apply for memory.\n  Check the remaining storage space in the environment."
    )
    assert (alone.kind, alone.guess) == (K.STREAMS, True)
    assert alone.text().startswith("stream resources (most likely)\n")
    assert not classify("Alloc sq cq fail, stream_id=1984").guess


class TestChains:
    def test_a_cause_counts_more_than_what_it_led_to(self) -> None:
        error = RuntimeError("capture_end: error code is 507903")
        error.__cause__ = RuntimeError("rtMemcpy: error code is 107030")
        diagnosis = classify(error)
        assert (diagnosis.kind, diagnosis.also) == (K.ILLEGAL_OP, (K.INVALIDATED,))
        assert diagnosis.original[0].startswith("RuntimeError: rtMemcpy")

    def test_what_the_end_of_a_capture_raised_over_it_is_in_the_context(self) -> None:
        def capture() -> None:
            try:
                raise RuntimeError("New capture stream failed, stream_id=1987")
            finally:
                raise RuntimeError("AclmdlRICaptureEnd, error code is 107025")

        with pytest.raises(RuntimeError) as raised:
            capture()
        assert classify(raised.value).kind is K.STREAMS

    def test_a_suppressed_context_is_read_as_well(self) -> None:
        def capture() -> None:
            try:
                raise RuntimeError("NPU out of memory. Tried to allocate 1.00 GiB")
            except RuntimeError:
                raise RuntimeError("capture failed, error code is 507903") from None

        with pytest.raises(RuntimeError) as raised:
            capture()
        assert classify(raised.value).kind is K.MEMORY

    def test_memory_that_ran_out_and_was_got_over_is_not_the_cause(self) -> None:
        error = RuntimeError("Stream resources are insufficient.")
        error.__context__ = RuntimeError("CUDA out of memory. Tried again after emptying the cache.")
        assert classify(error).kind is K.STREAMS

    def test_the_earliest_of_two_causes_counts(self) -> None:
        late = RuntimeError("graph_task_update_end failed")
        late.__cause__ = RuntimeError("CUDA graph capturing detected at an inappropriate time")
        assert classify(late).kind is K.LATE_CAPTURE

    def test_groups_are_opened(self) -> None:
        group = ExceptionGroup("ranks failed", [ValueError("no"), RuntimeError("error code is 207008")])
        assert classify(group).kind is K.STREAMS

    def test_a_circle_and_a_long_chain_end(self) -> None:
        first, second = RuntimeError("one"), RuntimeError("error code is 107025")
        first.__context__, second.__context__ = second, first
        assert classify(first).kind is K.UNJOINED
        error: BaseException = RuntimeError("error code is 107030")
        for number in range(1200):
            following = RuntimeError(f"step {number}")
            following.__cause__ = error
            error = following
        assert classify(error).kind is K.ILLEGAL_OP

    def test_texts_come_with_the_earliest_first(self) -> None:
        last = ValueError("last")
        last.__cause__ = KeyError("first")
        assert chain_texts(last) == ["KeyError: 'first'", "ValueError: last"]


@pytest.mark.parametrize("error", errors.SoftError.__subclasses__())
def test_what_the_software_npu_refuses_is_known(error: type[errors.SoftError]) -> None:
    diagnosis = classify(error("the sentence says what was done"))
    assert diagnosis.known == (error.code is not None)
    assert [code.number for code in diagnosis.codes] == ([error.code] if error.code else [])


def test_every_kind_is_explained() -> None:
    assert EXPLANATIONS.keys() == set(K)


def test_the_text_has_meaning_advice_and_the_original() -> None:
    message = MESSAGES[2]
    text = classify(message.text).text()
    for words in ("stream resources\n", "what to change:", "207005", "vllm-ascend#8393", "Alloc sq cq fail"):
        assert words in text
    data = classify(message.text).data()
    assert (data["kind"], data["known"], data["guess"]) == ("streams", True, False)
    assert data["codes"][0]["code"] == 207005
    assert any("Alloc sq cq fail" in line for line in data["original"])


def test_one_line_for_an_error() -> None:
    sentence = classify(RuntimeError("rtMemcpy: error code is 107030")).sentence
    assert sentence.startswith("illegal operation in a capture: An operation that a capture forbids")
    assert "To mend it: find the op: `slipstream check FILE`" in sentence
    assert "\n" not in sentence


def test_a_long_log_is_read_at_once_and_no_code_is_lost_in_it() -> None:
    lines = [f"INFO step {number}: Running: {number % 9} reqs, captured" for number in range(40000)]
    lines[20000] = "aclrtMemcpy failed, runtime result = 107030"
    lines[30000] = "aclrtMemcpy failed, runtime result = 507011"
    started = time.perf_counter()
    diagnosis = classify("\n".join(lines))
    assert time.perf_counter() - started < 2
    assert [code.number for code in diagnosis.codes] == [107030, 507011]
    assert diagnosis.original == (lines[20000], lines[30000])


def test_a_loggers_own_words_are_left_out() -> None:
    line = "(Worker_TP3 pid=78100) ERROR 04-20 21:27:00 [executor.py:932]    New capture stream failed, id=1"
    assert classify(line).original == ("New capture stream failed, id=1",)
