"""The lines around a reply's text: who answers, and what it came to. Pure."""

from __future__ import annotations

import textwrap

from ds4chat.engine.events import limit_words
from ds4chat.text import counted
from ds4chat.tui.conversation import Reply
from ds4chat.tui.kit.figures import whole_percent
from ds4chat.tui.kit.lines import Span
from ds4chat.tui.transcript.slower import why_slower

ENDINGS = {
    "complete": "",
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


def summary_lines(reply: Reply, width: int) -> list[tuple[Span, ...]]:
    """One line of figures for a reply that is over, and the sentences that say why it is cut, if it is, and
    why drafts made it slower, if they did."""
    parts: list[Span] = []
    ending = ENDINGS.get(reply.state, "")
    if reply.state == "limited" and reply.ended is not None:
        ending = limit_words(reply.ended.finish_reason, any_text=bool(reply.tokens))
    if ending:
        parts.append((ending, "error" if reply.state in ("failed", "crashed") else "warning"))
    count, stats = len(reply.tokens), reply.stats
    if count:
        parts.append((counted(count, "token"), "note"))
    if stats.loop_since is not None:
        parts.append((f"repeats itself from token {stats.loop_since + 1:,}", "warning"))
    if stats.decode_tokens_per_s:
        parts.append((f"{stats.decode_tokens_per_s:.1f} tok/s", "note"))
    if stats.plain.speedup:
        baseline = "plain at load" if stats.plain.at_load else "plain"
        parts.append((f"{stats.plain.speedup:.2f}× {baseline}", "note"))
    if stats.acceptance is not None:
        parts.append((f"{whole_percent(stats.acceptance).strip()} accepted", "note"))
    if stats.lossy:
        parts.append((f"{stats.lossy} by ratio alone", "approximate"))
    if not parts:
        parts.append(("no text", "note"))
    lines = [_fit(parts, width)]
    # The banner says why the engine died.
    trouble = reply.trouble if reply.state != "crashed" else ""
    for sentence in (trouble, why_slower(reply.steps, stats.plain)):
        lines += [((piece, "note"),) for piece in textwrap.wrap(sentence, max(8, width))]
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
