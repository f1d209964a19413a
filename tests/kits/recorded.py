"""Steps made by hand for the analysis tests."""

from __future__ import annotations

from collections.abc import Sequence

from ds4chat.engine.events import FullRow, Judged, Outcome, Phases, Step, Token, Tuning

TUNING = Tuning(depth=3)
MS = Phases(1.234, 18.1, 0.25, 0.125, 0.5, 20.209)


def judged(
    position: int,
    accepted: bool,
    *,
    ratio: float | None = None,
    gap: float = 2.0,
    draft_gap: float | None = 1.0,
    draft_prob: float | None = 0.5,
    texts: tuple[str, str] = (" a", " b"),
    by_ratio: bool = False,
    full: FullRow | None = None,
) -> Judged:
    """A row whose draft is the target's choice if it is accepted, unless ``by_ratio``."""
    match = accepted and not by_ratio
    return Judged(
        position=position,
        draft=100 + position,
        draft_text=texts[0],
        target=100 + position if match else 900,
        target_text=texts[0] if match else texts[1],
        accepted=accepted,
        by="match" if match else "ratio" if accepted else "",
        ratio=ratio if ratio is not None else 1.0 if match else 0.125,
        gap=gap,
        draft_gap=draft_gap,
        draft_prob=draft_prob,
        full=full,
    )


def step(
    index: int,
    rows: Sequence[Judged],
    *,
    drafted: int | None = None,
    depth: int | None = None,
    emitted: int | None = None,
    outcome: Outcome | None = None,
    tuning: Tuning = TUNING,
    reply: int = 1,
    ms: Phases = MS,
    drafter: str = "nextn-support",
) -> Step:
    """A step with these judged rows; what is not given follows from them."""
    accepted = sum(row.accepted for row in rows)
    drafted = len(rows) if drafted is None else drafted
    if outcome is None:
        outcome = (
            "plain" if not drafted else "full" if accepted == drafted else "partial" if accepted else "miss"
        )
    count = accepted + 1 if emitted is None else emitted
    return Step(
        reply=reply,
        index=index,
        tokens=tuple(Token(id=i, text="x", origin="plain") for i in range(count)),
        drafted=drafted,
        judged=tuple(rows),
        outcome=outcome,
        ms=ms,
        tuning=tuning,
        depth=drafted if depth is None else depth,
        drafter=drafter,
        context_used=10,
    )


def draft(verdicts: str, **more: object) -> list[Judged]:
    """Rows from a string such as "++-": accepted, accepted, rejected."""
    return [judged(i, verdict == "+", **more) for i, verdict in enumerate(verdicts, 1)]  # type: ignore[arg-type]
