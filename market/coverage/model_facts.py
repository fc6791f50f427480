"""The facts about a model that the market needs: its layers with experts, and the bytes of one expert of each layer.

`site_model` opens the site's own model file (KVASIR_MODEL) at its first call in a process. It reads no weights and
never loads torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
from django.conf import settings

from kvasir.errors import KvasirError, SliceError
from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.fingerprint import FLOAT_NAME, KX1_NAME
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import model_experts
from market.errors import MarketError

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ModelFacts:
    """One model as the market sees it. `n_layer` does not count multi-token-prediction layers."""

    name: str
    fingerprint: str
    n_layer: int
    n_expert: int
    d_model: int
    d_ff: int
    expert_bytes: tuple[int, ...]  # of one expert, by layer; 0 for a layer without experts
    kernels: tuple[str, ...] = ()  # by layer: the kernel that workers compute it with; "" for a layer without experts
    aliases: tuple[str, ...] = ()  # other names that clients may use

    def __post_init__(self) -> None:
        if len(self.expert_bytes) != self.n_layer:
            raise SliceError(f"{len(self.expert_bytes)} expert sizes for {self.n_layer} layers")

    @cached_property
    def bytes_by_layer(self) -> Int64:
        """`expert_bytes` as an array [n_layer]."""
        return np.array(self.expert_bytes, np.int64)

    @cached_property
    def moe_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have experts, ascending."""
        return tuple(layer for layer, n_bytes in enumerate(self.expert_bytes) if n_bytes)

    @property
    def n_cell(self) -> int:
        """The number of pairs of layer and expert, layers without experts included."""
        return self.n_layer * self.n_expert

    def is_called(self, name: str) -> bool:
        """Return whether `name` is the model's name, an alias or its fingerprint."""
        return name in {self.name, self.fingerprint, *self.aliases}

    def range_bytes(self, item: ExpertRange) -> int:
        """Return the bytes of all experts of a range."""
        return item.n_experts * self.expert_bytes[item.layer]

    @classmethod
    def from_card(cls, card: ModelCard, name: str | None = None, kernels: dict[int, str] | None = None) -> ModelFacts:
        """Return the facts of a model card; `name` is the site's name of the model, `kernels` are by layer."""
        sizes = {layer.layer: layer.expert_bytes for layer in card.layers}
        known = kernels or {}
        return cls(
            name=name or card.name,
            fingerprint=card.fingerprint,
            n_layer=card.n_layer,
            n_expert=card.n_expert,
            d_model=card.d_model,
            d_ff=card.d_ff,
            expert_bytes=tuple(sizes.get(layer, 0) for layer in range(card.n_layer)),
            kernels=tuple(known.get(layer, "") for layer in range(card.n_layer)),
            aliases=(card.name,),
        )


@dataclass(frozen=True, slots=True)
class SiteModel:
    """The site's model file, open, with its card and facts."""

    index: GGUFIndex
    card: ModelCard
    facts: ModelFacts


class _Opened:
    """The one model of this process."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.path: Path | None = None
        self.model: SiteModel | None = None


_opened = _Opened()


def site_model() -> SiteModel:
    """Return the model that this site serves. Blocks while the file is opened for the first time.

    Raises MarketError 503 with the reason when the file cannot be read.
    """
    path, name = Path(settings.KVASIR_SERVICE.model), settings.KVASIR_SERVICE.model_name
    with _opened.lock:
        if _opened.model is None or _opened.path != path:
            try:
                _opened.model = open_model(path, name)
            except (KvasirError, OSError) as error:
                raise MarketError(503, "no_model", f"the site's model cannot be read: {error}") from error
            _opened.path = path
        return _opened.model


def open_model(path: Path, name: str | None = None) -> SiteModel:
    """Open a model file. Raises the errors of GGUFIndex and ModelCard."""
    index = GGUFIndex.open(path)
    try:
        card = ModelCard.from_index(index)
        return SiteModel(index, card, ModelFacts.from_card(card, name, _kernels(index, card)))
    except BaseException:
        index.close()
        raise


def _kernels(index: GGUFIndex, card: ModelCard) -> dict[int, str]:
    """Return the kernel by layer: KX1 if it supports the types and shapes of every layer, else the float kernel.

    A backbone has one kernel for the whole model and refuses workers with another one.
    """
    from kvasir.kernels.oracle import NumpyKX1Kernel

    kx1 = NumpyKX1Kernel()
    is_refused = any(kx1.refusal(model_experts(index, card, layer)) for layer in card.moe_layers)
    return dict.fromkeys(card.moe_layers, FLOAT_NAME if is_refused else KX1_NAME)
