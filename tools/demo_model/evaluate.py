"""Perplexity of a demo model's GGUF file on a text: `python -m tools.demo_model.evaluate FILE.gguf stories.txt`.

The weights are dequantised and run by the recipe's own model in float32, independent of the backbone's engine.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch.nn import functional

from backbone.engine.text.tokenizer import Tokenizer
from tools.demo_model.model import DemoConfig, StoryModel
from tools.demo_model.prepare import END_ID, split_stories


def load_gguf(path: Path) -> tuple[StoryModel, Tokenizer]:
    """The model with dequantised weights, and its tokenizer. Raises ValueError for another architecture."""
    reader = GGUFReader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    if metadata.get("general.architecture") != "qwen3moe":
        raise ValueError(f"{path} is {metadata.get('general.architecture')!r}; the demo model is 'qwen3moe'")
    model = StoryModel(_config(metadata))
    model.load_tensors(
        {tensor.name: np.asarray(dequantize(tensor.data, tensor.tensor_type)) for tensor in reader.tensors}
    )
    return model, Tokenizer.from_metadata(metadata)


def _config(metadata: dict[str, Any]) -> DemoConfig:
    def value(name: str) -> int:
        number = metadata[f"qwen3moe.{name}"]
        if not isinstance(number, int):
            raise TypeError(f"qwen3moe.{name} is {number!r}; it must be a whole number")
        return number

    def real(name: str) -> float:
        return float(str(np.float32(metadata[f"qwen3moe.{name}"])))  # the shortest number that float32 stores so

    return DemoConfig(
        n_vocab=value("vocab_size"),
        d_model=value("embedding_length"),
        n_layer=value("block_count"),
        n_head=value("attention.head_count"),
        n_kv_head=value("attention.head_count_kv"),
        d_head=value("attention.key_length"),
        n_expert=value("expert_count"),
        n_used=value("expert_used_count"),
        d_ff=value("expert_feed_forward_length"),
        n_ctx=value("context_length"),
        rope_base=real("rope.freq_base"),
        norm_eps=real("attention.layer_norm_rms_epsilon"),
    )


@torch.no_grad()
def perplexity(model: StoryModel, tokenizer: Tokenizer, stories: Sequence[str]) -> float:
    """exp of the mean cross-entropy a token; each story by itself, after the token that begins a story."""
    total, n_tokens = 0.0, 0
    for story in stories:
        ids = tokenizer.encode(story, add_special=False, parse_special=False)
        row = torch.tensor([END_ID, *ids, END_ID])[: model.config.n_ctx]
        total += functional.cross_entropy(model(row[None, :-1]).logits[0], row[1:], reduction="sum").item()
        n_tokens += len(row) - 1
    return math.exp(total / n_tokens)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a GGUF file that convert wrote")
    parser.add_argument("text", type=Path, help="stories divided by blank lines or end-of-text marks")
    options = parser.parse_args(arguments)
    model, tokenizer = load_gguf(options.model)
    stories = [story.strip() for story in split_stories(options.text.read_text(encoding="utf-8")) if story.strip()]
    print(f"{len(stories)} stories, perplexity {perplexity(model, tokenizer, stories):.4f}")


if __name__ == "__main__":
    main()
