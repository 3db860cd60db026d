"""llama.cpp, through llama-cpp-python, as a worker of peers.py."""

from __future__ import annotations

import argparse

from worker_protocol import Answer, Loaded, Stopwatch, serve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--lookup", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--context", type=int, default=1024)
    args = parser.parse_args()
    serve(lambda: _load(args))


def _load(args: argparse.Namespace) -> Loaded:
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

    return Loaded("llama.cpp", f"llama-cpp-python {llama_cpp.__version__}", "the file's", generate)


if __name__ == "__main__":
    main()
