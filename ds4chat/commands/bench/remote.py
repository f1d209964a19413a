"""The bench of a server: speed, acceptance and time to the first token, by kind of text.

Every prompt is asked once, greedily and in turn over the kinds of text. Speed and step times are the server's
own if it reports them. The gain of speculation is computed from its own steps without drafts, if there are
any. Depths are not compared, because no server lets a request choose one.
"""

from __future__ import annotations

import statistics
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec
from msgspec import Meta

from ds4chat.commands.arguments import UsageError
from ds4chat.commands.bench.running import (
    PAYS,
    ProgressLine,
    check_length,
    reply_of,
    save_path,
    show,
)
from ds4chat.commands.bench.workloads import Workload, workloads
from ds4chat.commands.options import BenchOptions
from ds4chat.commands.running import INTERRUPTED, on_ctrl_c, request_of, say
from ds4chat.engine.control import Control
from ds4chat.engine.events import Count, Event, Loaded, Notice, Tells
from ds4chat.engine.from_settings import load_of, tuning_of
from ds4chat.engine.sessions import AnySession, open_session
from ds4chat.engine.stats import PositionCount, Stats, rounded
from ds4chat.settings.schema import Settings

TOKENS, QUICK_TOKENS = 128, 64
ROUNDS, QUICK_ROUNDS = 6, 2
BUDGET_S, QUICK_BUDGET_S = 600.0, 35.0
FEWEST_PLAIN = 8
"""Fewest steps without drafts whose time is used as a baseline."""


class ServerText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of text."""

    name: str
    prompts: int
    tokens_per_s: Annotated[float | None, Meta(description="Median over the prompts.")]
    first_token_ms: float | None
    acceptance: float | None
    drafted: Count
    accepted: Count
    by_position: list[PositionCount]
    tokens_per_step: float | None


class ServerBenchDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a bench of a server (--server URL)."""

    server: Annotated[str, Meta(description="Its URL.")]
    kind: str
    version: str
    model: str
    drafter: Annotated[str | None, Meta(description="Its kind.")]
    tells: Annotated[Tells, Meta(description="How much it reports about its speculation.")]
    texts: list[ServerText]
    tokens_per_s: Annotated[float | None, Meta(description="Geometric mean of the kinds of text.")]
    plain_tokens_per_s: Annotated[
        float | None,
        Meta(description="By the server's own steps without drafts; null where it made too few."),
    ]
    advice: str


@dataclass(slots=True)
class Text:
    """One kind of text."""

    name: str
    speeds: list[float] = field(default_factory=list)
    """Tokens per second of each reply, without the first token, which comes with the prompt."""
    first_ms: list[float] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    plain_ms: list[float] = field(default_factory=list)
    """Of each step without drafts."""

    def document(self) -> ServerText:
        """Its entry in the result."""
        stats = self.stats
        return ServerText(
            name=self.name,
            prompts=len(self.speeds),
            tokens_per_s=rounded(_median(self.speeds)),
            first_token_ms=rounded(_median(self.first_ms)),
            acceptance=rounded(stats.acceptance),
            drafted=stats.drafted,
            accepted=stats.accepted,
            by_position=list(stats.by_position),
            tokens_per_step=rounded(stats.tokens_per_step),
        )


class ServerMeasurement:
    """One measurement of an opened server. ``stop`` may be called from a signal handler."""

    def __init__(
        self, session: AnySession, settings: Settings, *, tokens: int, rounds: int, budget_s: float
    ) -> None:
        self.stopped = False
        self.texts = [Text(workload.name) for workload in workloads()]
        self.notices: list[str] = []
        self.loaded: Loaded | None = None
        self._session = session
        self._settings = settings
        self._tokens, self._rounds, self._budget_s = tokens, rounds, budget_s
        # Greedy, so that one bench is comparable with the next.
        self._tuning = replace(tuning_of(settings), temp=0.0)
        self._control = Control(self._tuning)
        self._replies = 0

    def stop(self) -> None:
        """End as soon as the server returns; complete replies are kept."""
        self.stopped = True
        self._control.cancel()

    def run(self, progress: ProgressLine) -> None:
        """Measure until the plan is done or the time is up. Raises BenchError when the server fails."""
        begun = time.monotonic()
        for number in range(self._rounds):
            for text, workload in zip(self.texts, workloads()):
                if self.stopped or (number and time.monotonic() - begun > self._budget_s):
                    return
                done = number * len(self.texts) + self.texts.index(text)
                progress(done, self._rounds * len(self.texts), workload.name)
                if number < len(workload.prompts):
                    self._reply(text, workload, number)

    def _reply(self, text: Text, workload: Workload, number: int) -> None:
        self._replies += 1
        request = request_of(
            self._settings,
            workload.prompts[number],
            reply=self._replies,
            tuning=self._tuning,
            max_tokens=self._tokens,
        )
        self._control = Control(self._tuning)
        if self.stopped:
            return

        def note(event: Event) -> None:
            if isinstance(event, Loaded):
                self.loaded = event
            elif isinstance(event, Notice) and event.message not in self.notices:
                self.notices.append(event.message)

        replied = reply_of(self._session, request, self._control, note)
        if replied is None:
            return
        steps, end = replied
        for step in steps:
            text.stats.fold(step)
        text.stats.fold(end)
        tokens = sum(len(step.tokens) for step in steps)
        if tokens > 1 and end.decode_ms > 0:
            text.speeds.append((tokens - 1) / end.decode_ms * 1000)
        text.first_ms.append(end.first_token_ms)
        text.plain_ms += [s.ms.total for s in steps[1:] if s.outcome == "plain" and s.ms.total > 0]


