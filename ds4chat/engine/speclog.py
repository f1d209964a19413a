"""The lines of ``--mtp-timing``, ``--mtp-spec-log``, ``--mtp-conf-log`` and ``--mtp-probe``.

One line an event: ``ds4chat: mtp <kind> key=value ...``. Fields that ds4 prints come first, under ds4's
names; units are in the name (``_ms``); texts are ASCII JSON strings, so that no token can break a line or
control a terminal. ``ds4chat.analysis.log_parser`` reads these lines.

The figures differ from ds4's: there ``drafted`` and ``committed`` count the first draft, which ds4 checks for
free against logits it already has, and ``margin`` is the drafter's logit gap. Here the verification batch
judges every draft, ``committed`` is the number of accepted drafts, and ``margin`` and ``gate`` are the
probability ratio and the logit gap in force. Tokens emitted by a step are ``emitted``; an accepted draft that
ends the reply is ``accepted_end`` and not one of them. ``baseline`` is 1 for a step by which the speed of
plain decoding is measured.
"""

from __future__ import annotations

import json

from ds4chat.engine.events import Judged, Step
from ds4chat.engine.stats import OUTCOMES, PHASES, Stats

PREFIX = "ds4chat: mtp"


def quoted(text: str) -> str:
    """``text`` as a JSON string in ASCII: one line, without control characters."""
    return json.dumps(text, ensure_ascii=True)


def ratio_text(ratio: float | None) -> str:
    """A ratio or probability with six decimals, or in scientific notation where it is small; nan for None."""
    if ratio is None:
        return "nan"
    return f"{ratio:.6f}" if ratio >= 1e-3 or ratio == 0 else f"{ratio:.4e}"


def _fixed(value: float | None, digits: int = 4) -> str:
    return "nan" if value is None else f"{value:.{digits}f}"


def timing_line(step: Step) -> str:
    """The ``--mtp-timing`` line of one step: counters, the six phases, and the settings in force."""
    phases = " ".join(f"{phase}_ms={getattr(step.ms, phase):.3f}" for phase in PHASES)
    return (
        f"{PREFIX} timing drafted={step.drafted} committed={step.accepted} margin={step.tuning.margin:.3f} "
        f"{phases} step={step.index} reply={step.reply} outcome={step.outcome} emitted={len(step.tokens)} "
        f"judged={len(step.judged)} depth={step.depth} mode={step.tuning.mode} gate={step.tuning.gate:.3f} "
        f"drafter={step.drafter or 'none'} accepted_end={int(step.accepted_end)} "
        f"baseline={int(step.baseline)}"
    )


def spec_line(step: Step) -> str:
    """The ``--mtp-spec-log`` line of one step: its outcome, and the rejected draft if there was one.

    The word after ``spec`` is ``accept`` for a fully accepted draft, else the step's outcome.
    """
    verdict = "accept" if step.outcome == "full" else step.outcome
    rejected = next((row for row in step.judged if not row.accepted), None)
    fields = ""
    if rejected is not None:
        fields = (
            f" draft={rejected.draft} target={rejected.target} at={rejected.position} "
            f"ratio={ratio_text(rejected.ratio)}"
        )
    return (
        f"{PREFIX} spec {verdict}{fields} drafted={step.drafted} accepted={step.accepted} "
        f"depth={step.depth} emitted={len(step.tokens)} accepted_end={int(step.accepted_end)} "
        f"step={step.index} reply={step.reply}"
    )


def conf_line(step: Step, judged: Judged) -> str:
    """The ``--mtp-conf-log`` line of one judged draft, with the full distribution if it was computed."""
    line = (
        f"{PREFIX} conf step={step.index} position={judged.position} drafted={step.drafted} "
        f"committed={step.accepted} draft={judged.draft} target={judged.target} "
        f"accepted={int(judged.accepted)} by={judged.by or 'none'} ratio={ratio_text(judged.ratio)} "
        f"gap={_fixed(judged.gap, 6)} draft_gap={_fixed(judged.draft_gap, 6)} "
        f"draft_prob={_fixed(judged.draft_prob, 6)} reply={step.reply} depth={step.depth} "
        f"margin={step.tuning.margin:.3f} gate={step.tuning.gate:.3f} mode={step.tuning.mode} "
        f"draft_text={quoted(judged.draft_text)} target_text={quoted(judged.target_text)}"
    )
    if judged.full is None:
        return line
    full = judged.full
    top = json.dumps([[id, text, float(ratio_text(p))] for id, text, p in full.top], separators=(",", ":"))
    return (
        f"{line} p_draft={ratio_text(full.p_draft)} p_target={ratio_text(full.p_target)} "
        f"entropy_nats={full.entropy:.6f} top={top}"
    )


def probe_line(token: int, draft: int, hits: int, total: int) -> str:
    """The ``--mtp-probe`` line after one token: the token, its draft, and the hits so far."""
    return f"{PREFIX} probe token={token} draft={draft} hit={hits}/{total}"


def summary_lines(stats: Stats) -> list[str]:
    """The lines after a reply: totals, outcomes, phases, prefill, and one line for each draft position.

    ``speedup`` is over plain decoding, measured by ``plain_passes`` steps of the reply, or at the load if 0.
    """
    plain = stats.plain
    lines = [
        f"{PREFIX} summary steps={stats.steps} drafted={stats.drafted} judged={stats.judged} "
        f"accepted={stats.accepted} accepted_ends={stats.accepted_ends} emitted={stats.emitted} "
        f"lossy={stats.lossy} "
        f"acceptance={_fixed(stats.acceptance)} mean_accepted={_fixed(stats.mean_accepted)} "
        f"tokens_per_step={_fixed(stats.tokens_per_step)}",
        f"{PREFIX} summary decode_tokens_per_s={_fixed(stats.decode_tokens_per_s, 2)} "
        f"plain_tokens_per_s={_fixed(plain.tokens_per_s, 2)} plain_passes={plain.passes} "
        f"speedup={_fixed(plain.speedup, 3)}",
        f"{PREFIX} summary outcomes "
        + " ".join(
            f"{outcome}={stats.outcomes[outcome]}"
            for outcome in OUTCOMES
            if outcome != "unknown" or stats.outcomes[outcome]  # which only a server's steps are
        ),
        f"{PREFIX} summary phases " + " ".join(f"{phase}_ms={stats.ms[phase]:.3f}" for phase in PHASES),
        f"{PREFIX} summary prefill prompt_tokens={stats.prompt_tokens} reused_tokens={stats.reused_tokens} "
        f"prefill_ms={stats.prefill_ms:.3f} first_token_ms={stats.first_token_ms:.3f}",
    ]
    for position, count in enumerate(stats.by_position, 1):
        lines.append(
            f"{PREFIX} summary position={position} judged={count.judged} accepted={count.accepted} "
            f"acceptance={_fixed(count.rate)}"
        )
    return lines
