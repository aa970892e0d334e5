"""The tokenizer of the real engines' model, as transformers has it: made of the model's GGUF.

``AutoTokenizer.from_pretrained(folder, gguf_file=...)`` needs PyTorch; this needs what is in the
file's own words: vocabulary, merges, special tokens and the chat template.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.engines import setup

_FOLDER = "smollm2-tokenizer-1"
_CONTROL = 3  # a special token, in GGUF


def tokenizer_folder() -> Path:
    """Return the folder of the tokenizer; made on the first call, kept in the engines' cache."""
    folder = setup.cache_folder() / _FOLDER
    if not folder.exists():
        work = Path(tempfile.mkdtemp(prefix="work-", dir=setup.cache_folder()))
        try:
            _make(setup.install().model, work / "made")
            os.replace(work / "made", folder)
        except OSError:
            if not folder.exists():  # else somebody else was faster
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def _make(model: Path, folder: Path) -> None:
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(model).fields

    def value(name: str) -> Any:
        return fields[f"tokenizer.{name}"].contents()

    tokens, kinds = value("ggml.tokens"), value("ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in value("ggml.merges")]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(  # what GGUF calls "smollm"
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    made.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made,
        bos_token=tokens[value("ggml.bos_token_id")],
        eos_token=tokens[value("ggml.eos_token_id")],
        chat_template=value("chat_template"),
    ).save_pretrained(folder)
