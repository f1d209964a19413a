"""From settings to a bench: open the session, measure, print, save."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from ds4chat.commands.bench.advice import advise
from ds4chat.commands.bench.errors import BenchError
from ds4chat.commands.bench.figures import figures
from ds4chat.commands.bench.progress import ProgressLine
from ds4chat.commands.bench.report import plot, report
from ds4chat.commands.bench.result import Result, load_average, machine, peak_rss
from ds4chat.commands.bench.running import check_length, save, save_path
from ds4chat.commands.bench.runs import FULL, QUICK, Measurement, Plan
from ds4chat.commands.bench.server import LlamaServer
from ds4chat.commands.bench.workloads import workloads
from ds4chat.commands.options import BenchOptions
from ds4chat.commands.running import INTERRUPTED, RUN_ERROR, json_line, on_ctrl_c, say
from ds4chat.engine.events import Event, Load, Loaded, LoadError, Loading, Notice
from ds4chat.engine.from_settings import load_of, tuning_of
from ds4chat.engine.opening import open_session
from ds4chat.engine.session import Session
from ds4chat.models.errors import ModelFileError
from ds4chat.settings import paths
from ds4chat.settings.schema import Settings


def run(settings: Settings, options: BenchOptions) -> int:
    """Measure and report; the exit code: 0, 1 for a run error, 130 after Ctrl-C, with what there was by then
    printed all the same. Raises UsageError for replies too short to take a speed from."""
    check_length(settings.predict)
    begun = time.monotonic()
    progress = ProgressLine(sys.stderr)
    try:
        target = save_path(options.save)
        server = LlamaServer(options.compare) if options.compare else None
        notices: list[str] = []

        def loading(event: Event) -> None:
            if isinstance(event, Loading):
                progress(int(event.fraction * 100), 100, f"loading {event.stage}")
            elif isinstance(event, Notice):
                notices.append(event.message)

        before = load_average()
        session, loaded = open_session(load_for(options, settings), loading, forgiving=False)
        if server:
            _check(server, session, loaded)
    except (BenchError, LoadError, ModelFileError, paths.FolderError) as error:
        progress.clear()
        say(error)
        return RUN_ERROR
    progress.clear()
    for notice in notices:
        say(notice)
    try:
        result, code = _measure(session, loaded, settings, options, server, progress, begun, before)
    finally:
        session.close()
    _show(result, options)
    if target:
        try:
            save(result.document(), target)
        except OSError as error:
            say(f"{target} cannot be written: {error.strerror or error}. Copy the result from stdout.")
            return RUN_ERROR
        say(f"saved to {target}")
    return code


def _measure(
    session: Session,
    loaded: Loaded,
    settings: Settings,
    options: BenchOptions,
    server: LlamaServer | None,
    progress: ProgressLine,
    begun: float,
    load_before: float | None,
) -> tuple[Result, int]:
    """The result so far, and the exit code."""
    texts = workloads()
    tuning = tuning_of(settings)
    measurement = Measurement(
        session,
        tuning,
        texts,
        plan_for(options, loaded, spent_s=time.monotonic() - begun, predict=settings.predict),
        system=settings.system_prompt,
        think=settings.think,
        server=server,
        progress=progress,
    )
    code = 0
    try:
        with on_ctrl_c(measurement.stop):
            measurement.run()
    except BenchError as error:
        progress.clear()
        say(error)
        code = RUN_ERROR
    progress.clear()
    measured = measurement.measured
    had = loaded.drafter.kind if loaded.drafter else ""
    given_up = measured.off.reason if measured.off else ""
    if measured.off:
        loaded = loaded.without_drafter(measured.off)
    for notice in measured.notices:
        say(notice)
    found = figures(measured, [text.name for text in texts])
    cost = [ms / measured.verify_ms[0] for ms in measured.verify_ms]
    result = Result(
        machine=machine(loaded, load_before),
        loaded=loaded,
        tuning=tuning,
        verify_ms=tuple(measured.verify_ms),
        switch_ms=measured.switch_ms,
        texts=tuple(found),
        advice=advise(found, had, cost, given_up=given_up),
        peak_rss=peak_rss(),
        quick=options.quick,
        complete=len(found) == len(texts) and not measurement.stopped and not code,
        notices=tuple(measured.notices),
        server=server.name if server else "",
    )
    return result, INTERRUPTED if measurement.stopped else code


def _check(server: LlamaServer, session: Session, loaded: Loaded) -> None:
    """Raise BenchError, with the session closed, where the server runs another model or is busy."""
    target = loaded.target
    try:
        server.check(target.name, target.n_vocab, target.size_bytes)
    except BenchError:
        session.close()
        raise


def plan_for(options: BenchOptions, loaded: Loaded, *, spent_s: float, predict: int = -1) -> Plan:
    """What to measure of this model: the depths that its drafter can reach, none without one.

    spent_s: seconds since the command began; they come off the time that a quick bench has. predict: most
    tokens of a reply; -1 is the plan's own number.
    """
    plan = QUICK if options.quick else FULL
    if predict >= 0:
        plan = replace(plan, tokens=predict)
    most = loaded.drafter.max_depth if loaded.drafter else 0
    depths = tuple(depth for depth in plan.depths if depth <= most)
    if options.quick:
        plan = replace(plan, budget_s=plan.budget_s - spent_s, deadline_s=plan.deadline_s - spent_s)
    return replace(plan, depths=depths)


def load_for(options: BenchOptions, settings: Settings) -> Load:
    """What to load: the settings' pair, for drafts as deep as the deepest that is measured. Raises
    ModelFileError."""
    return replace(load_of(settings), depth=max((QUICK if options.quick else FULL).depths))


def _show(result: Result, options: BenchOptions) -> None:
    if options.json:
        print(json_line(result.document()))
        return
    text = report(result)
    if options.plot and result.texts:
        head, advice = text.rsplit("\n\n", 1)
        text = "\n\n".join((head, plot(result.texts, blocks=_can_encode("█▏│")), advice))
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)


def _can_encode(text: str) -> bool:
    """Whether stdout can show it."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
