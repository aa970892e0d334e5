"""Writes a GGUF model as a checkpoint of safetensors, with its tokenizer and chat template.

A script for `vllm_setup`, which runs it where PyTorch and transformers can be imported:
`python checkpoint.py SOURCE TARGET`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path


def convert(source: Path, target: Path) -> None:
    """Unpacks the weights to float32: what computes them on a CPU computes in that."""
    transformers = import_module("transformers")  # not installed where the types are checked
    torch = import_module("torch")
    folder, name = str(source.parent), source.name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    if not tokenizer.chat_template:
        raise ValueError(f"{source} has no chat template, and a chat model needs one")
    models = transformers.AutoModelForCausalLM
    read = models.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # The weights are unpacked, but what was read from a GGUF refuses to be saved: copy them.
    config = type(read.config).from_dict(
        {key: v for key, v in read.config.to_dict().items() if key != "quantization_config"}
    )
    model = models.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
