"""Reads the logs that --mtp-timing, --mtp-spec-log, --mtp-conf-log and --mtp-probe write to stderr.

Lines of other programs, truncated lines and unknown fields are skipped and counted, never an error. ds4's
own timing, spec, conf and probe lines are read as far as they have the figures; what they count differently
is converted:

- ds4's ``drafted`` and ``committed`` include the first draft, which it verified for free: both are kept one
  lower, so that they count what a verification batch decided;
- ds4's ``margin`` is the drafter's logit gap and becomes ``draft_gap``;
- a ds4 cycle whose first draft missed prints no timing line, so acceptance from the timing lines only would
  be too high; its miss lines count as steps here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from ds4chat.analysis.rows import OUTCOME_CODE, JudgedRows, rows_from_steps
from ds4chat.engine.events import Judged, Step, Token
from ds4chat.engine.stats import PHASES

T = TypeVar("T")

_LINE = re.compile(r"(ds4chat|ds4): (?:mtp )?(timing|spec|conf|probe|summary)\b ?(.*)")
_UNTOLD = Token(-1, "", "plain")
"""A log says how many tokens a step emitted, not which."""
MOST_EMITTED = 1 << 16
_FIELD = re.compile(r'([A-Za-z0-9_]+)=("(?:[^"\\]|\\.)*"|\[.*\]|[^\s"\[]\S*)(?: ms\b)?')


@dataclass(frozen=True, slots=True)
class Probe:
    """One line of --mtp-probe: the token, the draft compared with it, hits and total so far."""

    token: int
    draft: int
    hits: int
    total: int


@dataclass(slots=True)
class ParsedLog:
    """The contents of a log."""

    steps: list[Step] = field(default_factory=list)
    """In the order of their first line."""
    probes: list[Probe] = field(default_factory=list)
    summary: dict[str, float] = field(default_factory=dict)
    """Fields of the last summary, such as acceptance or decode_tokens_per_s."""
    source: Literal["ds4chat", "ds4", ""] = ""
    """The program that wrote the lines; ds4chat if both did."""
    lines: int = 0
    foreign: int = 0
    """Lines that are not of these logs."""
    broken: int = 0
    """Lines of these logs that lack a required field, such as a truncated last line."""

    def rows(self) -> JudgedRows:
        """The judged rows and steps as columns."""
        return rows_from_steps(self.steps)


@dataclass(slots=True)
class _Step:
    """A step while its lines are read: its timing, spec and conf lines, in any order."""

    reply: int
    index: int
    fields: dict[str, str] = field(default_factory=dict)
    judged: dict[int, Judged] = field(default_factory=dict)

    def step(self) -> Step:
        """The step; what no line says is computed from the rest, or NaN. Raises ValueError."""
        judged = tuple(self.judged[position] for position in sorted(self.judged))
        number = self.fields.get
        drafted = int(number("drafted", str(len(judged))))
        accepted = int(number("committed", number("accepted", str(sum(row.accepted for row in judged)))))
        emitted = int(number("emitted", str(accepted + 1)))
        if not 0 <= emitted <= MOST_EMITTED:
            raise ValueError(f"a step of {emitted} tokens")
        return _checked(
            {
                "reply": self.reply,
                "index": self.index,
                "tokens": (_UNTOLD,) * emitted,
                "drafted": drafted,
                "judged": judged,
                "outcome": number("outcome") or _outcome(drafted, accepted),
                "ms": {phase: float(number(f"{phase}_ms", "nan")) for phase in PHASES},
                "tuning": {
                    "margin": float(number("margin", "1")) if number("mode") == "approximate" else 1.0,
                    "gate": float(number("gate", "0")),
                },
                "depth": int(number("depth", str(drafted))),
                "drafter": "",
                "context_used": 0,
                "baseline": number("baseline") == "1",
            },
            Step,
        )


def _outcome(drafted: int, accepted: int) -> str:
    if not drafted:
        return "plain"
    if accepted >= drafted:
        return "full"
    return "partial" if accepted else "miss"


def parse_log(lines: Iterable[str]) -> ParsedLog:
    """The steps, rows and figures of a log's lines."""
    parser = _Parser()
    for line in lines:
        parser.feed(line)
    return parser.finish()


