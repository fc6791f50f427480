"""Stories to training data: clean text, a held-out part, a tokenizer, and files of token ids.

Run first: `python -m tools.demo_model.prepare stories.txt --out FOLDER`. It only reads the files that it is given.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
END_ID = 0  # the trainer gives the special token the first id
_PLAIN = str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'", "–": "-", "—": "-", "…": "...", "\r": None})
_RUN_WORDS = 12
_MAX_SHARED_RUNS = 15


@dataclass(frozen=True, slots=True)
class Corpus:
    """Clean stories, split in two parts that share none and no long passages."""

    train: list[str]
    held_out: list[str]


def split_stories(text: str) -> list[str]:
    """The stories of a file: divided by `<|endoftext|>` where it occurs, else by blank lines."""
    return text.split(END) if END in text else re.split(r"\n\s*\n", text)


def clean(story: str) -> str | None:
    """A story in plain ASCII with single line breaks; None when it is too short, too long or in another script."""
    story = re.sub(r"[ \t]+", " ", story.translate(_PLAIN))
    story = re.sub(r" ?\n[\n ]*", "\n", story.strip())
    if not 80 <= len(story) <= 6000 or re.search(r"[^\n\x20-\x7e]", story):
        return None
    return story


def split_corpus(stories: Iterable[str], n_held_out: int, seed: int) -> Corpus:
    """Drop double stories, hold some out, and leave out of training what repeats passages of the held-out ones."""
    unique = list({_key(story): story for story in stories}.values())
    if len(unique) <= n_held_out:
        raise ValueError(
            f"there are {len(unique)} different stories; more than the {n_held_out} to hold out are needed"
        )
    random.Random(seed).shuffle(unique)  # noqa: S311 - a shuffle, no secret
    held_out = unique[:n_held_out]
    held_out_runs = {run for story in held_out for run in _runs(story)}
    train = [
        story for story in unique[n_held_out:] if sum(run in held_out_runs for run in _runs(story)) <= _MAX_SHARED_RUNS
    ]
    return Corpus(train, held_out)


def train_tokenizer(stories: Sequence[str], n_vocab: int) -> Tokenizer:
    """A byte-level BPE in GPT-2's manner, with the end-of-story token as id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(stories, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, stories: Sequence[str]) -> np.ndarray:
    """Token ids of the stories one after the other, uint16, each followed by the end-of-story token."""
    encodings = tokenizer.encode_batch(list(stories), add_special_tokens=False)
    return np.array([token for encoding in encodings for token in (*encoding.ids, END_ID)], np.uint16)


def prepare(sources: Sequence[Path], out: Path, *, n_held_out: int, n_vocab: int, seed: int) -> None:
    """Write train.txt, held_out.txt, tokenizer.json, train.bin and held_out.bin into `out`."""
    texts = [source.read_text(encoding="utf-8", errors="replace") for source in sources]
    raw = [story for text in texts for story in split_stories(text)]
    stories = [story for story in map(clean, raw) if story]
    corpus = split_corpus(stories, n_held_out, seed)
    tokenizer = train_tokenizer(corpus.train, n_vocab)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    print(f"{len(raw)} pieces read, {len(stories)} usable")
    for name, part in (("train", corpus.train), ("held_out", corpus.held_out)):
        ids = encode(tokenizer, part)
        (out / f"{name}.txt").write_text(END.join(part), encoding="utf-8")
        ids.tofile(out / f"{name}.bin")
        print(f"{name}: {len(part)} stories, {sum(map(len, part))} characters, {ids.size} tokens")


def _key(story: str) -> str:
    """Return what two copies of a story have in common."""
    return re.sub(r"[^a-z0-9]", "", story.lower())


def _runs(story: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9']+", story.lower())
    return {tuple(words[start : start + _RUN_WORDS]) for start in range(len(words) - _RUN_WORDS + 1)}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "sources",
        nargs="+",
        type=Path,
        help=f"text files; stories are divided by {END} where a file has it, else by blank lines",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the training data")
    parser.add_argument("--held-out", type=int, default=145, help="stories that training never sees (default: 145)")
    parser.add_argument("--vocab", type=int, default=2048, help="size of the vocabulary, at most 65536 (default: 2048)")
    parser.add_argument("--seed", type=int, default=0, help="of the shuffle (default: 0)")
    options = parser.parse_args(arguments)
    prepare(options.sources, options.out, n_held_out=options.held_out, n_vocab=options.vocab, seed=options.seed)


if __name__ == "__main__":
    main()
