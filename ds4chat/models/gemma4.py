"""What a Gemma 4 assistant requires of its target: it attends to that model's cache and has none of its own.

In llama.cpp (llama_model::create_memory) its window layers read the target's layer before the last, its other
layers the last one, whatever those are; the process aborts if a layer reads more than the other one stores.
"""

from __future__ import annotations

from dataclasses import dataclass

from ds4chat.models import fit
from ds4chat.models.fit import Fit
from ds4chat.models.gguf_file import Header
from ds4chat.models.requirements import size_of
from ds4chat.models.summary import kv_heads
from ds4chat.text import shortened


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's part of the cache."""

    window: bool
    heads: int
    key: int | None
    value: int | None

    @property
    def words(self) -> str:
        return f"{self.heads} heads {self.key} and {self.value} wide"


def check(target: Header, support: Header) -> Fit:
    """Raises ModelFileError if the two do not belong together."""
    if target.architecture != "gemma4":
        fit.misfit(support, target, f"it drafts for gemma4, the target is {shortened(target.architecture)}")
    blocks = support.own_integer("block_count") or 0
    if not blocks or blocks != support.own_integer("nextn_predict_layers"):
        support.incomplete("all blocks of an assistant are NextN blocks")
    reason = _reason(target, support)
    if reason:
        fit.misfit(support, target, reason)
    fit.check_vocabulary(target, support)
    return Fit(n_heads=1)


def _reason(target: Header, support: Header) -> str:
    """Why the two do not belong together, or ""."""
    ours, theirs = target.own_integer("embedding_length"), support.own_integer("embedding_length_out")
    if ours != theirs:
        return f"it was made for hidden rows {theirs} wide, the target's are {ours}"
    kept, read = _layers(target), _layers(support)
    if len(kept) < 2:
        return "the target has too few layers"
    for layer in read:
        source = kept[-2] if layer.window else kept[-1]
        kind = "window layers" if layer.window else "full layers"
        if source.window != layer.window:
            return f"it has {kind}, and the target has none where llama.cpp looks for them"
        if source != layer:
            return f"its {kind} read {layer.words}, the target's keep {source.words}"
    return ""


def _layers(header: Header) -> list[_Layer]:
    """Every layer, with llama.cpp's defaults for missing metadata."""
    count = header.own_integer("block_count") or 0
    windows = header.own_each("attention.sliding_window_pattern", count, 0)
    return [
        _Layer(
            bool(window),
            heads,
            size_of(header, "attention.key_length", "_swa" if window else ""),
            size_of(header, "attention.value_length", "_swa" if window else ""),
        )
        for window, heads in zip(windows, kv_heads(header, count))
    ]
