"""The result of one bench: what was measured on what, as an object and as JSON."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ds4chat.commands.bench.advice import Advice
from ds4chat.commands.bench.figures import Setting, Spread, TextFigures
from ds4chat.engine.events import Count, Depth, Loaded, Mode, Tuning
from ds4chat.engine.machine import cores, processor, system
from ds4chat.engine.stats import NonNegative, PositionCount, rounded

VERSION = 1

Range = tuple[float, float]
SameText = Annotated[
    tuple[Count, Count],
    Meta(description="Replies whose tokens are those of plain decoding, of those that were compared."),
]


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine that it was measured on."""

    system: str
    cpu: str
    cores: int
    threads: Annotated[int, Meta(description="Threads of the engine.")]
    device: str
    load_average: Annotated[
        list[float] | None, Meta(description="Before and after; null if the system has none.")
    ]

    @property
    def busy(self) -> bool:
        """Others used the processors before the bench began."""
        return self.load_average is not None and self.load_average[0] > 0.5 * self.cores


class BenchModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The target model."""

    name: str
    path: str
    architecture: str
    quantisation: str
    parameters: int
    size_bytes: int


class BenchDrafter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The drafter."""

    kind: str
    path: str


class BenchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the replies."""

    mode: Mode
    margin: NonNegative
    gate: NonNegative
    temp: NonNegative


class BenchMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory of the process."""

    peak_rss_bytes: Annotated[
        int | None, Meta(description="Most resident memory, the mapped model file included.")
    ]


class PlainFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plain decoding."""

    tokens_per_s: float
    spread: Range


class SettingFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Figures of one depth, or of auto."""

    tokens_per_s: Annotated[float, Meta(description="Median over the prompts.")]
    spread: Annotated[Range, Meta(description="Quartiles.")]
    ratio: Annotated[float | None, Meta(description="Speed over plain decoding of the same prompt.")]
    ratio_spread: Range | None
    limit: Annotated[
        float | None,
        Meta(
            description="Ratio that a fixed depth would reach if a step took its decodes alone: tokens per "
            "step over v + k c. Null for auto."
        ),
    ]
    limit_share: Annotated[float | None, Meta(description="The ratio over the limit.")]
    acceptance: float | None
    accepted: Count
    accepted_ends: Count
    emitted: Count
    by_position: list[PositionCount]
    tokens_per_step: float | None
    predicted_tokens_per_s: Annotated[
        float | None, Meta(description="From the drafts of the deepest run and the measured step times.")
    ]
    same_text: SameText


class FixedFigures(SettingFigures, frozen=True, forbid_unknown_fields=True):
    """One depth."""

    depth: Depth


