"""From runs to figures: speeds with their spread, acceptance, and what the measured costs predict. Pure.

Ratios are taken within a block (one prompt under every setting, measured in turn) and summed up as medians,
so that neither a slow minute of the machine nor one odd prompt decides. The prediction of a depth walks the
drafts that the deepest run recorded (analysis.whatif) at the measured step times: where it holds, recorded
drafts tell what another depth would bring; where it fails, the machine was disturbed, or costs depend on more
than rows.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ds4chat.analysis.rows import rows_from_steps
from ds4chat.analysis.times import StepTimes
from ds4chat.analysis.whatif import what_if
from ds4chat.commands.bench.runs import Measured, Run, ServerRun, pooled
from ds4chat.engine.events import Depth
from ds4chat.engine.stats import Stats


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of one quantity over prompts."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None without a value; a single one has no spread."""
        if not values:
            return None
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True, slots=True)
class Setting:
    """One depth, or auto, on one kind of text."""

    depth: Depth
    speed: Spread
    """Tokens per second."""
    ratio: Spread | None
    """Speed over plain decoding's on the same prompt; None for plain decoding itself."""
    stats: Stats
    mean_depth: float
    """Drafts asked for per step."""
    same: int
    """Replies whose tokens are those of plain decoding, of those that have a plain one beside them."""
    runs: int
    predicted: float | None = None
    """Tokens per second by the drafts of the deepest run and the measured step times."""
    limit: float | None = None
    """Speed over plain decoding's of the same drafts if a step took its decodes alone: S = E / (v + k c) of a
    fixed depth k. None where the costs are not known."""

    @property
    def limit_share(self) -> float | None:
        """The ratio to plain decoding, as a share of the limit."""
        return self.ratio.median / self.limit if self.ratio and self.limit else None


@dataclass(frozen=True, slots=True)
class TextFigures:
    """One kind of text."""

    name: str
    prompts: int
    plain: Setting
    fixed: tuple[Setting, ...]
    auto: Setting | None
    server: Spread | None
    """Tokens per second of the server measured alongside."""
    server_ratio: Spread | None
    """Its speed over plain decoding's here."""
    server_acceptance: float | None = None
    """Of the server's own drafts; None where it made none."""
    server_same: tuple[int, int] = (0, 0)
    """Its replies whose tokens are those of plain decoding, of those whose tokens it named."""
    noise: tuple[float, ...] = ()
    """For each prompt that was decoded plainly twice, the slower time over the faster, minus 1."""

    @property
    def best(self) -> Setting | None:
        """The fixed depth with the highest ratio."""
        known = [s for s in self.fixed if s.ratio]
        return max(known, key=lambda s: s.ratio.median if s.ratio else 0.0, default=None)


@dataclass(frozen=True, slots=True)
class _Plain:
    """Plain decoding of one prompt, the runs before and after the others taken together."""

    ids: tuple[int, ...]
    tokens_per_s: float
    noise: float | None

    @classmethod
    def of(cls, runs: Sequence[Run]) -> _Plain:
        ms = [run.decode_ms / len(run.ids) for run in runs]
        noise = max(ms) / min(ms) - 1 if len(ms) > 1 else None
        return cls(runs[0].ids, 1000 / statistics.fmean(ms), noise)


