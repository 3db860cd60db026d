"""An OpenVINO model made of a GGUF file: dequantised to float32, exported, its weights compressed again.

    openvino_model.py MODEL.gguf int8|int4 FOLDER

Only the weights and what runs them: token ids go in and come out, so no tokenizer is made. The folder appears
whole or not at all.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

#: What optimum-cli takes too, except that its groups of 128 do not divide sizes like 576.
COMPRESSION = {
    "int8": {"bits": 8, "sym": False},
    "int4": {"bits": 4, "sym": False, "group_size": 64, "ratio": 1.0},
}

TEMPORARY = ".export-"


def folder_name(gguf: Path, weights: str, maker: str) -> str:
    """Name of the folder for these weights of this very file, made by this version."""
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{gguf.stem}-{digest[:12]}-{weights}-{maker}"


def export(gguf: Path, weights: str, folder: Path) -> None:
    """Make the folder; for a while some 2.5 times the float32 weights are in memory.

    Raises:
        ValueError: the file is no plain llama model.
        OSError: it cannot be stored.
    """
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
    from transformers_model import load_transformers

    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(folder.parent)
    # Beside the folder, so that the last move stays on one disk and is atomic.
    with TemporaryDirectory(prefix=TEMPORARY, dir=folder.parent) as temporary:
        source, made = Path(temporary, "source"), Path(temporary, "made")
        load_transformers(gguf).save_pretrained(source)
        compression = OVWeightQuantizationConfig(**COMPRESSION[weights])
        model = OVModelForCausalLM.from_pretrained(
            source, export=True, compile=False, quantization_config=compression
        )
        model.save_pretrained(made)
        if folder.exists():  # it lacked its model, or it would not be made again
            rmtree(folder)
        made.rename(folder)


def remove_stale(cache: Path) -> None:
    """Remove what killed exports left: they could not clean up themselves."""
    for left in cache.glob(f"{TEMPORARY}*"):
        if time.time() - left.stat().st_mtime > 24 * 3600:
            rmtree(left, ignore_errors=True)


if __name__ == "__main__":
    export(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
