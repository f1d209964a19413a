"""The words of the panels: what each means, its unit, what is good, and what to turn. Pure.

The help screen, the panels' tooltips and ``/help WORD`` all read this table. What a setting means is
taken from the option table.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ds4chat.settings.schema import TUNING
from ds4chat.settings.validate import range_of
from ds4chat.tui.kit.lines import BLANK, Line

INTRODUCTION = (
    "MTP, multi-token prediction, has a small drafter guess the next few tokens before the large model, the "
    "target, is asked.",
    "The target then checks all guesses in one pass, which costs little more than writing a single token.",
    "Guesses that match its own choice are accepted together; the first that does not is replaced by its own "
    "token.",
    "In exact mode the text is therefore what the target itself would have written; only the speed changes.",
    "It pays off when many guesses are accepted and a pass over several tokens is cheap; otherwise it costs "
    "time. The × figure says which.",
    "Depth is how many tokens are guessed per step; auto lets ds4chat choose by what it measures.",
)
"""What MTP is, in six sentences."""

LEGEND: dict[str, str] = {
    "accepted": "a draft that the target accepted",
    "corrected": "the target's token for a rejected draft",
    "bonus": "one more token after a full acceptance",
    "plain": "no draft was judged in its step",
    "approximate": "a draft accepted only by its ratio",
    "unknown": "the server did not report its origin",
}
"""The looks of tokens, and what each means."""


@dataclass(frozen=True, slots=True)
class Term:
    """One word."""

    name: str
    """As shown on the screen."""
    place: str
    """The title of its panel; "text" for the transcript and the status line."""
    means: str
    unit: str = ""
    good: str = ""
    """What is good."""
    advice: str = ""
    """What to change to get a better value."""
    aliases: tuple[str, ...] = ()

    @property
    def sentences(self) -> str:
        """Everything as sentences."""
        parts = [f"{self.means}."]
        parts += [f"Unit: {self.unit}."] if self.unit else []
        parts += [f"Good: {self.good}."] if self.good else []
        parts += [f"Try: {self.advice}."] if self.advice else []
        return " ".join(parts)


_DEPTH = "depth (F7, F8), or /draft auto"
_A, _T, _C = "Acceptance", "Timings", "Confidence"

TERMS: tuple[Term, ...] = (
    Term("drafted", _A, "Tokens that the drafter guessed in this reply", "tokens", "", _DEPTH),
    Term(
        "judged",
        _A,
        "Drafts that the target compared; those after a rejected one are dropped unjudged",
        "tokens",
        "close to drafted",
        "a smaller depth drops fewer",
    ),
    Term("accepted", _A, "Drafts that became part of the text", "tokens", "close to judged", _DEPTH),
    Term(
        "rate",
        _A,
        "Accepted drafts out of the judged ones in this reply",
        "%",
        "above 60 % it usually pays off; below 40 % it seldom does",
        "another drafter (/mtp), a gate (/gate), a lower temperature",
        ("acceptance",),
    ),
    Term(
        "mean len",
        _A,
        "Accepted drafts per step in which drafts were judged, on average",
        "tokens",
        "close to the depth",
        "below half the depth, a smaller depth",
        ("mean length", "mean accepted length"),
    ),
    Term(
        "tok/step",
        _A,
        "Tokens that one step adds to the text; plain decoding has 1",
        "tokens",
        "well above 1: it has to make up for the longer steps",
        _DEPTH,
    ),
    Term(
        "lossy",
        _A,
        "Drafts accepted only by their ratio, where the target would have written another token",
        "tokens",
        "0: the text is the target's own",
        "/margin 1 is exact",
        ("by ratio alone",),
    ),
    Term("session", _A, "The rate over all replies since the start", "%", "as the rate", "as the rate"),
    Term(
        "full",
        _A,
        "Steps in which every draft was accepted",
        "steps",
        "many: then a larger depth may pay off",
        _DEPTH,
    ),
    Term(
        "partial", _A, "Steps in which some drafts were accepted, and then one rejected", "steps", "", _DEPTH
    ),
    Term(
        "miss",
        _A,
        "Steps whose first draft was rejected: drafting gained nothing",
        "steps",
        "few",
        "a gate (/gate) stops drafts that the drafter is unsure of",
    ),
    Term(
        "gated",
        _A,
        "Steps in which the gate left no draft, because the drafter was unsure of its first",
        "steps",
        "fewer misses than without the gate",
        "/gate 0 is off",
    ),
    Term("plain", _A, "Steps without a draft: none was asked for, or none was possible", "steps"),
    Term(
        "fallback",
        _A,
        "Steps whose drafts could not be verified, so that one token was decoded instead. With two colours "
        "(F6), every token that is not an accepted draft",
        "steps",
        "0",
        "the log (F12) says why",
    ),
    Term(
        "plain decoding",
        _A,
        "Speed against the same model without MTP, measured on this machine: 1.5× is half as fast again",
        "×",
        "above 1.00×; below it MTP costs time here",
        "depth, /draft auto, or /mtp off",
        ("×", "speedup"),
    ),
    Term("draft", _T, "Time of the drafter in a step", "ms", "small compared with verify", "a smaller depth"),
    Term(
        "verify",
        _T,
        "The target's pass over the drafts of a step",
        "ms",
        "little more than a plain pass",
        "a smaller depth; more threads (-t) or layers on the GPU (-ngl)",
    ),
    Term("accept", _T, "Comparing and sampling", "ms", "close to 0", "/set top-k 40"),
    Term(
        "rollback",
        _T,
        "Removing rejected drafts from the context",
        "ms",
        "close to 0",
        "a smaller depth",
    ),
    Term("other", _T, "The rest of a step", "ms", "close to 0"),
    Term("total", _T, "A whole step, of one or several tokens", "ms", "below tok/step times a plain pass"),
    Term(
        "prefill",
        _T,
        "How fast the prompt was read; what the context already holds is not read again",
        "tokens a second",
    ),
    Term(
        "first",
        _T,
        "From the request to the first token",
        "ms",
        "",
        "shorter prompts; -b and -ub",
        ("first token",),
    ),
    Term(
        "decode",
        _T,
        "How fast the reply was written",
        "tokens a second",
        "above plain decoding",
        _DEPTH,
        ("tok/s",),
    ),
    Term("step", _C, "Number of the step in the reply: one draft, one check"),
    Term("p", _C, "Position of the draft among those of its step, from 1 on", "", "", "", ("position",)),
    Term("draft", _C, "The token that the drafter guessed"),
    Term("target", _C, "The token that the target chose there itself"),
    Term(
        "ratio",
        _C,
        "The target's probability of the draft divided by that of its likeliest token",
        "0 to 1",
        "1: the draft is the likeliest token",
        "a margin below it would have accepted the draft",
    ),
    Term(
        "gap",
        _C,
        "How far the target's best logit leads its second: how sure the target was",
        "logits",
        "near 0, two tokens were almost equally likely",
    ),
    Term(
        "d.gap",
        _C,
        "How far the drafter's best logit leads its second: how sure the drafter was",
        "logits",
        "large for accepted drafts and small for rejected ones: then a gate between the two pays off",
        "/gate stops drafts below it",
        ("draft gap",),
    ),
    Term("d.prob", _C, "The drafter's own probability of its draft", "0 to 1", "as the d.gap", "", ("prob",)),
    Term(
        "bonus", "Text", "The target's token after a full acceptance, which came for free", "", "many", _DEPTH
    ),
    Term("corrected", "Text", LEGEND["corrected"].capitalize(), "", "few"),
    Term(
        "ctx",
        "Text",
        "Tokens in the context, and how many it holds",
        "tokens",
        "room for the next prompt and reply",
        "/ctx N, or /drop N leaves out the oldest prompts",
        ("context",),
    ),
    *(
        Term(
            option.short,
            "Tuning",
            option.help.removesuffix("."),
            f"{range_of(option)}{f' ({option.unit})' if option.unit else ''}",
            "",
            f"/set {option.key} VALUE",
            (option.key,),
        )
        for option in TUNING
    ),
    Term("MTP", "Tuning", "Speculation runs, or is paused", "", "", "Ctrl+T, or /mtp on and off"),
    Term(
        "mode",
        "Tuning",
        "Exact: the target's own text. Approximate: a margin below 1 takes likely drafts too. Strict: the "
        "tokens of one-token decoding, proven at load",
        "",
        "exact, unless you measure what approximate changes",
        "the margin, or /set mtp-strict on",
        ("exact", "approximate", "strict"),
    ),
)


def find(words: str) -> list[Term]:
    """The terms with this name, or else those that mention it, in any letter case."""
    wanted = words.strip().lower()
    named = [
        term for term in TERMS if wanted in (name.lower() for name in (term.name, term.place, *term.aliases))
    ]
    return named or [term for term in TERMS if wanted in f"{term.name} {term.sentences}".lower()]


def explain(place: str, text: str, column: int) -> str:
    """What the word at a column of a panel's row means, or the nearest one before it; empty where the row has
    none."""
    terms = {name: term for term in TERMS if term.place == place for name in (*term.aliases, term.name)}
    names = "|".join(re.escape(name) for name in sorted(terms, key=len, reverse=True))
    if not names:
        return ""
    found = list(re.finditer(rf"(?<![\w.])(?:{names})(?![\w.])", text))
    before = [match for match in found if match.start() <= column]
    match = before[-1] if before else found[0] if found else None
    if match is None:
        return ""
    term = terms[match[0]]
    return f"{term.name}: {term.sentences}"


def introduction_lines(width: int) -> list[Line]:
    """What MTP is, and the looks of the tokens."""
    lines: list[Line] = [(("What MTP is", "strong"),)]
    lines += [((f"  {line}", ""),) for line in textwrap.wrap(" ".join(INTRODUCTION), max(20, width - 4))]
    lines += [BLANK, (("The colours of the text", "strong"),)]
    for name, means in LEGEND.items():
        rows = textwrap.wrap(means, max(20, width - 17))
        lines.append((("  ", ""), (f"{name:<13}", name), (rows[0], "")))
        lines += [((f"{'':<15}{row}", ""),) for row in rows[1:]]
    return [*lines, BLANK]


def term_lines(terms: Sequence[Term], width: int) -> list[Line]:
    """Terms with their sentences."""
    lines: list[Line] = []
    for term in terms:
        lines.append((("  ", ""), (term.name, "mark"), (f"  {term.place}", "muted")))
        lines += [((f"    {line}", ""),) for line in textwrap.wrap(term.sentences, max(20, width - 6))]
    return lines