def figures(measured: Measured, names: Sequence[str]) -> list[TextFigures]:
    """The figures of every kind of text that was measured, in the order of ``names``."""
    times = StepTimes(rows_from_steps(step for run in measured.runs for step in run.steps))
    found = []
    for name in names:
        by_depth: dict[Depth, list[Run]] = defaultdict(list)
        for run in measured.runs:
            if run.workload == name:
                by_depth[run.depth].append(run)
        prompts = dict.fromkeys(run.prompt for run in by_depth[0])
        if not prompts:
            continue
        plain = {at: _Plain.of([run for run in by_depth[0] if run.prompt == at]) for at in prompts}
        depths = sorted(depth for depth, runs in by_depth.items() if depth != "auto" and depth and runs)
        deepest = by_depth[depths[-1]] if depths else []
        server = [run for run in measured.server if run.workload == name]
        found.append(
            TextFigures(
                name=name,
                prompts=len(plain),
                plain=_setting(0, by_depth[0], plain, None),
                fixed=tuple(
                    replace(
                        _setting(depth, by_depth[depth], plain, _predicted(deepest, depth, times)),
                        limit=_limit(by_depth[depth], plain, measured.verify_ms),
                    )
                    for depth in depths
                ),
                auto=_setting("auto", by_depth["auto"], plain, None) if by_depth["auto"] else None,
                server=Spread.of([run.tokens_per_s for run in server]),
                server_ratio=Spread.of(
                    [r.tokens_per_s / plain[r.prompt].tokens_per_s for r in server if r.prompt in plain]
                ),
                server_acceptance=_server_acceptance(server),
                server_same=(
                    sum(r.ids == plain[r.prompt].ids for r in server if r.ids and r.prompt in plain),
                    sum(bool(r.ids) and r.prompt in plain for r in server),
                ),
                noise=tuple(p.noise for p in plain.values() if p.noise is not None),
            )
        )
    return found


def _server_acceptance(runs: Sequence[ServerRun]) -> float | None:
    drafted = sum(run.drafted for run in runs)
    return sum(run.accepted for run in runs) / drafted if drafted else None


def _setting(
    depth: Depth, runs: Sequence[Run], plain: Mapping[int, _Plain], predicted: float | None
) -> Setting:
    paired = [(run, plain[run.prompt]) for run in runs if run.prompt in plain]
    speeds = [run.tokens_per_s for run in runs] if depth else [p.tokens_per_s for p in plain.values()]
    speed = Spread.of(speeds)
    assert speed is not None
    # Auto asks a free drafter in every step: what it drafted tells, not how much it would have taken.
    depths = [step.drafted if depth == "auto" else step.depth for run in runs for step in run.steps]
    return Setting(
        depth=depth,
        speed=speed,
        ratio=Spread.of([run.tokens_per_s / other.tokens_per_s for run, other in paired]) if depth else None,
        stats=pooled(runs),
        mean_depth=statistics.fmean(depths),
        same=sum(run.ids == other.ids for run, other in paired),
        runs=len(paired),
        predicted=predicted,
    )


def _predicted(deepest: Sequence[Run], depth: Depth, times: StepTimes) -> float | None:
    """Tokens per second that the recorded drafts and the step times predict; None where they do not tell."""
    assert depth != "auto"
    rows = rows_from_steps(step for run in deepest for step in run.steps)
    return what_if(rows, depth=depth, times=times).tokens_per_s


def _limit(runs: Sequence[Run], plain: Mapping[int, _Plain], verify_ms: Sequence[float]) -> float | None:
    """S of these runs: their tokens over what their steps cost in plain passes, v(k + 1) for the verification
    of k drafts and k c for drafting them. c: median draft time a token, over a plain token of the same
    prompts. Where every step has k drafts, that is E / (v + k c) with E tokens a pass; a drafter that finds
    none, as lookup often does, costs and brings nothing in that step."""
    steps = [step for run in runs for step in run.steps]
    if not verify_ms or max((step.drafted for step in steps), default=0) >= len(verify_ms):
        return None
    plain_ms = statistics.fmean(1000 / plain[run.prompt].tokens_per_s for run in runs if run.prompt in plain)
    each = [step.ms.draft / step.drafted for step in steps if step.drafted]
    draft = statistics.median(each) / plain_ms if each else 0.0
    cost = sum(verify_ms[step.drafted] / verify_ms[0] + step.drafted * draft for step in steps)
    return sum(len(step.tokens) for step in steps) / cost


def overall(ratios: Iterable[float]) -> float:
    """Geometric mean of the kinds of text, each counting alike; NaN without one."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def uncertainty(texts: Sequence[TextFigures]) -> float:
    """By how much a ratio over all kinds of text may be wrong, as a share of it: the median difference of two
    plain runs of one prompt, over the root of the number of prompts; 0 where none was run twice."""
    noise = [value for text in texts for value in text.noise]
    return statistics.median(noise) / math.sqrt(len(noise)) if noise else 0.0