def run(settings: Settings, options: BenchOptions) -> int:
    """Measure a server and report; the exit code: 0, 1 for a run error, 130 after Ctrl-C. Raises
    UsageError."""
    if options.compare:
        raise UsageError(
            "--compare measures a server alongside a local model: leave out --server or --compare."
        )
    check_length(settings.predict)
    progress = ProgressLine(sys.stderr)
    tokens = QUICK_TOKENS if options.quick else TOKENS
    if settings.predict >= 0:
        tokens = settings.predict
    try:
        path = save_path(options.save)
        session, loaded = open_session(load_of(settings, ("temp",)), _tell, forgiving=False)
        measurement = ServerMeasurement(
            session,
            settings,
            tokens=tokens,
            rounds=QUICK_ROUNDS if options.quick else ROUNDS,
            budget_s=QUICK_BUDGET_S if options.quick else BUDGET_S,
        )
        with on_ctrl_c(measurement.stop):
            measurement.run(progress)
    finally:
        progress.clear()
    for notice in measurement.notices:
        say(notice)
    result = result_of(measurement.loaded or loaded, measurement.texts)
    code = show(result, report(result), options, path)
    return code or (INTERRUPTED if measurement.stopped else 0)


def _tell(event: Event) -> None:
    if isinstance(event, Notice):
        say(f"{event.message}")


# ------------------------------------------------------------------------------------ figures. Pure.


def result_of(loaded: Loaded, texts: Sequence[Text]) -> ServerBenchDocument:
    """The result as JSON."""
    server = loaded.server
    assert server is not None
    measured = [text for text in texts if text.speeds]
    plain = [ms for text in measured for ms in text.plain_ms]
    plain_ms = statistics.median(plain) if len(plain) >= FEWEST_PLAIN else None
    speeds = [statistics.median(text.speeds) for text in measured]
    speed = statistics.geometric_mean(speeds) if speeds else None
    return ServerBenchDocument(
        server=server.url,
        kind=server.kind,
        version=server.version,
        model=loaded.target.name,
        drafter=loaded.drafter.kind if loaded.drafter else None,
        tells=server.tells,
        texts=[text.document() for text in measured],
        tokens_per_s=rounded(speed),
        plain_tokens_per_s=None if plain_ms is None else rounded(1000 / plain_ms),
        advice=verdict(loaded, measured, speed, plain_ms),
    )


def verdict(loaded: Loaded, texts: Sequence[Text], speed: float | None, plain_ms: float | None) -> str:
    """One sentence: what speculation brings on this server."""
    server = loaded.server
    assert server is not None
    if speed is None:
        return "Nothing was measured yet: let the bench run on to its end."
    where = dict(server.fixed).get("depth", "")
    if server.speculates is False:
        return f"The server runs without a drafter, at {speed:.1f} tokens per second: {where}."
    judged = sum(text.stats.judged for text in texts)
    accepted = sum(row.accepted for text in texts for row in text.stats.by_position)
    taken = f" {accepted / judged:.0%} of the drafts that it judged were accepted." if judged else ""
    if plain_ms is None:
        return (
            f"{server.kind} reaches {speed:.1f} tokens per second over all kinds of text.{taken} Whether its "
            "drafts pay is unknown, because it made too few steps without them: bench it again, started "
            f"without a drafter ({where})."
        )
    ratio = speed * plain_ms / 1000
    pays = "pays" if ratio >= PAYS else "does not pay"
    return (
        f"Speculation {pays} on this server: {speed:.1f} tokens per second are {ratio:.2f} times what its "
        f"steps without drafts reach.{taken}"
    )


def report(result: ServerBenchDocument) -> str:
    """The result for people."""
    lines = [
        f"server    {result.kind} {result.version} at {result.server}",
        f"model     {result.model}",
        f"drafter   {result.drafter or 'none, or unknown'}",
        "",
        f"{'':<12}{'prompts':>8}{'tok/s':>9}{'accepted':>10}{'tok/step':>10}{'first ms':>10}",
    ]
    for text in result.texts:
        share = text.acceptance
        accepted = "unknown" if share is None else f"{share:.0%}"
        per_step = text.tokens_per_step if share is not None else None
        lines.append(
            f"{text.name:<12}{text.prompts:>8}{_cell(text.tokens_per_s, 9)}{accepted:>10}"
            f"{_cell(per_step, 10, 2)}{_cell(text.first_token_ms, 10, 0)}"
        )
    return "\n".join([*lines, "", textwrap.fill(result.advice, 80, break_on_hyphens=False)])


def _cell(value: float | None, width: int, places: int = 1) -> str:
    return ("–" if value is None else f"{value:.{places}f}").rjust(width)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
