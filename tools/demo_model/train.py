"""Train the demo model on the files that `prepare` wrote: `python -m tools.demo_model.train --data FOLDER --out FILE`.

One process; products in bfloat16, weights in float32. The learning rate rises over the warm-up steps, stays, and falls
to nothing over the cool-down. Every hundredth step and at the end it states the loss on the held-out stories.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tools.demo_model.model import DemoConfig, StoryModel, load_checkpoint, save_checkpoint
from tools.demo_model.muon import Muon

_REPORT_STEPS = 20
_HELD_OUT_STEPS = 100


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """The training settings; the defaults are those of the published model's last stage."""

    n_steps: int = 2000
    n_batch: int = 24
    n_row: int = 256  # tokens in a sequence
    muon_rate: float = 0.014
    adam_rate: float = 0.003
    weight_decay: float = 0.1
    balance: float = 0.003  # weight of the load-balancing term
    warm_up_steps: int = 30
    cool_down: float = 0.6  # share of the steps
    seed: int = 7


def passes(ids: NDArray[np.int64], n_row: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Pieces of n_row + 1 tokens without end: all of them once a pass, from another offset, in another order."""
    if ids.size < 2 * n_row + 1:
        raise ValueError(f"{ids.size} tokens are too few for sequences of {n_row}; bring more text, or use --rows")
    source = np.random.default_rng(seed)
    while True:
        starts = np.arange(source.integers(0, n_row), ids.size - n_row, n_row)
        for start in source.permutation(starts):
            yield ids[start : start + n_row + 1]


def rate_at(step: int, settings: TrainSettings) -> float:
    """The learning rate of a step as a share of the full one."""
    warm_up = min(1.0, (step + 1) / settings.warm_up_steps)
    left = (settings.n_steps - step) / settings.n_steps
    return warm_up * min(1.0, left / settings.cool_down)


@torch.no_grad()
def held_out_loss(model: StoryModel, ids: NDArray[np.int64], n_row: int) -> float:
    """Mean cross-entropy a token, in nats, over whole rows of the held-out stories."""
    rows = min((ids.size - 1) // n_row, 128)
    if rows == 0:
        raise ValueError(f"{ids.size} held-out tokens are fewer than one row of {n_row}; hold out more stories")
    losses = []
    for row in range(rows):
        piece = torch.from_numpy(ids[row * n_row : (row + 1) * n_row + 1])
        losses.append(functional.cross_entropy(model(piece[None, :-1]).logits[0].float(), piece[1:]).item())
    return sum(losses) / rows


def train(model: StoryModel, data: Path, settings: TrainSettings) -> float:
    """Train in place; the loss on the held-out stories at the end."""
    train_ids, held_out_ids = (
        np.fromfile(data / f"{name}.bin", np.uint16).astype(np.int64) for name in ("train", "held_out")
    )
    pieces = passes(train_ids, settings.n_row, settings.seed)
    muon, adam = _optimisers(model, settings)
    started = time.perf_counter()
    for step in range(settings.n_steps):
        batch = torch.from_numpy(np.stack([next(pieces) for _ in range(settings.n_batch)]))
        loss, load = _gradient(model, batch, settings)
        rate = rate_at(step, settings)
        muon.step(settings.muon_rate * rate)
        for group in adam.param_groups:
            group["lr"] = settings.adam_rate * rate
        adam.step()
        adam.zero_grad()
        if (step + 1) % _REPORT_STEPS == 0:
            speed = (step + 1) * settings.n_batch * settings.n_row / (time.perf_counter() - started)
            busiest = load.sort(1, descending=True).values[:, : max(1, load.shape[1] // 4)].sum(1).max()
            print(f"step {step + 1}: loss {loss:.3f}, busiest quarter of experts {busiest:.0%}, {speed:.0f} tokens/s")
        if (step + 1) % _HELD_OUT_STEPS == 0:
            print(f"step {step + 1}: held-out loss {held_out_loss(model, held_out_ids, settings.n_row):.4f}")
    return held_out_loss(model, held_out_ids, settings.n_row)


def _gradient(model: StoryModel, batch: Tensor, settings: TrainSettings) -> tuple[float, Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        output = model(batch[:, :-1])
    loss = functional.cross_entropy(output.logits.float().flatten(0, 1), batch[:, 1:].flatten())
    torch.autograd.backward(loss + settings.balance * output.balance)
    return loss.item(), output.load


def _optimisers(model: StoryModel, settings: TrainSettings) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the matrices of attention and experts, AdamW for embedding, router and norms."""
    matrices: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    norms: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            norms.append(parameter)
        elif name == "embedding" or "router" in name:
            decayed.append(parameter)
        else:
            matrices.append(parameter)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=settings.adam_rate, betas=(0.9, 0.95))
    return Muon(matrices, weight_decay=settings.weight_decay), adam


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    defaults = TrainSettings()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that prepare wrote")
    parser.add_argument("--out", type=Path, required=True, help="file for the weights, such as demo.npz")
    parser.add_argument("--start", type=Path, help="go on from these weights instead of random ones")
    parser.add_argument("--steps", type=int, default=defaults.n_steps, help=f"default: {defaults.n_steps}")
    parser.add_argument("--batch", type=int, default=defaults.n_batch, help=f"sequences a step ({defaults.n_batch})")
    parser.add_argument("--rows", type=int, default=defaults.n_row, help=f"tokens a sequence ({defaults.n_row})")
    parser.add_argument("--muon-rate", type=float, default=defaults.muon_rate, help="learning rate of the matrices")
    parser.add_argument("--adam-rate", type=float, default=defaults.adam_rate, help="learning rate of the rest")
    parser.add_argument("--warm-up", type=int, default=defaults.warm_up_steps, help=f"steps ({defaults.warm_up_steps})")
    parser.add_argument("--balance", type=float, default=defaults.balance, help="weight of even expert use")
    parser.add_argument("--layers", type=int, default=DemoConfig().n_layer, help="of a new model (default: 6)")
    parser.add_argument("--experts", type=int, default=DemoConfig().n_expert, help="a layer (default: 16)")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--threads", type=int, help="of torch; 1 is often fastest where other programs run")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    if options.threads:
        torch.set_num_threads(options.threads)
    settings = TrainSettings(
        n_steps=options.steps, n_batch=options.batch, n_row=options.rows, muon_rate=options.muon_rate,
        adam_rate=options.adam_rate, balance=options.balance, seed=options.seed,
        warm_up_steps=options.warm_up,
    )  # fmt: skip
    model = load_checkpoint(options.start) if options.start else _new_model(options)
    loss = train(model, options.data, settings)
    save_checkpoint(model, options.out)
    print(f"held-out loss {loss:.4f}, perplexity {np.exp(loss):.2f}; weights in {options.out}")


def _new_model(options: argparse.Namespace) -> StoryModel:
    from tokenizers import Tokenizer

    n_vocab = Tokenizer.from_file(str(options.data / "tokenizer.json")).get_vocab_size()
    return StoryModel(DemoConfig(n_vocab=n_vocab, n_layer=options.layers, n_expert=options.experts))


if __name__ == "__main__":
    main()
