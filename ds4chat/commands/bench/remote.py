"""The bench of a server: speed, acceptance and time to the first token, by kind of text.

Every prompt is asked once, greedily and in turn over the kinds of text. Speed and step times are the server's
own if it reports them. The gain of speculation is computed from its own steps without drafts, if there are
any. Depths are not compared, because no server lets a request choose one.
"""

from __future__ import annotations

import statistics
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec
from msgspec import Meta

from ds4chat.commands.arguments import UsageError
from ds4chat.commands.bench.plan import Plan, plan_of
from ds4chat.commands.bench.running import PAYS, BenchProgress, reply_of, save_path, show
from ds4chat.commands.bench.workloads import workloads
from ds4chat.commands.options import BenchOptions
from ds4chat.commands.running import INTERRUPTED, on_ctrl_c, request_of, say
from ds4chat.engine.control import Control
from ds4chat.engine.events import Count, Ended, Event, Loaded, Notice, Step, Tells
from ds4chat.engine.from_settings import load_of, tuning_of
from ds4chat.engine.sessions import AnySession, open_session
from ds4chat.engine.stats import PositionCount, Stats, rounded
from ds4chat.settings.schema import Settings

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
        Meta(description="By the server's own steps without drafts; null if it made too few."),
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
    """Of each step without drafts that did not pay for a change of the batch size."""

    def add(self, steps: Sequence[Step], end: Ended) -> None:
        """Count one reply."""
        for step in steps:
            self.stats.fold(step)
        self.stats.fold(end)
        tokens = sum(len(step.tokens) for step in steps)
        if tokens > 1 and end.decode_ms > 0:
            self.speeds.append((tokens - 1) / end.decode_ms * 1000)
        self.first_ms.append(end.first_token_ms)
        self.plain_ms += [step.ms.total for step in steps if step.baseline]

    def document(self) -> ServerText:
        """Its entry in the result; there is at least one speed."""
        stats = self.stats
        return ServerText(
            name=self.name,
            prompts=len(self.speeds),
            tokens_per_s=round(statistics.median(self.speeds), 4),
            first_token_ms=round(statistics.median(self.first_ms), 4),
            acceptance=rounded(stats.acceptance),
            drafted=stats.drafted,
            accepted=stats.accepted,
            by_position=list(stats.by_position),
            tokens_per_step=rounded(stats.tokens_per_step),
        )


def run(settings: Settings, options: BenchOptions) -> int:
    """Measure a server and report; the exit code: 0, 1 for a run error, 130 after Ctrl-C. Raises
    UsageError."""
    if options.compare:
        raise UsageError(
            "--compare measures a server alongside a local model: leave out --server or --compare."
        )
    plan = plan_of(options, settings.predict)
    # Greedy, so that one bench is comparable with the next.
    control = Control(replace(tuning_of(settings), temp=0.0))
    progress = BenchProgress()
    latest: list[Loaded] = []
    notices: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, Loaded):
            latest.append(event)
        elif isinstance(event, Notice) and event.message not in notices:
            notices.append(event.message)

    with progress:
        path = save_path(options.save)
        session, loaded = open_session(load_of(settings, ("temp",)), note, forgiving=False)
        with closing(session), on_ctrl_c(control.cancel):
            texts = _measure(session, settings, plan, control, note, progress)
    for notice in notices:
        say(notice)
    result = result_of([loaded, *latest][-1], texts)
    code = show(result, report(result), options, path)
    return code or (INTERRUPTED if control.cancelled else 0)


def _measure(
    session: AnySession,
    settings: Settings,
    plan: Plan,
    control: Control,
    note: Callable[[Event], object],
    progress: BenchProgress,
) -> list[Text]:
    """What was measured until the plan is done, the time is up or ``control`` is cancelled. Raises BenchError
    when the server fails."""
    texts = {workload.name: Text(workload.name) for workload in workloads()}
    blocks = plan.blocks(workloads())
    begun = time.monotonic()
    for number, (workload, prompt) in enumerate(blocks):
        if prompt and time.monotonic() - begun > plan.budget_s:
            break
        progress(number, len(blocks), workload.name)
        request = request_of(
            settings,
            workload.prompts[prompt],
            reply=number + 1,
            tuning=control.tuning,
            max_tokens=plan.tokens,
        )
        replied = reply_of(session, request, control, note)
        if replied is None:
            break
        texts[workload.name].add(*replied)
    return list(texts.values())


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
    """One sentence: whether speculation pays on this server."""
    server = loaded.server
    assert server is not None
    if speed is None:
        return "Nothing was measured yet: let the bench run on to its end."
    where = dict(server.fixed).get("depth", "")
    if server.speculates is False:
        return f"The server runs without a drafter, at {speed:.1f} tokens per second: {where}."
    judged = sum(text.stats.judged for text in texts)
    accepted = sum(row.accepted for text in texts for row in text.stats.by_position)
    of_drafts = f" {accepted / judged:.0%} of the drafts that it judged were accepted." if judged else ""
    if plain_ms is None:
        return (
            f"{server.kind} reaches {speed:.1f} tokens per second over all kinds of text.{of_drafts} Whether "
            "its drafts pay is unknown, because it made too few steps without them: bench it again, started "
            f"without a drafter ({where})."
        )
    ratio = speed * plain_ms / 1000
    pays = "pays" if ratio >= PAYS else "does not pay"
    return (
        f"Speculation {pays} on this server: {speed:.1f} tokens per second are {ratio:.2f} times what its "
        f"steps without drafts reach.{of_drafts}"
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
