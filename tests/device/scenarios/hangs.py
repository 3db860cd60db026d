"""Hangs and lost openings: who waits for a gate that nobody opens, and openings that come too early."""

from __future__ import annotations

import torch

from tests.device.scenarios.parts import Decoder, update_task
from tests.device.scenarios.registry import finds


@finds("lost-opening", streams=("update",), buffer="gate", says=("opened twice for one wait",), mend="main")
def host_runs_two_steps_ahead(mended: bool) -> list[float]:
    """vllm-ascend #4233: with async scheduling the gates are opened for the next step before the running replay
    has taken this step's."""
    main = torch.npu.Stream()
    update = torch.npu.Stream()
    decoder = Decoder()
    with torch.npu.stream(main):
        for length in (3, 4, 5):
            if mended:
                main.synchronize()
            decoder.graph.replay()
            decoder.update(update, length)
    return decoder.lengths()


@finds("lost-opening", streams=("of_main", "of_draft"), buffer="gate", mend="the second opening come after")
def two_update_streams_open_the_same_gates(mended: bool) -> list[float]:
    """vllm-ascend #12944: main and draft update on streams of their own, and nothing orders one's openings behind
    the other's replay."""
    main = torch.npu.Stream()
    of_main = torch.npu.Stream()
    of_draft = torch.npu.Stream()
    decoder = Decoder()
    with torch.npu.stream(main):
        for update in (of_main, of_draft, of_main):
            if mended:
                update.wait_stream(main)
            decoder.graph.replay()
            decoder.update(update, 4)
    return decoder.lengths()


@finds(
    "hang", streams=("main",), buffer="gate", says=("for ever: nobody has opened it",), mend="gate.record("
)
def update_hook_is_not_called_any_more(mended: bool) -> list[float]:
    """vllm-ascend #13639: the graph waits for openings, and the hook that would open them isn't called."""
    main = torch.npu.Stream()
    update = torch.npu.Stream()
    decoder = Decoder()
    with torch.npu.stream(main):
        decoder.graph.replay()
    if mended:
        decoder.update(update, 4)
    return decoder.lengths()


@finds(
    "hang", streams=("main",), buffer="gate", says=("for ever: nobody has opened it",), mend="gate.record("
)
def fewer_updates_than_tasks(mended: bool) -> list[float]:
    """vllm-ascend #14310: the update covers the layers of one attention backend; zip drops the others, and the
    replay stands at the first gate that isn't opened."""
    main = torch.npu.Stream()
    update = torch.npu.Stream()
    decoder = Decoder(layers=3)
    lengths = [4, 4, 4] if mended else [4, 4]
    with torch.npu.stream(main):
        decoder.graph.replay()
    layers = zip(decoder.handles, decoder.gates, decoder.layers, strict=True)
    for (handle, gate, attend), length in zip(layers, lengths, strict=False):
        update_task(update, handle, attend, length)
        gate.record(update)
    return decoder.lengths()


@finds("update-mixed", streams=("main", "update"), mend="by graph, not by the number of tokens")
def graphs_of_equal_token_counts_share_their_lists(mended: bool) -> list[float]:
    """vllm-ascend #14225: handles and gates are kept by the number of tokens, so a LoRA request's replay waits
    while the base graph's tasks are updated."""
    main = torch.npu.Stream()
    update = torch.npu.Stream()
    base = Decoder(name="base")
    lora = Decoder(name="lora")
    by_key = {}
    for decoder in (lora, base):
        key = decoder.name if mended else "4 tokens"
        by_key[key] = decoder
    with torch.npu.stream(main):
        lora.graph.replay()
    by_key.get("lora", base).update(update, 4)
    return lora.lengths()


@finds("hang", streams=("main",), buffer="gate", mend="gate.record(")
def runtime_that_waits_for_its_replay(mended: bool) -> list[float]:
    """vllm-ascend #8354: under ENPU the host doesn't come back from a replay before it is done, so updates that
    are made after it are never made."""
    main = torch.npu.Stream()
    update = torch.npu.Stream()
    decoder = Decoder()

    def replay() -> None:
        with torch.npu.stream(main):
            decoder.graph.replay()
        main.synchronize()

    if mended:
        decoder.update(update, 4)
    replay()
    decoder.update(update, 4)
    replay()
    return decoder.lengths()


@finds("hang", streams=("main", "update"), buffer="gate", says=("behind wait for",), mend="let the opening")
def update_stream_waits_for_the_replay_that_it_feeds(mended: bool) -> list[float]:
    """vllm-ascend #4180: stuck at the end of an update, as the update stream waits for the replay that waits for
    the update."""
    main = torch.npu.Stream()
    update = torch.npu.Stream()
    decoder = Decoder()
    with torch.npu.stream(main):
        for length in (3, 4):
            done = main.record_event()
            decoder.graph.replay()
            update.wait_event(done if mended else main.record_event())
            decoder.update(update, length)
    return decoder.lengths()


@finds("hang", streams=("draft",), buffer="gate", mend="gate.record(")
def draft_is_captured_and_never_updated(mended: bool) -> list[float]:
    """vllm-ascend #13600: the main graph is updated for each step, the draft's graph isn't."""
    draft = torch.npu.Stream()
    update = torch.npu.Stream()
    target = Decoder(name="target")
    drafter = Decoder(name="drafter")
    with torch.npu.stream(draft):
        target.graph.replay()
        target.update(update, 4)
        drafter.graph.replay()
    if mended:
        drafter.update(update, 4)
    return drafter.lengths()
