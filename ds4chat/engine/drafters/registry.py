"""How each kind of drafter of ds4chat.models.kinds is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ds4chat.engine.drafters.assistant import Assistant
from ds4chat.engine.drafters.base import Drafter
from ds4chat.engine.drafters.chained import ChainedNextN
from ds4chat.engine.drafters.eagle3 import Eagle3
from ds4chat.engine.drafters.model import DraftModel
from ds4chat.engine.drafters.nextn import NextN
from ds4chat.engine.llama import CacheConfig, Context, Model


class Open(Protocol):
    """Makes a drafter for a target. ``model``: the support file's, which the drafter closes unless LlamaError
    is raised, or the target's own for a drafter inside it."""

    def __call__(
        self, target: Context, model: Model, *, max_depth: int, threads: int, cache: CacheConfig
    ) -> Drafter: ...


@dataclass(frozen=True, slots=True)
class Opener:
    """A row of the table. ``mtp``: the model must be loaded with its NextN blocks, which llama.cpp leaves out
    by default."""

    open: Open
    mtp: bool = False


def _nextn(target: Context, model: Model, *, max_depth: int, threads: int, cache: CacheConfig) -> Drafter:
    """One NextN block, or several that draft in turn."""
    kind = ChainedNextN if model.n_layer_nextn > 1 else NextN
    return kind(target, model, max_depth=max_depth, threads=threads, cache=cache)


OPENERS: Mapping[str, Opener] = {
    "nextn-embedded": Opener(_nextn, mtp=True),
    "nextn-support": Opener(_nextn, mtp=True),
    "gemma4-assistant": Opener(Assistant, mtp=True),
    "eagle3": Opener(Eagle3),
    "draft-model": Opener(DraftModel),
}
