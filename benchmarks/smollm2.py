"""Convert the GGUF file of SmolLM2 into a checkpoint in Hugging Face format, once, with transformers' reader.

    pip install gguf==0.19.0
    python benchmarks/smollm2.py models/SmolLM2-135M-Instruct.Q4_1.gguf models/SmolLM2-135M-Instruct

Of such a file transformers 5.9 takes the weights and the chat template as they are. It gives the tokenizer the cuts of
GPT-2, so that line breaks before a digit become other tokens, and the token that begins a turn as the one that ends it.
SmolLM2 keeps digits apart and ends a turn with ``<|im_end|>``; both are put right here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from evals.core.files import write_text
from rlvr.runs.state import save_checkpoint

_END = "<|im_end|>"


def main() -> None:
    """Write the checkpoint."""
    parser = argparse.ArgumentParser(description="Convert the GGUF file of SmolLM2 into a checkpoint.")
    parser.add_argument("file", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("directory", type=Path, help="of the checkpoint")
    arguments = parser.parse_args()
    where, name = arguments.file.parent, arguments.file.name
    read = AutoTokenizer.from_pretrained(where, gguf_file=name)
    read.backend_tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=read.backend_tokenizer, eos_token=_END, pad_token=_END)
    model = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    model.config.update({"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id})
    write_text(arguments.directory / "chat_template.jinja", read.chat_template)
    save_checkpoint(model, tokenizer, arguments.directory)


if __name__ == "__main__":
    main()
