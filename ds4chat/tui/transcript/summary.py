"""The lines around a reply's text: who answers, and what it came to. Pure."""

from __future__ import annotations

import textwrap

from ds4chat.engine.events import Loaded, Replayed
from ds4chat.tui.conversation import Reply
from ds4chat.tui.kit.figures import whole_percent
from ds4chat.tui.panels.acceptance import speedup

Span = tuple[str, str]

TIE = 0.05
"""Logits. Kernels that decode several tokens at once round differently by about this much."""

ENDINGS = {
    "complete": "",
    "limited": "cut at its limit",
    "stopped": "stopped by you",
    "failed": "failed",
    "crashed": "cut off: the engine died",
}


def header_spans(reply: Reply, width: int) -> tuple[Span, ...]:
    """Name of the model, the words that its text must be read with, and that it is being written."""
    spans: list[Span] = [(reply.model[: max(1, width)] or "reply", "name")]
    if reply.lossy:
        spans.append((" · approximate", "approximate"))
    if reply.steps and reply.steps[-1].tuning.strict:
        spans.append((" · strict", "note"))
    if reply.state == "waiting":
        spans.append((" · reading …", "note"))
    return tuple(spans)


def summary_lines(reply: Reply, loaded: Loaded | None, width: int) -> list[tuple[Span, ...]]:
    """One line of figures for a reply that is over, and the sentence that says why it is cut, if it is."""
    parts: list[Span] = []
    ending = ENDINGS.get(reply.state, "")
    if ending:
        parts.append((ending, "error" if reply.state in ("failed", "crashed") else "warning"))
    count = len(reply.tokens)
    if count:
        parts.append((f"{count:,} token{'s' if count != 1 else ''}", "note"))
    stats = reply.stats
    if stats.decode_tokens_per_s:
        parts.append((f"{stats.decode_tokens_per_s:.1f} tok/s", "note"))
    factor = speedup(stats, loaded)
    if factor:
        parts.append((f"{factor:.2f}× plain", "note"))
    if stats.acceptance is not None:
        parts.append((f"{whole_percent(stats.acceptance).strip()} accepted", "note"))
    if stats.lossy:
        parts.append((f"{stats.lossy} by ratio alone", "approximate"))
    if not parts:
        parts.append(("no text", "note"))
    lines = [_fit(parts, width)]
    # Why the engine died stands in the banner while it matters.
    if reply.trouble and reply.state != "crashed":
        lines += [((piece, "note"),) for piece in textwrap.wrap(reply.trouble, max(8, width))]
    return lines


def _fit(parts: list[Span], width: int) -> tuple[Span, ...]:
    """The parts with dots between them, those at the end left out that do not fit."""
    spans: list[Span] = []
    used = 0
    for text, role in parts:
        dot = " · " if spans else ""
        if spans and used + len(dot) + len(text) > width:
            break
        if dot:
            spans.append((dot, "note"))
        spans.append((text, role))
        used += len(dot) + len(text)
    return tuple(spans)


def replay_sentence(replayed: Replayed) -> str:
    """What the lossless check came to."""
    if replayed.detail:
        return replayed.detail
    if replayed.equal:
        return f"Lossless: plain decoding gives the same {replayed.compared:,} tokens."
    tie = "a rounding tie" if replayed.gap < TIE else "more than rounding explains"
    return (
        f"Plain decoding differs at token {replayed.first_difference + 1}: {replayed.plain_text!r} "
        f"in the place of {replayed.spec_text!r}. The target's gap there is {replayed.gap:.3f}: {tie}."
    )
