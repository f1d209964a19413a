"""The result of a bench, which is also its JSON, and the machine that it was measured on."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ds4chat.engine.events import Count, Depth, Loaded, Mode
from ds4chat.engine.machine import cores, processor, system
from ds4chat.engine.stats import NonNegative, PositionCount

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
    ratio: Annotated[float, Meta(description="Speed over plain decoding of the same prompt.")]
    ratio_spread: Range
    limit: Annotated[
        float | None,
        Meta(
            description="Ratio that a fixed depth would reach if a step took only its decodes: tokens per "
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

    depth: Count


class AutoFigures(SettingFigures, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The depth that auto chose."""

    mean_depth: Annotated[float, Meta(description="Drafts per step.")]


class ServerFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server of --compare."""

    tokens_per_s: float
    ratio: Annotated[float, Meta(description="Its speed over plain decoding here.")]
    acceptance: Annotated[float | None, Meta(description="Of its own drafts; null if it made none.")]
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

    @property
    def settings(self) -> dict[Depth, SettingFigures]:
        """The fixed depths and auto, by depth."""
        figures: dict[Depth, SettingFigures] = {fixed.depth: fixed for fixed in self.fixed}
        return figures | ({"auto": self.auto} if self.auto else {})


class Advised(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The advice as values."""

    pays: Annotated[bool | None, Meta(description="null if nothing was compared.")]
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
            "llama.cpp then builds its graph again."
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


# ------------------------------------------------------------------------------------ the machine


def load_average() -> float | None:
    """The system's load over the last minute; None if it has none."""
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
    """Most resident memory of this process so far, in bytes; None if the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
