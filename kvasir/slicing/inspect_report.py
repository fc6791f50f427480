"""The report of `kvasir inspect` about a model or a slice: text for people and plain values for JSON.

`cli` prints it. It reads model cards and slice facts, never weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvasir.byte_sizes import format_size
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES, experts_for_budget, whole_layers_for_budget
from kvasir.slicing.model_card import ENGINE_ARCHITECTURES, ModelCard, MoeLayer
from kvasir.slicing.slice_file import SliceFile

USUAL_BUDGETS = (512 << 20, 2 << 30, 8 << 30, 32 << 30)


def model_values(card: ModelCard, n_parts: int, budgets: Sequence[int]) -> dict[str, object]:
    """Return the content of `model_text` for JSON, with sizes in bytes."""
    return {
        "architecture": card.architecture,
        "engine_runs_it": card.is_engine_architecture,
        "name": card.name,
        "fingerprint": card.fingerprint,
        "n_parts": n_parts,
        "n_layer": card.n_layer,
        "n_mtp_layer": card.n_mtp_layer,
        "n_expert": card.n_expert,
        "n_used": card.n_used,
        "d_model": card.d_model,
        "d_ff": card.d_ff,
        "n_vocab": card.n_vocab,
        "n_ctx": card.n_ctx,
        "tensor_bytes": card.n_bytes,
        "dense_bytes": card.dense_bytes,
        "routed_bytes": card.routed_bytes,
        "mtp_bytes": card.mtp_bytes,
        "worker_overhead_bytes": WORKER_OVERHEAD_BYTES,
        "layers": [_layer_values(layer) for layer in card.layers],
        "budgets": [
            {
                "bytes": budget,
                "experts": experts_for_budget(card, budget),
                "whole_layers": whole_layers_for_budget(card, budget),
            }
            for budget in budgets
        ],
    }


def _layer_values(layer: MoeLayer) -> dict[str, object]:
    return {
        "layer": layer.layer,
        "gate": layer.gate_type.name,
        "up": layer.up_type.name,
        "down": layer.down_type.name,
        "expert_bytes": layer.expert_bytes,
        "is_fused": layer.is_fused,
        "has_bias": layer.has_bias,
    }


def model_text(card: ModelCard, n_parts: int, budgets: Sequence[int]) -> str:
    """Describe a model: its shape, its sizes, its experts by kind of layer, and what fits into budgets."""
    return "\n\n".join([_summary(card, n_parts), _layer_table(card), _budget_table(card, budgets)])


def slice_values(slice_file: SliceFile) -> dict[str, object]:
    """Return the content of `slice_text` for JSON."""
    facts = slice_file.facts
    return {
        "architecture": facts.architecture,
        "model": facts.model_name,
        "model_fingerprint": facts.model_fingerprint,
        "n_layer": facts.n_layer,
        "n_expert": facts.n_expert,
        "d_model": facts.d_model,
        "d_ff": facts.d_ff,
        "slice_bytes": slice_file.n_bytes,
        "n_experts_held": slice_file.n_experts,
        "ranges": [[item.layer, item.start, item.stop] for item in facts.ranges],
    }


def slice_text(slice_file: SliceFile) -> str:
    """Describe a slice in a few lines."""
    facts = slice_file.facts
    held = ",".join(f"{item.layer}:{item.start}-{item.stop}" for item in facts.ranges)
    rows = [
        ("slice of", f"{_printable(facts.model_name)} ({_printable(facts.architecture)})"),
        ("fingerprint", facts.model_fingerprint),
        ("size", f"{format_size(slice_file.n_bytes)}, {slice_file.n_experts} experts"),
        ("experts held", held),
        ("model's shape", f"{facts.n_layer} layers of {facts.n_expert} experts, {facts.d_model} x {facts.d_ff}"),
    ]
    return "\n".join(f"{label:<14} {text}" for label, text in rows)


def _summary(card: ModelCard, n_parts: int) -> str:
    total = max(1, card.n_bytes)
    layers = f"{card.n_layer}, {len(card.layers)} of them with experts"
    if card.n_mtp_layer:
        layers += f"; {card.n_mtp_layer} more for multi-token prediction, which stays on the backbone"
    sizes = f"dense {format_size(card.dense_bytes)} ({card.dense_bytes / total:.0%}), "
    sizes += f"routed experts {format_size(card.routed_bytes)} ({card.routed_bytes / total:.0%})"
    if card.mtp_bytes:
        sizes += f", multi-token prediction {format_size(card.mtp_bytes)}"
    architecture = _printable(card.architecture)
    if not card.is_engine_architecture:
        architecture += f" (can be sliced; the engine runs {', '.join(ENGINE_ARCHITECTURES)})"
    rows = [
        ("model", _printable(card.name)),
        ("architecture", architecture),
        ("fingerprint", card.fingerprint),
        ("size", f"{format_size(card.n_bytes)} in {n_parts} file{'s' if n_parts > 1 else ''}"),
        ("layers", layers),
        (
            "experts",
            f"{card.n_expert} a layer, {card.n_used} used per row, {card.n_expert * len(card.layers):,} in all",
        ),
        ("widths", f"d_model {card.d_model}, d_ff {card.d_ff}, vocabulary {card.n_vocab:,}, context {card.n_ctx:,}"),
        ("bytes", sizes),
    ]
    return "\n".join(f"{label:<13} {text}" for label, text in rows)


def _layer_table(card: ModelCard) -> str:
    kinds: dict[tuple[object, ...], list[MoeLayer]] = {}
    for layer in card.layers:
        key = (layer.gate_type, layer.up_type, layer.down_type, layer.expert_bytes, layer.is_fused, layer.has_bias)
        kinds.setdefault(key, []).append(layer)
    rows = [("layers", "gate", "up", "down", "an expert", "a layer", "")]
    for layers in kinds.values():
        first = layers[0]
        notes = [note for note, holds in (("gate and up fused", first.is_fused), ("biases", first.has_bias)) if holds]
        rows.append(
            (
                _numbers_text([layer.layer for layer in layers]),
                first.gate_type.name,
                first.up_type.name,
                first.down_type.name,
                format_size(first.expert_bytes),
                format_size(first.expert_bytes * card.n_expert),
                ", ".join(notes),
            )
        )
    return _table(rows)


def _budget_table(card: ModelCard, budgets: Sequence[int]) -> str:
    n_all = card.n_expert * len(card.layers)
    rows = [("a budget of", "holds experts", "of all", "whole layers")]
    for budget in budgets:
        n_experts = experts_for_budget(card, budget)
        n_layers = whole_layers_for_budget(card, budget)
        rows.append((format_size(budget), f"{n_experts:,}", f"{n_experts / n_all:.1%}", str(n_layers)))
    note = f"(counted with {format_size(WORKER_OVERHEAD_BYTES)} for the worker itself, beside its slice)"
    return f"{_table(rows)}\n{note}"


def _printable(text: str) -> str:
    """Make a name from a file safe for a terminal: short, and without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200])


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _numbers_text(numbers: Iterable[int]) -> str:
    """Format numbers as runs: "0-3, 7" for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(start) if start == stop else f"{start}-{stop}" for start, stop in runs)
