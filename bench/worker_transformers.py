"""transformers, on the GGUF's dequantised weights, as a worker of peers.py."""

from __future__ import annotations

import argparse

from worker_protocol import Answer, Loaded, Stopwatch, arguments, resident_mb, serve


def main() -> None:
    args = arguments(dtype="float32", lookup=0)
    serve(lambda: _load(args))


def _load(args: argparse.Namespace) -> Loaded:
    import torch

    torch_mb = resident_mb()
    import transformers
    from transformers.generation.streamers import BaseStreamer
    from transformers_model import load_transformers

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    model = load_transformers(args.model, getattr(torch, args.dtype))
    more = {"prompt_lookup_num_tokens": args.lookup} if args.lookup else {}

    class Came(BaseStreamer):
        """Called with the prompt, then with what each step added: one token a prompt, or an accepted run."""

        def __init__(self, num_prompts: int) -> None:
            self.watch = Stopwatch(num_prompts)
            self.num_prompts = num_prompts
            self.is_prompt = True

        def put(self, value: torch.Tensor) -> None:
            new = value.flatten().tolist()
            if self.is_prompt:
                self.is_prompt = False
            elif self.num_prompts == 1:
                self.watch.came(0, new)
            else:
                for index, token in enumerate(new):
                    self.watch.came(index, [token])

        def end(self) -> None:
            pass

    @torch.inference_mode()
    def generate(prompts: list[list[int]], max_tokens: int) -> Answer:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        came = Came(len(prompts))
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            streamer=came,
            **more,
        )
        return came.watch.answer()

    weights = f"dequantised to {args.dtype}"
    return Loaded("transformers", transformers.__version__, weights, generate, torch_mb=torch_mb)


if __name__ == "__main__":
    main()
