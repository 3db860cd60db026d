"""Writes llama.cpp's logits behind every token of given texts: for q4_error.py, in llama.cpp's own environment.

    python logits_llama_cpp.py MODEL FOLDER THREADS

FOLDER holds texts.json, a list of lists of token ids; text n's logits go to FOLDER/n.npy, float32 [tokens, V].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np


def main() -> None:
    model, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    texts = json.loads((folder / "texts.json").read_text())
    llama = llama_cpp.Llama(
        model,
        n_ctx=max(map(len, texts)),
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=True,
        verbose=False,
    )
    for index, ids in enumerate(texts):
        llama.reset()
        llama.eval(ids)
        np.save(folder / f"{index}.npy", llama.scores[: len(ids)].astype(np.float32))
    print(llama_cpp.__version__)


if __name__ == "__main__":
    main()
