"""The filter line: parses what is typed into a Filter over judged rows, and completes it. Pure.

The line holds terms, all of which must hold; several outcomes are alternatives:

    miss partial            outcome of the row's step
    accepted rejected lossy verdict on the draft
    pos=2  pos=1,3  pos=2..4  pos>2
    ratio<0.5  gap>=1  dgap=0.5..2  prob>0.9
    "the"                   part of the draft's or the target's text
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ds4chat.analysis.filters import Filter
from ds4chat.engine.events import MAX_DEPTH
from ds4chat.engine.stats import OUTCOMES
from ds4chat.errors import UserFacingError


@dataclass(frozen=True, slots=True)
class _Range:
    """A column that a comparison narrows to a range of numbers."""

    field: str
    """Its name in Filter."""
    half_digit: float
    """``=`` finds what the table shows as that number: half of its last digit to either side."""
    example: str


VERDICTS = ("accepted", "rejected", "lossy")
RANGES = {
    "ratio": _Range("ratio", 0.0005, "ratio<0.5 or ratio=0.2..0.8"),
    "gap": _Range("gap", 0.005, "gap>1 or gap=0..2"),
    "dgap": _Range("draft_gap", 0.005, "dgap<1 or dgap=0.5..2"),
    "prob": _Range("draft_prob", 0.0005, "prob>0.9 or prob=0.2..0.8"),
}
FORMS = (*VERDICTS, *OUTCOMES, "pos=", *(f"{name}<" for name in RANGES))
EXAMPLES = 'miss · lossy · pos=2 · ratio<0.5 · gap=1..3 · dgap · prob · "text"'

_TERM = re.compile(r"([A-Za-z_]+)(<=|>=|<|>|=)(.*)")
_WORD = re.compile(r'"(?P<text>[^"]*)(?:"|$)|(?P<word>[^\s"]+)')


class QueryError(UserFacingError):
    """The line is not a filter."""


def parse_query(line: str) -> Filter:
    """The filter that a line means; an empty line lets every row pass. Raises QueryError."""
    found = Filter()
    for match in _WORD.finditer(line):
        word = match["word"]
        if word is None:
            found = _with_text(found, match["text"])
        elif term := _TERM.fullmatch(word):
            found = _with_comparison(found, term[1].lower(), term[2], term[3])
        else:
            found = _with_name(found, word.lower())
    return found


def complete(line: str) -> str | None:
    """The line with its last word completed; None if there is nothing to complete."""
    if line.count('"') % 2 or not line or line[-1].isspace():
        return None
    word = re.split(r'[\s"]', line)[-1].lower()
    found = next((form for form in FORMS if word and form.startswith(word) and form != word), None)
    return line + found[len(word) :] if found else None


def _with_text(found: Filter, text: str) -> Filter:
    if text and found.text:
        raise QueryError(f'One text at a time: it is either "{found.text}" or "{text}".')
    return replace(found, text=text or found.text)


def _with_name(found: Filter, word: str) -> Filter:
    if word in OUTCOMES:
        return replace(found, outcomes=found.outcomes | {word})
    if word == "lossy":
        return replace(found, lossy=True)
    if word in VERDICTS:
        accepted = word == "accepted"
        if found.accepted not in (None, accepted):
            raise QueryError("No draft is both accepted and rejected: leave one of them out.")
        return replace(found, accepted=accepted)
    if word == "pos":
        raise QueryError("pos takes a comparison, as in pos=2.")
    if word in RANGES:
        raise QueryError(f"{word} takes a comparison, as in {RANGES[word].example}.")
    hint = _nearest(word, (*VERDICTS, *OUTCOMES, *RANGES, "pos")) or f'Put a text in quotes: "{word}".'
    raise QueryError(f"There is no filter {word}. {hint}")


def _with_comparison(found: Filter, name: str, sign: str, value: str) -> Filter:
    if name == "pos":
        positions = _positions(sign, value)
        positions = found.positions & positions if found.positions else positions
        if not positions:
            raise QueryError("No position is in all of these ranges: leave one of them out.")
        return replace(found, positions=positions)
    if name in RANGES:
        field = RANGES[name].field
        low, high = _bounds(name, sign, value)
        before = getattr(found, field) or (-math.inf, math.inf)
        changed: dict[str, Any] = {field: (max(low, before[0]), min(high, before[1]))}
        return replace(found, **changed)
    hint = _nearest(name, (*RANGES, "pos"), 0.4) or "There are ratio, gap, dgap, prob and pos."
    raise QueryError(f"There is no column {name}. {hint}")


def _nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The question whether the most similar word was meant; empty if none is similar."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"Did you mean {near[0]}?" if near else ""


def _bounds(name: str, sign: str, value: str) -> tuple[float, float]:
    """The closed range that a comparison means."""
    if ".." in value and sign == "=":
        low, _, high = value.partition("..")
        bounds = _number(name, low), _number(name, high)
        if bounds[0] > bounds[1]:
            raise QueryError(f"{name}={value} is empty: the smaller end comes first.")
        return bounds
    number = _number(name, value)
    if sign == "=":
        half = RANGES[name].half_digit
        return number - half, number + half
    if sign in ("<", "<="):
        return -math.inf, math.nextafter(number, -math.inf) if sign == "<" else number
    return math.nextafter(number, math.inf) if sign == ">" else number, math.inf


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        shown = f", not {text}" if text else ""
        raise QueryError(f"{name} takes a number{shown}, as in {RANGES[name].example}.")
    return value


def _positions(sign: str, value: str) -> frozenset[int]:
    if sign == "=":
        found: set[int] = set()
        for part in value.split(","):
            low, dots, high = part.partition("..")
            first = _position(low)
            found |= set(range(first, _position(high) + 1)) if dots else {first}
    else:
        inside = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[sign]
        number = _position(value)
        found = {position for position in range(1, MAX_DEPTH + 1) if inside(position, number)}
    if not found:
        raise QueryError(f"pos{sign}{value} is empty: positions run from 1 to {MAX_DEPTH}.")
    return frozenset(found)


def _position(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= MAX_DEPTH:
        shown = f", not {text}" if text else ""
        raise QueryError(f"pos takes a position from 1 to {MAX_DEPTH}{shown}, as in pos=2 or pos=1,3.")
    return int(text)
