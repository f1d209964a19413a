"""The bench of a local model: from settings to a result."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace

from ds4chat.commands.bench.advice import advise
from ds4chat.commands.bench.figures import figures
from ds4chat.commands.bench.plan import plan_of
from ds4chat.commands.bench.report import report
from ds4chat.commands.bench.result import (
    VERSION,
    Advised,
    BenchDocument,
    BenchDrafter,
    BenchMemory,
    BenchModel,
    BenchSettings,
    load_average,
    machine,
    peak_rss,
)
from ds4chat.commands.bench.running import BenchError, BenchProgress, save_path, show
from ds4chat.commands.bench.runs import Measured, Measurement
from ds4chat.commands.bench.server import LlamaServer
from ds4chat.commands.bench.workloads import workloads
from ds4chat.commands.options import BenchOptions
from ds4chat.commands.running import INTERRUPTED, RUN_ERROR, on_ctrl_c, say
from ds4chat.engine.events import Event, Loaded, Loading, Notice
from ds4chat.engine.from_settings import load_of, tuning_of
from ds4chat.engine.opening import open_session
from ds4chat.settings.schema import Settings


def run(settings: Settings, options: BenchOptions) -> int:
    """Measure and report; the exit code: 0, 1 for a run error, 130 after Ctrl-C. What was measured by then is
    printed in each case. Raises UsageError for replies too short to take a speed from."""
    plan = plan_of(options, settings.predict)
    begun, load_before = time.monotonic(), load_average()
    progress = BenchProgress()

    def loading(event: Event) -> None:
        if isinstance(event, Loading):
            progress(int(event.fraction * 100), 100, f"loading {event.stage}")
        elif isinstance(event, Notice):
            progress.clear()
            say(event.message)

    failure = ""
    with progress:
        path = save_path(options.save)
        server = LlamaServer(options.compare) if options.compare else None
        # Deep enough for the deepest draft that is measured.
        load = replace(load_of(settings), depth=max(plan.depths))
        session, loaded = open_session(load, loading, forgiving=False)
        with closing(session):
            if server:
                server.check(loaded.target.name, loaded.target.n_vocab, loaded.target.size_bytes)
            most = loaded.drafter.max_depth if loaded.drafter else 0
            plan = replace(plan, depths=tuple(depth for depth in plan.depths if depth <= most))
            if options.quick:
                spent_s = time.monotonic() - begun
                plan = replace(plan, budget_s=plan.budget_s - spent_s, deadline_s=plan.deadline_s - spent_s)
            measurement = Measurement(session, settings, workloads(), plan, server=server, progress=progress)
            try:
                with on_ctrl_c(measurement.stop):
                    measurement.run()
            except BenchError as error:
                failure = str(error)
    for sentence in filter(None, (failure, *measurement.measured.notices)):
        say(sentence)
    result = result_of(
        measurement.measured,
        loaded,
        settings,
        load_before,
        quick=options.quick,
        ended_early=measurement.stopped or bool(failure),
        server=server.name if server else None,
    )
    code = show(result, report(result, with_plot=options.plot), options, path)
    return code or (INTERRUPTED if measurement.stopped else RUN_ERROR if failure else 0)


def result_of(
    measured: Measured,
    loaded: Loaded,
    settings: Settings,
    load_before: float | None,
    *,
    quick: bool,
    ended_early: bool,
    server: str | None,
) -> BenchDocument:
    """The result of a measurement. ``load_before``: the load average when the bench began."""
    tuning = tuning_of(settings)
    drafter = loaded.drafter.kind if loaded.drafter else ""
    if measured.off:
        loaded = loaded.without_drafter(measured.off)
    names = [text.name for text in workloads()]
    found = figures(measured, names)
    cost = [ms / measured.verify_ms[0] for ms in measured.verify_ms]
    given_up = measured.off.reason if measured.off else ""
    advice = advise(found, drafter, cost, given_up=given_up)
    target = loaded.target
    return BenchDocument(
        version=VERSION,
        machine=machine(loaded, load_before),
        model=BenchModel(
            name=target.name,
            path=target.path,
            architecture=target.architecture,
            quantisation=target.quantisation,
            parameters=target.parameters,
            size_bytes=target.size_bytes,
        ),
        drafter=BenchDrafter(loaded.drafter.kind, loaded.drafter.path) if loaded.drafter else None,
        off_reason=loaded.off_reason,
        settings=BenchSettings(tuning.mode, tuning.margin, tuning.gate, tuning.temp),
        verify_cost=[round(v, 4) for v in cost],
        verify_ms=[round(ms, 3) for ms in measured.verify_ms],
        switch_ms=None if measured.switch_ms is None else round(measured.switch_ms, 3),
        memory=BenchMemory(peak_rss()),
        quick=quick,
        complete=len(found) == len(names) and not ended_early,
        workloads=found,
        server=server,
        advice=advice.sentence,
        advised=Advised(advice.pays, advice.set),
        notices=measured.notices,
    )
