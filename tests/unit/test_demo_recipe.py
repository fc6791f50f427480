"""The demo model's recipe from stories to perplexity, with a one-layer model and a few steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader

from tools.demo_model import convert, evaluate, prepare, train
from tools.demo_model.model import DemoConfig, StoryModel, load_checkpoint, save_checkpoint
from tools.demo_model.muon import orthogonalise

STORIES = Path(__file__).parents[1] / "data" / "stories.txt"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    prepare.main([str(STORIES), "--out", str(folder), "--held-out", "4", "--vocab", "512"])
    return folder


def one_layer_model() -> StoryModel:
    torch.manual_seed(0)
    return StoryModel(DemoConfig(n_vocab=512, n_layer=1, n_expert=4))


def test_the_whole_recipe(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, model = data / "demo.npz", data / "demo.gguf"
    train.main(
        [
            *("--data", str(data), "--out", str(weights), "--steps", "20", "--batch", "4", "--rows", "32"),
            *("--layers", "1", "--experts", "4", "--warm-up", "4", "--threads", "1"),
        ]
    )
    convert.main([str(weights), "q4_k_m", "--tokenizer", str(data / "tokenizer.json"), "--out", str(model)])
    types = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(model).tensors}
    assert types["blk.0.ffn_gate_exps.weight"] == types["blk.0.ffn_up_exps.weight"] == "Q4_K"
    assert types["blk.0.ffn_down_exps.weight"] == "Q6_K"
    assert types["blk.0.attn_q.weight"] == "Q8_0"
    assert types["blk.0.ffn_gate_inp.weight"] == "F32"
    capsys.readouterr()
    evaluate.main([str(model), str(data / "held_out.txt")])
    printed = capsys.readouterr().out
    assert printed.startswith("4 stories, perplexity ")
    assert 1 < float(printed.split()[-1]) < 400  # 512 is guessing


def test_the_gguf_holds_the_checkpoints_values(data: Path) -> None:
    weights, path = data / "random.npz", data / "random.gguf"
    model = one_layer_model()
    save_checkpoint(model, weights)
    convert.convert(weights, data / "tokenizer.json", path, convert.MIXES["f32"], convert.Quantiser())
    loaded, tokenizer = evaluate.load_gguf(path)
    ids = torch.tensor([tokenizer.encode("Once upon a time", add_special=False, parse_special=False)])
    assert loaded.config == model.config == load_checkpoint(weights).config
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert tokenizer.eog_ids == {prepare.END_ID}


def test_other_tensors_than_the_models_are_refused() -> None:
    model = one_layer_model()
    values = {name: tensor.numpy() for name, tensor in model.tensors().items()}
    del values["output_norm.weight"]
    with pytest.raises(ValueError, match=r"output_norm\.weight"):
        model.load_tensors(values)


def test_stories_are_cleaned_and_split_without_overlap() -> None:
    long = "A fox ran over the hill and saw a “small” house – it was cold, so she knocked and waited."
    plain = 'A fox ran over the hill and saw a "small" house - it was cold, so she knocked and waited.'
    assert prepare.clean(f"  {long}\r\n\n\n  The end.  ") == plain + "\nThe end."
    assert prepare.clean("too short") is None
    assert prepare.clean(long + " 世") is None
    assert prepare.split_stories("a\nb\n\n\nc") == ["a\nb", "c"]
    assert prepare.split_stories("a\n\nb<|endoftext|>c") == ["a\n\nb", "c"]
    stories = [f"{word} story number {number} " * 10 for number, word in enumerate(("one", "two", "three", "four"))]
    corpus = prepare.split_corpus([*stories, stories[0].upper()], n_held_out=1, seed=0)
    assert (len(corpus.train), len(corpus.held_out)) == (3, 1)
    assert {story.lower() for story in corpus.train + corpus.held_out} == set(stories)


def test_what_repeats_held_out_passages_is_left_out_of_training() -> None:
    passage = " ".join(f"word{n}" for n in range(60))
    stories = [passage + " one", passage + " two", passage + " three"]
    corpus = prepare.split_corpus(stories, n_held_out=1, seed=0)
    assert (len(corpus.train), len(corpus.held_out)) == (0, 1)
    with pytest.raises(ValueError, match="3 different stories; more than the 3 to hold out"):
        prepare.split_corpus(stories, n_held_out=3, seed=0)


def test_each_pass_gives_every_piece_once() -> None:
    ids = np.arange(101)
    pieces = train.passes(ids, 10, seed=1)
    first = [next(pieces) for _ in range(9)]
    assert sorted(int(piece[0]) % 10 for piece in first) == [int(first[0][0]) % 10] * 9
    assert len({int(piece[0]) for piece in first}) == 9
    assert all(piece.size == 11 for piece in first)
    with pytest.raises(ValueError, match="101 tokens are too few for sequences of 64"):
        next(train.passes(ids, 64, seed=1))


def test_the_learning_rate_rises_stays_and_falls_to_nothing() -> None:
    settings = train.TrainSettings(n_steps=100, warm_up_steps=10, cool_down=0.5)
    rates = [train.rate_at(step, settings) for step in (0, 9, 40, 75, 99)]
    assert rates == pytest.approx([0.1, 1.0, 1.0, 0.5, 0.02])


def test_orthogonal_steps_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((64, 32), (32, 64)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.min() > 0.4
        assert values.max() < 1.4
