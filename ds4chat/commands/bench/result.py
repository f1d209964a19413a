"""The result of one bench: what was measured on what, as an object and as JSON."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds4chat.commands.bench.advice import Advice
from ds4chat.commands.bench.figures import Setting, Spread, TextFigures
from ds4chat.engine.events import Loaded, Tuning
from ds4chat.engine.measure import cores

VERSION = 1


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured."""

    system: str
    cpu: str
    cores: int
    threads: int
    """Of the engine."""
    device: str
    load: tuple[float, float] | None
    """The system's load average before and after; None where the system has none."""

    @property
    def busy(self) -> bool:
        """Others used the processors before the bench began."""
        return self.load is not None and self.load[0] > 0.5 * self.cores


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

    def as_json(self) -> dict[str, Any]:
        """The stable JSON form; docs/bench.md describes it."""
        target, drafter = self.loaded.target, self.loaded.drafter
        load = self.machine.load
        return {
            "version": VERSION,
            "machine": {
                "system": self.machine.system,
                "cpu": self.machine.cpu,
                "cores": self.machine.cores,
                "threads": self.machine.threads,
                "device": self.machine.device,
                "load_average": [round(value, 2) for value in load] if load else None,
            },
            "model": {
                "name": target.name,
                "path": target.path,
                "architecture": target.architecture,
                "quantisation": target.quantisation,
                "parameters": target.parameters,
                "size_bytes": target.size_bytes,
            },
            "drafter": {"kind": drafter.kind, "path": drafter.path} if drafter else None,
            "off_reason": self.loaded.off_reason,
            "settings": {
                "mode": self.tuning.mode,
                "margin": self.tuning.margin,
                "gate": self.tuning.gate,
                "temp": self.tuning.temp,
            },
            "verify_cost": [round(v, 4) for v in self.verify_cost],
            "verify_ms": [round(ms, 3) for ms in self.verify_ms],
            "switch_ms": None if self.switch_ms is None else round(self.switch_ms, 3),
            "memory": {"peak_rss_bytes": self.peak_rss},
            "quick": self.quick,
            "complete": self.complete,
            "workloads": [_text_json(text) for text in self.texts],
            "server": self.server or None,
            "advice": self.advice.sentence,
            "advised": {"pays": self.advice.pays, "mtp_draft": self.advice.set},
            "notices": list(self.notices),
        }


def _text_json(text: TextFigures) -> dict[str, Any]:
    return {
        "name": text.name,
        "prompts": text.prompts,
        "plain": {"tokens_per_s": _round(text.plain.speed.median), "spread": _spread(text.plain.speed)},
        "fixed": [{"depth": setting.depth, **_setting_json(setting)} for setting in text.fixed],
        "auto": (
            {**_setting_json(text.auto), "mean_depth": _round(text.auto.mean_depth)} if text.auto else None
        ),
        "noise": [round(value, 4) for value in text.noise],
        "server": (
            {
                "tokens_per_s": _round(text.server.median),
                "ratio": _median(text.server_ratio),
                "acceptance": _round(text.server_acceptance),
                "same_text": list(text.server_same),
            }
            if text.server
            else None
        ),
    }


def _setting_json(setting: Setting) -> dict[str, Any]:
    stats = setting.stats
    return {
        "tokens_per_s": _round(setting.speed.median),
        "spread": _spread(setting.speed),
        "ratio": _median(setting.ratio),
        "ratio_spread": _spread(setting.ratio),
        "limit": _round(setting.limit),
        "limit_share": _round(setting.limit_share),
        "acceptance": _round(stats.acceptance),
        "accepted": stats.accepted,
        "accepted_ends": stats.accepted_ends,
        "emitted": stats.emitted,
        "by_position": [{"judged": p.judged, "accepted": p.accepted} for p in stats.by_position],
        "tokens_per_step": _round(stats.tokens_per_step),
        "predicted_tokens_per_s": _round(setting.predicted),
        "same_text": [setting.same, setting.runs],
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _median(spread: Spread | None) -> float | None:
    return _round(spread.median) if spread else None


def _spread(spread: Spread | None) -> list[float | None] | None:
    return [_round(spread.low), _round(spread.high)] if spread else None


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
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpu(),
        cores=cores(),
        threads=loaded.threads,
        device=loaded.device,
        load=(load_before, after) if load_before is not None and after is not None else None,
    )


def _cpu() -> str:
    """Name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peak_rss() -> int | None:
    """Most resident memory of this process so far, in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