class _Parser:
    def __init__(self) -> None:
        self.log = ParsedLog()
        self.steps: dict[tuple[int, int], _Step] = {}
        self.seen: dict[tuple[int, int], set[str]] = {}
        self.run_of: dict[int, int] = {}
        """Reply number in the log -> number of the reply here, unique over several processes."""
        self.ds4_steps = 0
        self.ds4_micro: _Step | None = None
        """The last line's step, if it may still get its conf line."""
        self.ds4_conf: tuple[Judged, int, int] | None = None
        """A conf line whose timing line has not come yet, with its counts."""

    def feed(self, line: str) -> None:
        """Parse one line."""
        self.log.lines += 1
        match = _LINE.search(line.rstrip("\r\n"))
        if match is None:
            self.log.foreign += 1
            return
        source, kind, rest = match.groups()
        fields = dict(_FIELD.findall(rest))
        try:
            if source == "ds4chat":
                self._own(kind, rest, fields)
                self.log.source = "ds4chat"
            else:
                self._ds4(kind, rest, fields)
                self.log.source = self.log.source or "ds4"
        except (KeyError, ValueError, IndexError, TypeError):
            self.log.broken += 1

    def finish(self) -> ParsedLog:
        """The log so far. A step without any usable figure is left out."""
        self._ds4_flush()
        for step in self.steps.values():
            try:
                self.log.steps.append(step.step())
            except ValueError:
                self.log.broken += 1
        return self.log

    # -- ds4chat's own lines

    def _own(self, kind: str, rest: str, fields: dict[str, str]) -> None:
        if kind == "timing":
            numbers = {name: _float(fields[f"{name}_ms"]) for name in PHASES}
            counts = {name: int(fields[name]) for name in ("drafted", "committed", "emitted", "depth")}
            step = self._step(fields, "timing")
            step.fields.update(fields)
            step.fields.update({f"{name}_ms": str(ms) for name, ms in numbers.items()})
            step.fields.update({name: str(count) for name, count in counts.items()})
        elif kind == "spec":
            counts = {name: int(fields[name]) for name in ("drafted", "accepted", "emitted", "depth")}
            verdict = rest.split(" ", 1)[0]
            outcome = "full" if verdict == "accept" else verdict
            if outcome not in OUTCOME_CODE:
                raise ValueError(outcome)
            step = self._step(fields, "spec")
            for name, value in (*counts.items(), ("outcome", outcome)):
                step.fields.setdefault(name, str(value))
        elif kind == "conf":
            judged = _judged(fields)
            step = self._step(fields, f"conf{judged.position}")
            step.judged[judged.position] = judged
            for name in ("drafted", "committed", "depth", "margin", "gate", "mode"):
                if name in fields:
                    step.fields.setdefault(name, fields[name])
        elif kind == "probe":
            self._probe(fields)
        else:
            self.log.summary.update(
                {name: _float(value) for name, value in fields.items() if not rest.startswith("position=")}
            )

    def _step(self, fields: dict[str, str], part: str) -> _Step:
        """The step that a line belongs to. Reply numbers start over in each process: a second line of a kind
        that the step has already is from the log of another process."""
        reply, index = int(fields["reply"]), int(fields["step"])
        run = self.run_of.get(reply)
        if run is not None and part in self.seen.get((run, index), ()):
            self.run_of.clear()
            run = None
        if run is None:
            used = {key[0] for key in self.steps}
            run = self.run_of[reply] = reply if reply not in used else max(used) + 1
        self.seen.setdefault((run, index), set()).add(part)
        return self.steps.setdefault((run, index), _Step(run, index))

    def _probe(self, fields: dict[str, str]) -> None:
        hits, total = fields["hit"].split("/")
        self.log.probes.append(Probe(int(fields["token"]), int(fields["draft"]), int(hits), int(total)))

    # -- ds4's lines

    def _ds4(self, kind: str, rest: str, fields: dict[str, str]) -> None:
        if "failed" in rest:
            return  # the figures of that cycle come on other lines
        if kind == "probe":
            self._probe(fields)
        elif kind == "conf":
            self._ds4_judged(fields)
        elif kind == "timing":
            self._ds4_timing(rest, fields)
        elif rest.startswith("miss first"):
            self._ds4_step(0, 0, {"outcome": "miss", "emitted": "1"}, micro=False)
        elif rest.startswith("seq"):
            return  # a timing line of the same cycle carries the same counts
        else:
            raise ValueError(rest)

    def _ds4_timing(self, rest: str, fields: dict[str, str]) -> None:
        drafted = int(fields["drafted"])
        committed = int(fields["committed"] if "committed" in fields else fields["verified"])
        ms = {
            "draft_ms": _float(fields["draft"]),
            "verify_ms": _float(fields["verify"]),
            "accept_ms": 0.0,
            "rollback_ms": sum(
                _float(fields[name])
                for name in ("snapshot", "prefix", "replay", "exact_replay")
                if name in fields
            ),
            "total_ms": _float(fields["total"]),
        }
        ms["other_ms"] = max(0.0, ms["total_ms"] - sum(v for name, v in ms.items() if name != "total_ms"))
        extra = {name: str(value) for name, value in ms.items()}
        extra["emitted"] = str(committed + 1)
        extra["depth"] = str(max(0, drafted - 1))
        if rest.startswith("margin-skip"):
            extra["outcome"] = "gated"
            extra["gate"] = fields.get("threshold", "0")
            drafted = 1
        micro = rest.startswith("micro")
        if not micro:
            self._ds4_flush()
        self._ds4_step(max(0, drafted - 1), max(0, committed - 1), extra, micro)

    def _ds4_judged(self, fields: dict[str, str]) -> None:
        """A conf line: the second draft against the first row, and the gap of the last draft. It may come
        before or after its cycle's timing line, or without one."""
        drafted, committed = int(fields["drafted"]), int(fields["committed"])
        draft, target = int(fields["draft_next"]), int(fields["target_next"])
        gap = _float(fields["margin"])
        judged = _checked(
            {
                "position": 1,
                "draft": draft,
                "draft_text": "",
                "target": target,
                "target_text": "",
                "accepted": draft == target,
                "by": "match" if draft == target else "",
                "ratio": math.nan,
                "gap": math.nan,
                "draft_gap": gap if drafted == 2 else None,
            },
            Judged,
        )
        if self.ds4_micro is not None and not self.ds4_micro.judged:
            self.ds4_micro.judged[1] = judged
            self.ds4_micro = None
        else:
            self._ds4_flush()
            self.ds4_conf = (judged, drafted, committed)

    def _ds4_flush(self) -> None:
        """A conf line without a timing line becomes a step of its own."""
        if self.ds4_conf is not None:
            _, drafted, committed = self.ds4_conf
            self._ds4_step(drafted - 1, committed - 1, {"emitted": str(committed + 1)})

    def _ds4_step(self, drafted: int, accepted: int, extra: dict[str, str], micro: bool = True) -> None:
        step = _Step(0, self.ds4_steps)
        step.fields = {"drafted": str(drafted), "committed": str(accepted), **extra}
        if micro and self.ds4_conf is not None:
            step.judged[1] = self.ds4_conf[0]
            self.ds4_conf = None
        self.ds4_micro = step if micro else None
        self.steps[(-1, self.ds4_steps)] = step
        self.ds4_steps += 1


