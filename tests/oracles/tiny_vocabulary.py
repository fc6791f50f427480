"""Vocabularies of a few hundred tokens for the tokenizer tests, as GGUF metadata and as files without tensors.

The merges are learnt from the paragraph below, so that every pre-tokenizer has words, digits and blanks to cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from gguf import GGUFWriter
from tokenizers import models, pre_tokenizers, trainers

from backbone.engine.text.pre_tokenizers import PRE_TOKENIZERS
from backbone.engine.text.tokenizer_vocabulary import TokenKind

PARAGRAPH = """
Once upon a time there was a small baker who couldn't sleep. He'd count 1234567890 loaves, then 2024 rolls, and 12 more.
"Don't worry," said the moon; "they're only bread!" We'll see: he's tired, I'm tired, you've slept.
SHE'LL SAY IT'S FINE.
Pada suatu hari seekor kancil berjalan-jalan di tepi sungai, mencari makanan untuk anak-anaknya yang lapar sekali.
def bake(loaves: int) -> list[str]:
    return [f"loaf {i:03d}" for i in range(loaves) if i % 2 == 0]  # every second one
\tif (x != y && z >= 0x1F) { printf("%s\\n", names[i++]); }   //   three   blanks


    tail = {"a": [1, 2, 3], "b": None}
小さな町のパン屋さんは毎朝四時に起きて、パンを焼きます。你好，世界！今天是2026年8月13日。안녕하세요 여러분.
🙂🙂 🎉 👩‍👩‍👧 naïve café Größe résumé नमस्ते สวัสดีครับ ½ ² Ⅻ ٣٤٥ — “quoted” … €5
"""
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im", "<s>x")
USER_DEFINED = ("<think>", "</think>", "    ", "bread!")


def bpe_metadata(pre: str, *, n_vocab: int = 640) -> dict[str, object]:
    """A byte-level BPE vocabulary, whose last tokens are control and user-defined ones."""
    kind = PRE_TOKENIZERS[pre]
    library = tokenizers.Tokenizer(models.BPE())
    cuts = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in kind.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=n_vocab, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    library.train_from_iterator([PARAGRAPH] * 2, trainer)
    model = json.loads(library.to_str())["model"]
    texts = sorted(model["vocab"], key=model["vocab"].__getitem__)
    kinds = [TokenKind.NORMAL] * len(texts)
    kinds += [TokenKind.CONTROL] * len(CONTROLS) + [TokenKind.USER_DEFINED] * len(USER_DEFINED)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*texts, *CONTROLS, *USER_DEFINED],
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": len(texts),
        "tokenizer.ggml.eos_token_id": len(texts) + 2,
    }


def spm_metadata(*, n_vocab: int = 500) -> dict[str, object]:
    """A SentencePiece-style vocabulary: special tokens, 256 byte tokens, then learnt pieces by falling score."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    trainer = trainers.BpeTrainer(vocab_size=n_vocab, show_progress=False, min_frequency=1, limit_alphabet=120)
    library.train_from_iterator(PARAGRAPH.splitlines(), trainer)
    learnt = json.loads(library.to_str())["model"]
    pieces = [left + right for left, right in learnt["merges"]]
    characters = [text for text in sorted(learnt["vocab"]) if len(text) == 1]
    pieces = list(dict.fromkeys([*pieces, "▁▁", "▁▁▁▁", "x>", *characters]))
    special = [("<unk>", TokenKind.UNKNOWN), ("<s>", TokenKind.CONTROL), ("</s>", TokenKind.CONTROL)]
    special += [(f"<0x{byte:02X}>", TokenKind.BYTE) for byte in range(256)]
    last = [("[INST]", TokenKind.CONTROL), ("[/INST]", TokenKind.CONTROL), ("<think>", TokenKind.USER_DEFINED)]
    tokens = [*special, *((piece, TokenKind.NORMAL) for piece in pieces), *last]
    scores = [0.0] * len(special) + [-float(rank // 2) for rank in range(len(pieces))] + [0.0] * len(last)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [text for text, _ in tokens],
        "tokenizer.ggml.token_type": [int(kind) for _, kind in tokens],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def write_vocabulary(path: Path, metadata: Mapping[str, object]) -> Path:
    """Write a GGUF file that holds nothing but a vocabulary."""
    writer = GGUFWriter(path, "llama")
    for key, value in metadata.items():
        name = key.removeprefix("tokenizer.ggml.")
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            raise TypeError(f"{name} is {value!r}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
