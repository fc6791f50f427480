"""Token ids are llama.cpp's own, on small vocabularies of each kind and on the demo model.

The comparison runs in another process, which loads nothing but the vocabulary.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from gguf import GGUFReader

from backbone.engine.text.tokenizer import Tokenizer
from tests.oracles.llama_tokenise import Ask, llama_tokenise
from tests.oracles.tiny_vocabulary import (
    CONTROLS,
    PARAGRAPH,
    USER_DEFINED,
    bpe_metadata,
    spm_metadata,
    write_vocabulary,
)

DEMO_MODEL = Path(__file__).parents[2] / "models" / "kvasir-demo-moe.q4_k_m.gguf"
TEXTS = (
    "",
    " ",
    "Once upon a time, there was a small baker. She'LL say it's fine; I'M SURE THEY'VE gone.",
    "Pada suatu hari seekor kancil berjalan-jalan di tepi sungai; anak-anaknya lapar.",
    "🙂 🎉🎉 👩‍👩‍👧 and a flag 🇮🇩, thumbs 👍🏽",
    "小さな町のパン屋。你好，世界！今天是2026年8月13日。안녕하세요",
    "def f(x):\n    return [x ** 2 for _ in range(10)]\n\n\tif a != b and c[0] >= 0x1F: pass  # done\r\n",
    "     five blanks, then two  , tabs\t\t and a trailing run    ",
    "\n\n\n  \n \r\n\r\n x\n",
    "0 12 123 1234 12345678901 3.14159 1,000,000 ٣٤٥ ½ ² Ⅻ",
    "नमस्ते दुनिया สวัสดีครับ ผมชื่อ é é ö",
    "no\u00a0break\u2003em\u3000wide\u200bzero\u0085next\u2028line",
    "a\x00b\x01c\x7f\ufffd\ufeff",
    "!!!??? ... --- ((())) [[a]] {b: 'c'} <d/> \\e\\ $f ^g |h| ~i` @j #k %l & m",
    "_under_score CamelCase snake_case kebab-case path/to/file.txt https://example.org/?q=1&r=a%20b",
    "'s 's't 're'RE'Ve'M'lL'd 'x ' '' '",
    "<think>\nHm.</think> bread! bread!bread!    <think    >",
    "<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|endoftext|> x <|im_end|><|im",
    "<s>[INST] Hello [/INST] Hi</s><s>x> <unk> <0x0A>",
    "<|im_sta <|im_start|<|im_start|>|> <s><s>x",
    "aaaaaaaaaaaaaaaaaaaaaaaa aaaaaaa bbbbbbbbbbb" + " " * 37 + "." * 33,
    PARAGRAPH,
)
# What the random texts are put together from.
PARTS = (
    *TEXTS[2].split(),
    *TEXTS[6].split(" "), *CONTROLS, *USER_DEFINED, *" \n\t\r'.,!-_0159aZéß世の한🙂\u0301\u094d\u2003",
    "  ", "\n\n", "'s", "'LL", "the", "ing", " a", "[INST]", "</s>", "<s>", "2024", "▁", "▁▁",
)  # fmt: skip


def random_texts(n_texts: int) -> list[str]:
    source = random.Random(7)
    return ["".join(source.choices(PARTS, k=source.randint(1, 14))) for _ in range(n_texts)]


def assert_same_ids(model: Path, metadata: dict[str, object], texts: list[str]) -> None:
    tokenizer = Tokenizer.from_metadata(metadata)
    asks = [Ask(text, *flags) for text in texts for flags in itertools.product((False, True), repeat=2)]
    theirs = llama_tokenise(model, asks)
    for ask, expected in zip(asks, theirs.ids, strict=True):
        found = tokenizer.encode(ask.text, add_special=ask.add_special, parse_special=ask.parse_special)
        assert found == expected, ask
    assert tokenizer.eog_ids == theirs.eog_ids
    shown = [tokenizer.shown_bytes(token, skip_special=True) for token in range(tokenizer.n_vocab)]
    assert shown == theirs.pieces


@pytest.mark.parametrize(
    "pre", ["gpt-2", "qwen2", "qwen35", "llama-bpe", "olmo", "dbrx", "glm4", "chatglm-bpe", "deepseek-v3", "default"]
)
def test_bpe_ids_are_llama_cpps(pre: str, tmp_path: Path) -> None:
    metadata = bpe_metadata(pre)
    model = write_vocabulary(tmp_path / "vocabulary.gguf", metadata)
    assert_same_ids(model, metadata, [*TEXTS, *random_texts(150)])


@pytest.mark.parametrize("flags", [{}, {"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True}])
def test_spm_ids_are_llama_cpps(flags: dict[str, object], tmp_path: Path) -> None:
    metadata = spm_metadata() | {f"tokenizer.ggml.{name}": value for name, value in flags.items()}
    model = write_vocabulary(tmp_path / "vocabulary.gguf", metadata)
    assert_same_ids(model, metadata, [*TEXTS, *random_texts(150)])


def test_ids_of_the_demo_model_are_llama_cpps() -> None:
    fields = GGUFReader(DEMO_MODEL).fields
    metadata = {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}
    assert_same_ids(DEMO_MODEL, metadata, [*TEXTS, *random_texts(150)])