def _float(text: str) -> float:
    return float(text)


def _text(quoted: str) -> str:
    value = json.loads(quoted)
    if not isinstance(value, str):
        raise ValueError("a text that is not a JSON string")
    return value


def _judged(fields: dict[str, str]) -> Judged:
    by: Any = fields["by"]
    if by not in ("match", "ratio", "server", "none"):
        raise ValueError(by)
    if fields["accepted"] not in ("0", "1"):
        raise ValueError(fields["accepted"])
    optional: dict[str, float | None] = {}
    for name in ("ratio", "gap", "draft_gap", "draft_prob"):
        value = _float(fields[name])
        optional[name] = None if math.isnan(value) else value
    full = None
    if "top" in fields:
        full = {
            "p_draft": _float(fields["p_draft"]),
            "p_target": _float(fields["p_target"]),
            "entropy": _float(fields["entropy_nats"]),
            "top": json.loads(fields["top"]),
        }
    return _checked(
        {
            "position": int(fields["position"]),
            "draft": int(fields["draft"]),
            "draft_text": _text(fields["draft_text"]),
            "target": int(fields["target"]),
            "target_text": _text(fields["target_text"]),
            "accepted": fields["accepted"] == "1",
            "by": "" if by == "none" else by,
            **optional,
            "full": full,
        },
        Judged,
    )


def _checked(values: dict[str, Any], kind: type[T]) -> T:
    """The event of these values. Raises ValueError for a number outside its range, as of a made-up log."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
