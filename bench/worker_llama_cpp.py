"""llama.cpp, through llama-cpp-python, as a worker of peers.py."""

from __future__ import annotations

import argparse

from worker_protocol import Answer, Generate, Loaded, Stopwatch, arguments, serve


def main() -> None:
    args = arguments(lookup=0)
    serve(lambda: _load(args))


def _load(args: argparse.Namespace) -> Loaded:
    import llama_cpp

    generate = _one_prompt(args) if args.batch == 1 else _several_prompts(args)
    return Loaded("llama.cpp", f"llama-cpp-python {llama_cpp.__version__}", "the file's", generate)


def _one_prompt(args: argparse.Namespace) -> Generate:
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    # A draft is verified by the logits of all its rows, hence logits_all; without a draft it only costs.
    draft = LlamaPromptLookupDecoding(num_pred_tokens=args.lookup) if args.lookup else None
    llama = llama_cpp.Llama(
        args.model,
        n_ctx=args.context,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        logits_all=draft is not None,
        draft_model=draft,
        verbose=False,
    )

    def generate(prompts: list[list[int]], max_tokens: int) -> Answer:
        (ids,) = prompts
        llama.reset()  # or the prefix that prompts share is taken from the last one's cache
        watch = Stopwatch(1)
        for token in llama.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
            watch.came(0, [token])
            if len(watch.tokens[0]) >= max_tokens:
                break
        return watch.answer()

    return generate


def _several_prompts(args: argparse.Namespace) -> Generate:
    """One sequence a prompt, all in one context: by the C interface, as the Python one decodes one prompt."""
    import llama_cpp as lib
    import numpy as np

    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(args.model.encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max = args.context * args.batch, args.batch
    params.n_batch = params.n_ubatch = max(512, args.context)
    params.n_threads = params.n_threads_batch = args.threads
    context = lib.llama_init_from_model(model, params) if model else None
    if not context:
        raise RuntimeError(f"llama.cpp cannot load {args.model}")
    vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    batch = lib.llama_batch_init(params.n_batch, 0, 1)

    def forward(rows: list[tuple[int, int, int]]) -> None:
        """Run rows of (sequence, position, token); the last row of each sequence gives logits."""
        last = {sequence: at for at, (sequence, _, _) in enumerate(rows)}
        batch.n_tokens = len(rows)
        for at, (sequence, position, token) in enumerate(rows):
            batch.token[at], batch.pos[at] = token, position
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
            batch.logits[at] = last[sequence] == at
        if code := lib.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode gave {code}")

    def best(row: int) -> int:
        logits = lib.llama_get_logits_ith(context, row)
        return int(np.ctypeslib.as_array(logits, (vocabulary,)).argmax())

    def generate(prompts: list[list[int]], max_tokens: int) -> Answer:
        lib.llama_memory_clear(lib.llama_get_memory(context), False)
        watch = Stopwatch(len(prompts))
        for sequence, ids in enumerate(prompts):
            forward([(sequence, position, token) for position, token in enumerate(ids)])
            watch.came(sequence, [best(len(ids) - 1)])
        for step in range(max_tokens - 1):
            forward(
                [
                    (sequence, len(ids) + step, watch.tokens[sequence][-1])
                    for sequence, ids in enumerate(prompts)
                ]
            )
            for sequence in range(len(prompts)):
                watch.came(sequence, [best(sequence)])
        return watch.answer()

    return generate


if __name__ == "__main__":
    main()
