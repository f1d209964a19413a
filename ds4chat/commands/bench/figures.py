"""From runs to figures: speeds with their spread, acceptance, and what the measured costs predict. Pure.

Ratios are taken within a block (one prompt under every setting, measured in turn) and summarised as medians,
so that neither a slow minute of the machine nor one odd prompt decides. The prediction for a depth walks the
drafts that the deepest run recorded (analysis.whatif) at the measured step times. If it is right, recorded
drafts tell what another depth would bring; if not, the machine was disturbed, or costs depend on more than
rows.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ds4chat.analysis.rows import rows_from_steps
from ds4chat.analysis.times import StepTimes
from ds4chat.analysis.whatif import what_if
from ds4chat.commands.bench.result import (
    AutoFigures,
    FixedFigures,
    PlainFigures,
    ServerFigures,
    WorkloadDocument,
)
from ds4chat.commands.bench.runs import Measured, Run, ServerRun
from ds4chat.engine.events import Depth, Step
from ds4chat.engine.stats import Stats, rounded


@dataclass(frozen=True, slots=True)
class _Plain:
    """Plain decoding of one prompt: its runs before and after the others taken together."""

    ids: tuple[int, ...]
    tokens_per_s: float
    noise: float | None

    @classmethod
    def of(cls, runs: Sequence[Run]) -> _Plain:
        ms = [run.decode_ms / len(run.ids) for run in runs]
        noise = max(ms) / min(ms) - 1 if len(ms) > 1 else None
        return cls(runs[0].ids, 1000 / statistics.fmean(ms), noise)


def figures(measured: Measured, names: Sequence[str]) -> list[WorkloadDocument]:
    """The figures of every kind of text that was measured, in the order of ``names``."""
    times = StepTimes(rows_from_steps(_steps(measured.runs)))
    found = []
    for name in names:
        runs = [run for run in measured.runs if run.workload == name]
        prompts = dict.fromkeys(run.prompt for run in runs if run.depth == 0)
        if not prompts:
            continue
        plain = {at: _Plain.of([r for r in runs if r.depth == 0 and r.prompt == at]) for at in prompts}
        by_depth: dict[Depth, list[Run]] = defaultdict(list)
        for run in runs:
            if run.depth != 0 and run.prompt in plain:
                by_depth[run.depth].append(run)
        auto = by_depth.pop("auto", ())
        speed, spread = _median_and_quartiles([one.tokens_per_s for one in plain.values()])
        found.append(
            WorkloadDocument(
                name=name,
                prompts=len(plain),
                plain=PlainFigures(speed, spread),
                fixed=_fixed(by_depth, plain, times, measured.verify_ms),
                auto=_auto(auto, plain),
                noise=[round(one.noise, 4) for one in plain.values() if one.noise is not None],
                server=_server([run for run in measured.server if run.workload == name], plain),
            )
        )
    return found


def _fixed(
    by_depth: Mapping[Depth, Sequence[Run]],
    plain: Mapping[int, _Plain],
    times: StepTimes,
    verify_ms: Sequence[float],
) -> list[FixedFigures]:
    """The figures of every fixed depth, the deepest last."""
    depths = sorted(depth for depth in by_depth if depth != "auto")
    recorded = rows_from_steps(_steps(by_depth[depths[-1]])) if depths else None
    found = []
    for depth in depths:
        common = _figures(by_depth[depth], plain)
        limit = _limit(by_depth[depth], plain, verify_ms)
        assert recorded is not None
        found.append(
            FixedFigures(
                depth,
                **common,
                limit=rounded(limit),
                limit_share=rounded(common["ratio"] / limit) if limit else None,
                predicted_tokens_per_s=rounded(what_if(recorded, depth=depth, times=times).tokens_per_s),
            )
        )
    return found


def _auto(runs: Sequence[Run], plain: Mapping[int, _Plain]) -> AutoFigures | None:
    """The figures of auto; None if it was not measured."""
    if not runs:
        return None
    return AutoFigures(
        **_figures(runs, plain),
        limit=None,
        limit_share=None,
        predicted_tokens_per_s=None,
        # Not the depths: auto asks a free drafter in every step, but that often finds nothing.
        mean_depth=round(statistics.fmean(step.drafted for step in _steps(runs)), 4),
    )


def _figures(runs: Sequence[Run], plain: Mapping[int, _Plain]) -> dict[str, Any]:
    """The fields of SettingFigures that every setting has."""
    stats = Stats()
    for step in _steps(runs):
        stats.fold(step)
    speed, spread = _median_and_quartiles([run.tokens_per_s for run in runs])
    ratio, ratio_spread = _median_and_quartiles(
        [run.tokens_per_s / plain[run.prompt].tokens_per_s for run in runs]
    )
    return {
        "tokens_per_s": speed,
        "spread": spread,
        "ratio": ratio,
        "ratio_spread": ratio_spread,
        "acceptance": rounded(stats.acceptance),
        "accepted": stats.accepted,
        "accepted_ends": stats.accepted_ends,
        "emitted": stats.emitted,
        "by_position": list(stats.by_position),
        "tokens_per_step": rounded(stats.tokens_per_step),
        "same_text": (sum(run.ids == plain[run.prompt].ids for run in runs), len(runs)),
    }


def _server(runs: Sequence[ServerRun], plain: Mapping[int, _Plain]) -> ServerFigures | None:
    """The server's figures; None if it answered nothing."""
    if not runs:
        return None
    drafted = sum(run.drafted for run in runs)
    named = [run for run in runs if run.ids]
    return ServerFigures(
        tokens_per_s=round(statistics.median(run.tokens_per_s for run in runs), 4),
        ratio=round(statistics.median(run.tokens_per_s / plain[run.prompt].tokens_per_s for run in runs), 4),
        acceptance=rounded(sum(run.accepted for run in runs) / drafted if drafted else None),
        same_text=(sum(run.ids == plain[run.prompt].ids for run in named), len(named)),
    )


def _limit(runs: Sequence[Run], plain: Mapping[int, _Plain], verify_ms: Sequence[float]) -> float | None:
    """Speed over plain decoding of the same drafts if a step took only its decodes: S = E / (v + k c).

    v(k + 1) is the time of a decode that verifies k drafts over that of one row; c the median draft time of a
    token over a plain token of the same prompts; E the tokens of a step. A step in which the drafter found
    nothing, as lookup often does, costs one plain pass. None if the costs are unknown.
    """
    steps = _steps(runs)
    if not verify_ms or max((step.drafted for step in steps), default=0) >= len(verify_ms):
        return None
    plain_ms = statistics.fmean(1000 / plain[run.prompt].tokens_per_s for run in runs)
    each = [step.ms.draft / step.drafted for step in steps if step.drafted]
    draft = statistics.median(each) / plain_ms if each else 0.0
    cost = sum(verify_ms[step.drafted] / verify_ms[0] + step.drafted * draft for step in steps)
    return sum(len(step.tokens) for step in steps) / cost


def _steps(runs: Sequence[Run]) -> list[Step]:
    return [step for run in runs for step in run.steps]


def _median_and_quartiles(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The median, and the lower and the upper quartile; a single value is all three."""
    if len(values) == 1:
        values = [*values, *values]
    low, median, high = (round(q, 4) for q in statistics.quantiles(values, n=4, method="inclusive"))
    return median, (low, high)
