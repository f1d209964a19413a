"""The filter line: what is typed, as a Filter over judged rows, with its completion. Pure.

Terms stand beside each other, and all must hold; several outcomes are alternatives:

    miss partial            outcome of the row's step
    accepted rejected lossy what became of the draft
    pos=2  pos=1,3  pos=2..4  pos>2
    ratio<0.5  gap>=1  dgap=0.5..2  prob>0.9
    "the"                   part of the draft's or the target's text
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ds4chat.analysis.filters import Filter
from ds4chat.engine.events import MAX_DEPTH, Outcome
from ds4chat.engine.stats import OUTCOMES

VERDICTS = ("accepted", "rejected", "lossy")
RANGES = {"ratio": "ratio", "gap": "gap", "dgap": "draft_gap", "prob": "draft_prob"}
"""Name in the filter line: field of the Filter."""
HALF_A_DIGIT = {"ratio": 0.0005, "prob": 0.0005, "gap": 0.005, "dgap": 0.005}
"""``=`` finds what the table shows as that number: half of its last digit to either side."""
FORMS = (*VERDICTS, *OUTCOMES, "pos=", "ratio<", "gap<", "dgap<", "prob<")
EXAMPLES = 'miss · lossy · pos=2 · ratio<0.5 · gap=1..3 · dgap · prob · "text"'

_TERM = re.compile(r"([A-Za-z_]+)(<=|>=|<|>|=)(.*)")
_WORD = re.compile(r'"(?P<text>[^"]*)(?:"|$)|(?P<word>[^\s"]+)')


class QueryError(Exception):
    """The line is no filter; the text is a sentence that says what is wrong with it."""


@dataclass(slots=True)
class _Terms:
    """A Filter while its terms are read."""

    accepted: bool | None = None
    lossy: bool | None = None
    outcomes: set[Outcome] = field(default_factory=set)
    positions: set[int] | None = None
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    text: str = ""


def parse_query(line: str) -> Filter:
    """The filter that a line means; an empty line is none at all. Raises QueryError."""
    terms = _Terms()
    for word, quoted in _words(line):
        if quoted:
            _text(terms, word)
        elif match := _TERM.fullmatch(word):
            _comparison(terms, *match.groups())
        else:
            _name(terms, word.lower())
    return Filter(
        accepted=terms.accepted,
        lossy=terms.lossy,
        outcomes=frozenset(terms.outcomes),
        positions=frozenset(terms.positions or ()),
        text=terms.text,
        **{RANGES[name]: bounds for name, bounds in terms.ranges.items()},  # type: ignore[arg-type]
    )


def complete(line: str) -> str | None:
    """The line with its last word completed; None where there is nothing to complete."""
    if line.count('"') % 2 or not line or line[-1].isspace():
        return None
    word = re.split(r'[\s"]', line)[-1].lower()
    found = next((form for form in FORMS if word and form.startswith(word) and form != word), None)
    return line + found[len(word) :] if found else None


def _words(line: str) -> Iterator[tuple[str, bool]]:
    """Each word, and whether it is a quoted text. A quote that is still open reaches to the end."""
    for match in _WORD.finditer(line):
        text = match["text"]
        if text is None:
            yield match["word"], False
        elif text:
            yield text, True


def _text(terms: _Terms, text: str) -> None:
    if terms.text:
        raise QueryError(f'One text at a time: it is either "{terms.text}" or "{text}".')
    terms.text = text


def _name(terms: _Terms, word: str) -> None:
    if word in OUTCOMES:
        terms.outcomes.add(word)
    elif word == "lossy":
        terms.lossy = True
    elif word in VERDICTS:
        if terms.accepted is not None and terms.accepted != (word == "accepted"):
            raise QueryError("No draft is both accepted and rejected: leave one of them out.")
        terms.accepted = word == "accepted"
    elif word in RANGES or word == "pos":
        raise QueryError(f"{word} takes a comparison, as in {_example(word)}.")
    else:
        near = difflib.get_close_matches(word, [*VERDICTS, *OUTCOMES, *RANGES, "pos"], n=1, cutoff=0.6)
        hint = f"Did you mean {near[0]}?" if near else f'A text stands in quotes: "{word}".'
        raise QueryError(f"There is no filter {word}. {hint}")


def _comparison(terms: _Terms, name: str, sign: str, value: str) -> None:
    name = name.lower()
    if name == "pos":
        found = _positions(sign, value)
        terms.positions = found if terms.positions is None else terms.positions & found
        if not terms.positions:
            raise QueryError("No position is in all of these ranges: leave one of them out.")
    elif name in RANGES:
        low, high = _bounds(name, sign, value)
        before = terms.ranges.get(name, (-math.inf, math.inf))
        terms.ranges[name] = max(low, before[0]), min(high, before[1])
    else:
        near = difflib.get_close_matches(name, [*RANGES, "pos"], n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]}?" if near else "There are ratio, gap, dgap, prob and pos."
        raise QueryError(f"There is no column {name}. {hint}")


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
        half = HALF_A_DIGIT[name]
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
        raise QueryError(f"{name} takes a number{shown}, as in {_example(name)}.")
    return value


def _positions(sign: str, value: str) -> set[int]:
    every = set(range(1, MAX_DEPTH + 1))
    if sign == "=":
        found: set[int] = set()
        for part in value.split(","):
            low, dots, high = part.partition("..")
            first = _position(low)
            found |= set(range(first, _position(high) + 1)) if dots else {first}
    else:
        inside = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[sign]
        number = _position(value)
        found = {position for position in every if inside(position, number)}
    if not found:
        raise QueryError(f"pos{sign}{value} is empty: positions run from 1 to {MAX_DEPTH}.")
    return found


def _position(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= MAX_DEPTH:
        shown = f", not {text}" if text else ""
        raise QueryError(f"pos takes a position from 1 to {MAX_DEPTH}{shown}, as in pos=2 or pos=1,3.")
    return int(text)


def _example(name: str) -> str:
    return {
        "pos": "pos=2",
        "ratio": "ratio<0.5 or ratio=0.2..0.8",
        "gap": "gap>1 or gap=0..2",
        "dgap": "dgap<1 or dgap=0.5..2",
        "prob": "prob>0.9 or prob=0.2..0.8",
    }[name]