class AutoFigures(SettingFigures, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The depth that auto chose."""

    mean_depth: Annotated[float, Meta(description="Drafts per step.")]


class ServerFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server of --compare."""

    tokens_per_s: float
    ratio: Annotated[float | None, Meta(description="Its speed over plain decoding here.")]
    acceptance: Annotated[float | None, Meta(description="Of its own drafts; null where it made none.")]
    same_text: SameText


class WorkloadDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of text."""

    name: str
    prompts: int
    plain: PlainFigures
    fixed: list[FixedFigures]
    auto: AutoFigures | None
    noise: Annotated[
        list[float],
        Meta(
            description="For each prompt that was decoded plainly twice, the slower time over the faster, "
            "minus 1."
        ),
    ]
    server: ServerFigures | None


class Advised(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The advice as values."""

    pays: Annotated[bool | None, Meta(description="null where nothing was compared.")]
    mtp_draft: Annotated[
        Depth | Literal["off"] | None, Meta(description='The value for mtp-draft; "off": load no drafter.')
    ]


class BenchDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a bench. Speeds are medians over prompts, spreads quartiles."""

    version: int
    machine: Machine
    model: BenchModel
    drafter: BenchDrafter | None
    off_reason: Annotated[str, Meta(description="Why speculation is off; empty when it is on.")]
    settings: BenchSettings
    verify_cost: Annotated[
        list[float],
        Meta(description="Time of a decode of 1, 2, ... 9 rows, or more, over that of one row."),
    ]
    verify_ms: Annotated[
        list[float],
        Meta(description="Median of a decode of as many rows, the same number several times in a row."),
    ]
    switch_ms: Annotated[
        float | None,
        Meta(
            description="How much longer a decode takes after one with another number of rows: on a GPU "
            "llama.cpp then builds its graph anew."
        ),
    ]
    memory: BenchMemory
    quick: bool
    complete: Annotated[
        bool, Meta(description="false when the bench ended before every kind of text was measured.")
    ]
    workloads: list[WorkloadDocument]
    server: Annotated[str | None, Meta(description="The server of --compare.")]
    advice: str
    advised: Advised
    notices: list[str]


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that a report shows."""

    machine: Machine
    loaded: Loaded
    tuning: Tuning
    verify_ms: tuple[float, ...]
    switch_ms: float | None
    """Milliseconds that a decode takes longer where the one before had another number of rows."""
    texts: tuple[TextFigures, ...]
    advice: Advice
    peak_rss: int | None
    """Most resident memory of the process so far, in bytes, model file included; None where unknown."""
    quick: bool
    complete: bool
    """False when it ended before every kind of text was measured."""
    notices: tuple[str, ...]
    server: str
    """What was measured beside it; empty without."""

    @property
    def verify_cost(self) -> list[float]:
        """v: milliseconds of a decode of 1, 2, ... rows over those of one."""
        return [ms / self.verify_ms[0] for ms in self.verify_ms] if self.verify_ms else []

    def document(self) -> BenchDocument:
        """The result as JSON."""
        target, drafter = self.loaded.target, self.loaded.drafter
        return BenchDocument(
            version=VERSION,
            machine=self.machine,
            model=BenchModel(
                name=target.name,
                path=target.path,
                architecture=target.architecture,
                quantisation=target.quantisation,
                parameters=target.parameters,
                size_bytes=target.size_bytes,
            ),
            drafter=BenchDrafter(drafter.kind, drafter.path) if drafter else None,
            off_reason=self.loaded.off_reason,
            settings=BenchSettings(self.tuning.mode, self.tuning.margin, self.tuning.gate, self.tuning.temp),
            verify_cost=[round(v, 4) for v in self.verify_cost],
            verify_ms=[round(ms, 3) for ms in self.verify_ms],
            switch_ms=None if self.switch_ms is None else round(self.switch_ms, 3),
            memory=BenchMemory(self.peak_rss),
            quick=self.quick,
            complete=self.complete,
            workloads=[_workload(text) for text in self.texts],
            server=self.server or None,
            advice=self.advice.sentence,
            advised=Advised(self.advice.pays, self.advice.set),
            notices=list(self.notices),
        )


def _workload(text: TextFigures) -> WorkloadDocument:
    auto, server = text.auto, text.server
    return WorkloadDocument(
        name=text.name,
        prompts=text.prompts,
        plain=PlainFigures(round(text.plain.speed.median, 4), _range(text.plain.speed)),
        fixed=[FixedFigures(setting.depth, **_figures(setting)) for setting in text.fixed],
        auto=AutoFigures(**_figures(auto), mean_depth=round(auto.mean_depth, 4)) if auto else None,
        noise=[round(value, 4) for value in text.noise],
        server=(
            ServerFigures(
                tokens_per_s=round(server.median, 4),
                ratio=_median(text.server_ratio),
                acceptance=rounded(text.server_acceptance),
                same_text=text.server_same,
            )
            if server
            else None
        ),
    )


def _figures(setting: Setting) -> dict[str, Any]:
    """The fields of SettingFigures."""
    stats = setting.stats
    return {
        "tokens_per_s": round(setting.speed.median, 4),
        "spread": _range(setting.speed),
        "ratio": _median(setting.ratio),
        "ratio_spread": _range(setting.ratio) if setting.ratio else None,
        "limit": rounded(setting.limit),
        "limit_share": rounded(setting.limit_share),
        "acceptance": rounded(stats.acceptance),
        "accepted": stats.accepted,
        "accepted_ends": stats.accepted_ends,
        "emitted": stats.emitted,
        "by_position": list(stats.by_position),
        "tokens_per_step": rounded(stats.tokens_per_step),
        "predicted_tokens_per_s": rounded(setting.predicted),
        "same_text": (setting.same, setting.runs),
    }


def _median(spread: Spread | None) -> float | None:
    return rounded(spread.median) if spread else None


def _range(spread: Spread) -> Range:
    return round(spread.low, 4), round(spread.high, 4)


# ------------------------------------------------------------------------------------ the machine


def load_average() -> float | None:
    """The system's load over the last minute; None where it has none."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def machine(loaded: Loaded, load_before: float | None) -> Machine:
    """The machine as it is now."""
    after = load_average()
    return Machine(
        system=system(),
        cpu=processor(),
        cores=cores(),
        threads=loaded.threads,
        device=loaded.device,
        load_average=(
            [round(load_before, 2), round(after, 2)]
            if load_before is not None and after is not None
            else None
        ),
    )


def peak_rss() -> int | None:
    """Most resident memory of this process so far, in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
