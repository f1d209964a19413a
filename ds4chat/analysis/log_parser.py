"""Reads the logs that --mtp-timing, --mtp-spec-log and --mtp-conf-log write to stderr.

Lines of other programs, truncated lines and unknown fields are skipped, never an error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from ds4chat.analysis.rows import OUTCOME_CODE
from ds4chat.engine.events import Judged, Step, Token
from ds4chat.engine.stats import PHASES

T = TypeVar("T")

_LINE = re.compile(r"ds4chat: mtp (timing|spec|conf)\b ?(.*)")
_FIELD = re.compile(r'([A-Za-z0-9_]+)=("(?:[^"\\]|\\.)*"|\[.*\]|[^\s"\[]\S*)')
_NUMBERS = {
    "timing": ("drafted", "committed", "emitted", "depth", *(f"{phase}_ms" for phase in PHASES)),
    "spec": ("drafted", "accepted", "emitted", "depth"),
    "conf": ("drafted", "committed", "depth"),
}
"""Numbers that a line of each kind must have."""
_UNNAMED = Token(-1, "", "plain")
"""A log says how many tokens a step emitted, not which."""
MOST_EMITTED = 1 << 16


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """The contents of a log."""

    steps: list[Step]
    """In the order of their first line."""
    broken: int
    """Lines that lack a required field, such as a truncated last line, and steps with impossible numbers."""


def parse_log(lines: Iterable[str]) -> ParsedLog:
    """The steps that a log's lines describe."""
    parser = _Parser()
    for line in lines:
        parser.feed(line)
    return parser.finish()


@dataclass(slots=True)
class _StepLines:
    """What the lines of one step say: its timing, spec and conf lines, in any order."""

    reply: int
    index: int
    fields: dict[str, str] = field(default_factory=dict)
    judged: dict[int, Judged] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    """The kinds of its lines; each comes once, conf once per position."""

    def step(self) -> Step:
        """The step; what no line says is computed from the rest, or NaN. Raises ValueError."""
        judged = tuple(self.judged[position] for position in sorted(self.judged))
        given = self.fields.get
        drafted, accepted = int(self.fields["drafted"]), int(self.fields["committed"])
        emitted = int(given("emitted", accepted + 1))
        if not 0 <= emitted <= MOST_EMITTED:
            raise ValueError(f"a step of {emitted} tokens")
        return _checked(
            {
                "reply": self.reply,
                "index": self.index,
                "tokens": (_UNNAMED,) * emitted,
                "drafted": drafted,
                "judged": judged,
                "outcome": given("outcome") or _outcome(drafted, accepted),
                "ms": {phase: given(f"{phase}_ms", math.nan) for phase in PHASES},
                "tuning": {
                    "margin": given("margin", 1.0) if given("mode") == "approximate" else 1.0,
                    "gate": given("gate", 0.0),
                },
                "depth": self.fields["depth"],
                "drafter": "",
                "context_used": 0,
                "baseline": given("baseline", False),
            },
            Step,
        )


def _outcome(drafted: int, accepted: int) -> str:
    if not drafted:
        return "plain"
    if accepted >= drafted:
        return "full"
    return "partial" if accepted else "miss"


class _Parser:
    def __init__(self) -> None:
        self.broken = 0
        self.steps: dict[tuple[int, int], _StepLines] = {}
        self.reply_of: dict[int, int] = {}
        """Reply number in the log -> number of the reply here, unique over several processes."""

    def feed(self, line: str) -> None:
        """Parse one line."""
        match = _LINE.search(line.rstrip("\r\n"))
        if match is None:
            return
        kind, rest = match.groups()
        fields = dict(_FIELD.findall(rest))
        try:
            self._add(kind, rest, fields)
        except (KeyError, ValueError, RecursionError):
            self.broken += 1

    def finish(self) -> ParsedLog:
        """The log so far, without steps whose numbers are impossible."""
        steps = []
        for lines in self.steps.values():
            try:
                steps.append(lines.step())
            except ValueError:
                self.broken += 1
        return ParsedLog(steps, self.broken)

    def _add(self, kind: str, rest: str, fields: dict[str, str]) -> None:
        """Raises KeyError or ValueError for a line that lacks a field or has a wrong one."""
        for name in _NUMBERS[kind]:
            float(fields[name])
        if kind == "conf":
            judged = _judged(fields)
            lines = self._lines(fields, f"conf{judged.position}")
            lines.judged[judged.position] = judged
        elif kind == "spec":
            verdict = rest.split(" ", 1)[0]
            outcome = "full" if verdict == "accept" else verdict
            if outcome not in OUTCOME_CODE:
                raise ValueError(verdict)
            fields |= {"committed": fields["accepted"], "outcome": outcome}
            lines = self._lines(fields, kind)
        else:
            lines = self._lines(fields, kind)
        lines.fields |= fields

    def _lines(self, fields: dict[str, str], kind: str) -> _StepLines:
        """The lines of the step that a line belongs to. Reply numbers start over in each process: a second
        line of a kind that the step has already is from the log of another process."""
        number, index = int(fields["reply"]), int(fields["step"])
        reply = self.reply_of.get(number)
        known = self.steps.get((reply, index)) if reply is not None else None
        if known is not None and kind in known.kinds:
            self.reply_of.clear()
            reply = None
        if reply is None:
            used = {key[0] for key in self.steps}
            reply = self.reply_of[number] = number if number not in used else max(used) + 1
        lines = self.steps.setdefault((reply, index), _StepLines(reply, index))
        lines.kinds.add(kind)
        return lines


def _judged(fields: dict[str, str]) -> Judged:
    values: dict[str, Any] = dict(fields)
    for name in ("draft_text", "target_text"):
        values[name] = json.loads(fields[name])
    for name in ("ratio", "gap", "draft_gap", "draft_prob"):
        values[name] = None if math.isnan(float(fields[name])) else float(fields[name])
    values["by"] = "" if fields["by"] == "none" else fields["by"]
    if "top" in fields:
        values["full"] = {**fields, "entropy": fields["entropy_nats"], "top": json.loads(fields["top"])}
    return _checked(values, Judged)


def _checked(values: dict[str, Any], kind: type[T]) -> T:
    """The event of these values, numbers among them as text. Raises ValueError for a number outside its
    range."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
