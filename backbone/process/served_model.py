"""The model of a backbone process: its slots, its scale of sums, its entry in the directory.

`backbone_process` opens model and scale at its start and publishes the entry.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from backbone.engine.model.architectures import read_config
from backbone.engine.model.kv_cache import SlotCache
from backbone.engine.model.mtp_experts import has_mtp_head
from backbone.engine.ops.devices import Device
from backbone.engine.serving.loaded_model import Dense, KernelChoice, LoadedModel, make_ops
from backbone.engine.serving.sum_calibration import sum_scale_of
from backbone.engine.serving.waiting_line import slots_for_budget
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.sum_scale import SumScale
from backbone.service_settings import ServiceSettings
from backbone.stream.directory import ModelEntry
from kvasir import __version__
from kvasir.byte_sizes import format_size
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.model_card import ModelCard

logger = logging.getLogger(__name__)

MEMINFO = Path("/proc/meminfo")


def available_memory(meminfo: Path = MEMINFO) -> int | None:
    """Return the kernel's estimate of the bytes available without swapping; None if it has none.

    It is the machine's memory; a container's limit is not considered.
    """
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(":")
            if key == "MemAvailable":
                return int(value.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


def open_model(settings: ServiceSettings, memory: Callable[[], int | None] = available_memory) -> LoadedModel:
    """Open the model of the settings. `memory` returns the available bytes, for a warning where no budget is set.

    Raises GGUFError or UnsupportedModelError for the file, ConfigError if the budget holds no slot.
    """
    n_slot, n_ctx = _slots(settings, memory)
    loaded = LoadedModel.open(
        settings.model,
        n_slot=n_slot,
        n_ctx=n_ctx,
        dense=Dense(settings.dense),
        device=Device(settings.device),
        gpu_expert_bytes=settings.gpu_expert_bytes,
        kernel=KernelChoice(settings.kernel),
        n_threads=settings.n_threads,
        has_mtp_head=_wants_mtp_head(settings),
    )
    cache = loaded.model.cache
    sizes = format_size(cache.slot_bytes), format_size(cache.recurrent_bytes)
    about = "%s: %d slots of %d tokens, %s each with %s of recurrent state"
    logger.info(about, settings.model_name, n_slot, n_ctx, *sizes)
    if loaded.model.mtp_head is not None:
        logger.info("%s: its MTP head guesses tokens", settings.model_name)
    if n_slot < settings.n_slot and settings.kv_budget_bytes is not None:
        budget = format_size(settings.kv_budget_bytes)
        logger.warning("KVASIR_KV_BYTES (%s) holds %d slots of the %d in KVASIR_SLOTS", budget, n_slot, settings.n_slot)
    return loaded


def open_sum_scale(settings: ServiceSettings, loaded: LoadedModel) -> SumScale | None:
    """Return the scale of sums, stored or measured now; None if replies are not sums. Raises ConfigError."""
    if ReplyFormat(settings.reply) is not ReplyFormat.SUM:
        return None
    return sum_scale_of(loaded, settings.sums_dir)


def directory_entry(
    settings: ServiceSettings, loaded: LoadedModel, sum_scale: SumScale | None, *, has_chat: bool
) -> ModelEntry:
    """Return the model's entry. Its fingerprint changes with everything that may change a bit of an answer."""
    parts = [
        loaded.card.fingerprint,
        loaded.store.kernel.name,
        loaded.store.kernel.fingerprint,
        loaded.model.ops.name,
        settings.reply,
        __version__,
    ]
    if sum_scale is not None:
        parts.append(sum_scale.digest)
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()
    return ModelEntry(
        name=settings.model_name,
        fingerprint=f"fp_{digest[:16]}",
        n_ctx=loaded.model.cache.n_ctx,
        architecture=loaded.card.architecture,
        created=int(settings.model.stat().st_mtime),
        has_chat=has_chat,
    )


def max_drafts(settings: ServiceSettings, loaded: LoadedModel) -> int:
    """Return how many tokens a sequence may draft at once; 0 if drafts are off or could change an answer."""
    if settings.speculate == "off":
        return 0
    ops = loaded.model.ops
    if not ops.is_batch_stable:
        logger.warning("KVASIR_SPECULATE stays off: with %s an answer's bits depend on the rows of its steps", ops.name)
        return 0
    return settings.draft_tokens


def _wants_mtp_head(settings: ServiceSettings) -> bool:
    """Return whether to load an MTP head: drafts are on, and exact with this dense path."""
    return settings.speculate != "off" and Dense(settings.dense) is Dense.KX1


def _slots(settings: ServiceSettings, memory: Callable[[], int | None]) -> tuple[int, int]:
    """Return the numbers of slots and of tokens in each. The cache that gives a slot's size takes no memory."""
    with GGUFIndex.open(settings.model) as index:
        card = ModelCard.from_index(index)
        n_ctx = min(settings.n_ctx or 4096, card.n_ctx)
        ops = make_ops(Dense(settings.dense), settings.n_threads, Device(settings.device))
        config = read_config(index.metadata)
        if _wants_mtp_head(settings) and has_mtp_head(index, config):
            config = config.with_mtp_layer()
        one = SlotCache(config, n_slot=1, n_ctx=n_ctx, dtype=ops.dtype)
    budget = settings.kv_budget_bytes
    if budget is None and ops.device.type == "cpu":  # the machine's memory says nothing about a GPU's
        advice = too_many_slots(one.slot_bytes, settings.n_slot, n_ctx, memory())
        if advice is not None:
            logger.warning("%s: %s", settings.model_name, advice)
    return slots_for_budget(one.slot_bytes, settings.n_slot, budget, one.recurrent_bytes), n_ctx


def too_many_slots(slot_bytes: int, n_slot: int, n_ctx: int, available: int | None) -> str | None:
    """Return advice for the operator if `n_slot` full slots of `slot_bytes` exceed the available bytes, else None."""
    needed = n_slot * slot_bytes
    if available is None or needed <= available:
        return None
    return (
        f"{n_slot} slots of {n_ctx} tokens take {format_size(needed)} when all are full ({format_size(slot_bytes)} "
        f"each), and {format_size(available)} of memory are available: set KVASIR_KV_BYTES to a limit, or lower "
        "KVASIR_SLOTS or KVASIR_CTX"
    )
