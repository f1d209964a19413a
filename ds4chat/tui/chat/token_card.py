"""The token card: everything known about one token, below the transcript."""

from __future__ import annotations

from rich.cells import cell_len

from ds4chat.engine.events import UNKNOWN_ID, Judged, Phases
from ds4chat.tui.conversation import Place, Reply
from ds4chat.tui.glossary import LEGEND
from ds4chat.tui.kit.figures import percent, token_text
from ds4chat.tui.kit.lines import Line, LinesView, Span, style_sheet

OUTCOMES = {
    "full": "all drafts accepted",
    "partial": "some drafts accepted",
    "miss": "first draft rejected",
    "gated": "the gate left no draft",
    "plain": "no draft asked for",
    "fallback": "decoded one token instead",
    "unknown": "the server did not report it",
}
VERDICTS = {
    "match": ("✓ match", "good"),
    "server": ("✓ accepted", "good"),
    "ratio": ("≈ ratio", "warning"),
    "": ("✗ rejected", "bad"),
}
LABEL = 7
"""Least width of the labels at the left; in a long reply they are wider."""


def card_lines(reply: Reply, number: int, width: int) -> list[Line]:
    """What a token is, its draft, the distribution, its step: a line each, or more if ``width`` is small."""
    place = reply.place(number)
    parts = [_what(reply, number, place)]
    if place is None:
        parts.append(("", [("its step is unknown", "muted")]))
    else:
        judged = place.judged
        if judged is None:
            parts.append(("draft", [("none was judged here", "muted")]))
        else:
            parts += [_draft(judged), _rows(judged)]
        parts.append(_step(place))
    longest = (
        f"{len(reply.tokens)}/{len(reply.tokens)}",
        f"step {reply.steps[-1].index if reply.steps else 0}",
    )
    column = max(LABEL, *map(len, longest))
    return [line for label, spans in parts for line in _wrapped(label, spans, column + 3, width)]


Part = tuple[str, list[Span]]


def _wrapped(label: str, spans: list[Span], column: int, width: int) -> list[Line]:
    """The spans after a label, from a column on and two cells apart; one that does not fit begins a line."""
    lines: list[list[Span]] = [[(f" {label}".ljust(column), "muted")]]
    used = column
    for text, role in spans:
        size = cell_len(text) + 2
        if used + size - 2 > width and used > column:
            lines.append([(" " * column, "")])
            used = column
        lines[-1] += [(text, role), ("  ", "")]
        used += size
    return [tuple(line) for line in lines]


def _what(reply: Reply, number: int, place: Place | None) -> Part:
    token = reply.tokens[number]
    by_ratio = place is not None and place.judged is not None and place.judged.by == "ratio"
    why = LEGEND["approximate" if by_ratio else token.origin]
    spans = [
        (_quoted(token.text), "strong"),
        (f"id {token.id}" if token.id != UNKNOWN_ID else "id unknown", "muted"),
    ]
    if not token.text:
        spans.append(("a part of the next character, or a mark", "muted"))
    last = str(len(reply.tokens))
    return f"{number + 1:>{len(last)}}/{last}", [*spans, (token.origin, "mark"), (why, "")]


def _draft(judged: Judged) -> Part:
    mark, role = VERDICTS[judged.by]
    named = judged.accepted or judged.draft != UNKNOWN_ID
    spans: list[Span] = [
        (_quoted(judged.draft_text) if named else "unknown", "strong" if named else "muted"),
        (mark, role),
        (f"target {_quoted(judged.target_text)}", ""),
    ]
    if judged.draft_gap is not None:
        spans.append((f"drafter's gap {judged.draft_gap:.2f}", "muted"))
    if judged.draft_prob is not None:
        spans.append((f"probability {judged.draft_prob:.3f}", "muted"))
    return f"draft {judged.position}", spans


def _rows(judged: Judged) -> Part:
    if judged.ratio is None or judged.gap is None:
        return "row", [("ratio and gap are unknown", "muted")]
    spans: list[Span] = [(f"ratio {judged.ratio:.3f}", ""), (f"gap {judged.gap:.2f}", "")]
    full = judged.full
    if full is not None:
        spans += [
            (f"p(draft) {percent(full.p_draft).strip()}", ""),
            (f"p(target) {percent(full.p_target).strip()}", ""),
            (f"entropy {full.entropy:.2f}", ""),
            *((f"{_quoted(text)} {p:.2f}", "muted") for _, text, p in full.top),
        ]
    return "row", spans


def _step(place: Place) -> Part:
    step = place.step
    ms = step.ms
    return f"step {step.index}", [
        (OUTCOMES[step.outcome], ""),
        (f"token {place.index + 1} of {len(step.tokens)}", "muted"),
        (f"depth {step.depth}", "muted"),
        (step.tuning.mode, "muted"),
        *_times(ms),
    ]


def _times(ms: Phases) -> list[Span]:
    """The step's time, and its phases if they are known."""
    if ms.other == ms.total:
        return [(f"{ms.total:.1f} ms", "")]
    return [
        (f"{ms.total:.1f} ms:", ""),
        (f"draft {ms.draft:.1f}", "muted"),
        (f"verify {ms.verify:.1f}", "muted"),
        (f"accept {ms.accept:.1f}", "muted"),
        (f"rollback {ms.rollback:.1f}", "muted"),
    ]


def _quoted(text: str) -> str:
    return f"‘{token_text(text, max(1, len(text))).strip() or '·'}’"


class TokenCard(LinesView):
    """Shows a token; hidden without one."""

    DEFAULT_CSS = style_sheet(__package__, "token_card.tcss")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.display = False
        self._shown: tuple[Reply, int] | None = None

    def show(self, reply: Reply, number: int) -> None:
        """Show a token of a reply."""
        self._shown = (reply, number)
        self.display = True
        self._draw_lines()

    def hide(self) -> None:
        """Show nothing."""
        self.display = False

    def on_resize(self) -> None:
        self._draw_lines()

    def _draw_lines(self) -> None:
        if self._shown is not None and self.display:
            self.set_lines(card_lines(*self._shown, self.size.width or 60))
