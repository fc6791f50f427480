"""What a backbone process serves: its model, with as many slots as the budget holds, and the scale of its sums.

The process opens both at its start, and publishes the model's entry in the directory, which is made here.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from backbone.engine.model.architectures import read_config
from backbone.engine.model.kv_cache import SlotCache
from backbone.engine.model.mtp_experts import has_mtp_head
from backbone.engine.ops.devices import Device
from backbone.engine.serving.loaded_model import Arithmetic, Dense, KernelChoice, LoadedModel, make_ops
from backbone.engine.serving.sum_calibration import sum_scale_of
from backbone.engine.serving.waiting_line import slots_for_budget
from backbone.engine.swarm.sum_scale import SumScale
from backbone.process.slot_memory import available_memory, too_many_slots
from backbone.service_settings import ServiceSettings
from backbone.stream.directory import ModelEntry
from kvasir import __version__
from kvasir.byte_sizes import format_size
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.model_card import ModelCard

logger = logging.getLogger(__name__)


def open_model(settings: ServiceSettings, memory: Callable[[], int | None] = available_memory) -> LoadedModel:
    """Open the model of the settings. `memory` is asked how much is available where no budget bounds the slots.

    Raises GGUFError or UnsupportedModelError for the file, ConfigError when the budget holds no slot.
    """
    n_slot, n_ctx = _slots(settings, memory)
    loaded = LoadedModel.open(
        settings.model,
        n_slot=n_slot,
        n_ctx=n_ctx,
        arithmetic=_arithmetic(settings),
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
        logger.warning("KVASIR_KV_BYTES (%s) holds %d slots of the %d that are wanted", budget, n_slot, settings.n_slot)
    return loaded


def open_sum_scale(settings: ServiceSettings, loaded: LoadedModel) -> SumScale | None:
    """The scale of sums where replies are sums: kept, or measured now. Raises ConfigError when there can be none."""
    if settings.reply != "sum":
        return None
    return sum_scale_of(loaded, settings.sums_dir)


def directory_entry(
    settings: ServiceSettings, loaded: LoadedModel, sum_scale: SumScale | None, *, has_chat: bool
) -> ModelEntry:
    """What clients learn of the model. The fingerprint changes with everything that may change a bit of the answer."""
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
    """How many tokens a sequence may draft at once; 0 where drafts are off, or could change an answer."""
    if settings.speculate == "off":
        return 0
    ops = loaded.model.ops
    if not ops.is_batch_stable:
        logger.warning("KVASIR_SPECULATE stays off: with %s the bits of an answer depend on a step's rows", ops.name)
        return 0
    return settings.draft_tokens


def _arithmetic(settings: ServiceSettings) -> Arithmetic:
    return Arithmetic(
        Dense(settings.dense),
        Device(settings.device),
        settings.fast_rows,
        KernelChoice(settings.kernel),
        settings.gpu_expert_bytes,
    )


def _wants_mtp_head(settings: ServiceSettings) -> bool:
    """Whether an MTP head is of use: drafts are wanted, and before the loading it is certain that they are exact."""
    return settings.speculate != "off" and Dense(settings.dense) is Dense.KX1


def _slots(settings: ServiceSettings, memory: Callable[[], int | None]) -> tuple[int, int]:
    """How many slots of how many tokens. A cache of one slot is made for its size, and takes no memory until used."""
    with GGUFIndex.open(settings.model) as index:
        card = ModelCard.from_index(index)
        n_ctx = min(settings.n_ctx or 4096, card.n_ctx)
        ops = make_ops(_arithmetic(settings), settings.n_threads)
        config = read_config(index.metadata)
        if _wants_mtp_head(settings) and has_mtp_head(index, config):
            config = config.with_mtp_layer()
        one = SlotCache(config, n_slot=1, n_ctx=n_ctx, dtype=ops.dtype)
    budget = settings.kv_budget_bytes
    if budget is None and ops.device.type == "cpu":  # a GPU's memory is not what the machine has
        advice = too_many_slots(one.slot_bytes, settings.n_slot, n_ctx, memory())
        if advice is not None:
            logger.warning("%s: %s", settings.model_name, advice)
    return slots_for_budget(one.slot_bytes, settings.n_slot, budget, one.recurrent_bytes), n_ctx
