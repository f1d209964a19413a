"""The result for people: a table, a picture of block characters, one sentence. Text in at most 80 columns."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Sequence

from ds4chat.commands.bench.figures import Setting, Spread, TextFigures
from ds4chat.commands.bench.result import Result
from ds4chat.commands.bench.runs import VERIFY_ROWS, name_of

WIDTH = 80
LABEL = 15
CELL = 7
BAR = 44
_EIGHTHS = " ▏▎▍▌▋▊▉"


def report(result: Result) -> str:
    """The whole table, the advice as its last paragraph."""
    parts = [_head(result)]
    if result.texts:
        parts += [_text(text, result) for text in result.texts]
        if any(text.fixed for text in result.texts):
            parts += [_positions(result.texts), _legend(result)]
        elif beside := _beside(result):
            parts.append(wrapped(" ".join(beside)))
    parts.append(wrapped(result.advice.sentence))
    return "\n\n".join(parts)


def wrapped(sentence: str) -> str:
    """The sentence in lines of at most 80 columns; names of files and options stay whole."""
    return textwrap.fill(sentence, WIDTH, break_long_words=False, break_on_hyphens=False)


def _head(result: Result) -> str:
    loaded, machine = result.loaded, result.machine
    target = loaded.target
    drafter = loaded.drafter
    threads = f"{machine.threads} of {machine.cores} threads" if machine.device == "CPU" else machine.device
    lines = [
        f"model     {target.name}, {target.quantisation}, {target.parameters / 1e6:.0f} M parameters",
        f"drafter   {drafter.kind if drafter else 'none: ' + loaded.off_reason}",
        f"machine   {machine.cpu}, {threads}",
    ]
    if result.peak_rss:
        size = f"model file {target.size_bytes / 2**20:.0f} MiB"
        lines.append(f"memory    {result.peak_rss / 2**20:.0f} MiB at most, {size}")
    if result.tuning.mode != "exact" or result.tuning.temp > 0:
        lines.append(f"settings  {result.tuning.mode} mode, temperature {result.tuning.temp:g}")
    if result.verify_ms:
        for first in range(0, len(result.verify_ms), VERIFY_ROWS):
            part = result.verify_cost[first : first + VERIFY_ROWS]
            rows = "".join(f"{first + n:{CELL}}" for n in range(1, len(part) + 1))
            lines += ["", f"rows      {rows}", "cost      " + "".join(f"{v:{CELL}.2f}" for v in part)]
        lines.append(
            f"          of verifying that many rows in one batch; one takes {result.verify_ms[0]:.1f} ms"
        )
        if result.switch_ms is not None:
            lines.append(
                f"          another number of rows than in the step before adds {result.switch_ms:.1f} ms"
            )
    if machine.busy and machine.load_average:
        lines += [
            "",
            f"The machine was busy (load {machine.load_average[0]:.1f}): trust the ratios, not the speeds.",
        ]
    return "\n".join(lines)


def _text(text: TextFigures, result: Result) -> str:
    """One kind of text: a column for each setting, a line for each figure."""
    settings = [text.plain, *text.fixed, *([text.auto] if text.auto else [])]
    prompts = f"{text.name} ({text.prompts})"
    head = "".join(f"{_column(s):>{CELL}}" for s in settings) + (f"{'server':>{CELL}}" if text.server else "")
    lines = [f"{prompts:{LABEL}}{head}"]

    def line(label: str, cell: Callable[[Setting], str], server: str = "") -> None:
        cells = [cell(setting) for setting in settings] + ([server] if text.server else [])
        if any(cells):
            lines.append(f"  {label:{LABEL - 2}}" + "".join(f"{c:>{CELL}}" for c in cells).rstrip())

    line("tok/s", lambda s: f"{s.speed.median:.1f}", f"{text.server.median:.1f}" if text.server else "")
    if text.fixed or text.server_ratio:
        line(
            "x plain",
            lambda s: _ratio(s.ratio),
            _ratio(text.server_ratio),
        )
    if text.prompts > 1:
        line("  quartiles", lambda s: _half_width(s.ratio if s.depth else None))
    line("  predicted", lambda s: _predicted(s, text))
    line("  of the limit", lambda s: f"{s.limit_share:.2f}" if s.limit_share is not None else "")
    line(
        "accepted",
        lambda s: f"{s.stats.acceptance:.2f}" if s.stats.acceptance is not None else "",
        f"{text.server_acceptance:.2f}" if text.server_acceptance is not None else "",
    )
    if text.fixed:
        line("tokens a pass", lambda s: f"{s.stats.tokens_per_step:.2f}" if s.stats.tokens_per_step else "")
    return "\n".join(lines)


def _column(setting: Setting) -> str:
    if setting.depth == "auto":
        return f"a {setting.mean_depth:.1f}"
    return str(setting.depth) if setting.depth else "plain"


def _ratio(ratio: Spread | None) -> str:
    return f"{ratio.median:.2f}" if ratio else ""


def _half_width(ratio: Spread | None) -> str:
    return f"±{(ratio.high - ratio.low) / 2:.2f}" if ratio else ""


def _predicted(setting: Setting, text: TextFigures) -> str:
    """The predicted speed over the plain speed that the same step times predict is not shown: both are held
    against what was measured."""
    if setting.predicted is None or not setting.depth:
        return ""
    return f"{setting.predicted / text.plain.speed.median:.2f}"


def _positions(texts: Sequence[TextFigures]) -> str:
    """Conditional acceptance by position, at the deepest setting."""
    deepest = max((s.depth for text in texts for s in text.fixed if s.depth != "auto"), default=0)
    lines = [f"accepted at position, depth {deepest}"]
    lines.append(" " * LABEL + "".join(f"{n:{CELL}}" for n in range(1, deepest + 1)))
    for text in texts:
        for setting in text.fixed:
            if setting.depth == deepest:
                rates = [p.rate for p in setting.stats.by_position]
                cells = "".join(f"{rate:{CELL}.2f}" if rate is not None else " " * CELL for rate in rates)
                lines.append(f"  {text.name:{LABEL - 2}}{cells}")
    return "\n".join(lines)


def _legend(result: Result) -> str:
    same = sum(s.same for text in result.texts for s in text.fixed)
    runs = sum(s.runs for text in result.texts for s in text.fixed)
    sentences = [
        "In brackets the prompts of each kind; columns are depths, a is auto with its mean depth; figures "
        "are medians over prompts.",
        "Predicted: by the drafts of the deepest run and the measured times of steps.",
        "The limit: tokens a pass over v + k c, v the cost of k + 1 rows and c that of a draft.",
        f"{same} of {runs} replies have the tokens of plain decoding.",
    ]
    if noise := [value for text in result.texts for value in text.noise]:
        sentences.append(
            f"Two plain runs of the same prompt differ by {statistics.median(noise):.0%} in the median."
        )
    sentences += _beside(result)
    if not result.complete:
        sentences.append("It ended before every kind of text was measured.")
    return wrapped(" ".join(sentences))


def _beside(result: Result) -> list[str]:
    """Lines about the server; none without one."""
    if not any(text.server for text in result.texts):
        return []
    sentences = [f"Server: {result.server}."]
    same, known = (sum(counts) for counts in zip(*(text.server_same for text in result.texts)))
    if known and result.tuning.temp == 0:
        sentences.append(f"{same} of its {known} replies have the tokens of plain decoding here.")
    return sentences


# ------------------------------------------------------------------------------------ the picture


def plot(texts: Sequence[TextFigures], *, blocks: bool = True) -> str:
    """Bars of the speed at each setting against plain decoding, whose length is marked by a line.

    ``blocks`` False draws with ASCII alone, for an output that cannot encode block characters.
    """
    rows: list[tuple[str, str, float]] = []
    for text in texts:
        for i, setting in enumerate([text.plain, *text.fixed, *([text.auto] if text.auto else [])]):
            ratio = setting.ratio.median if setting.ratio else 1.0
            rows.append((text.name if i == 0 else "", name_of(setting.depth), ratio))
    if not rows:
        return ""
    scale = BAR / max(1.0, *(ratio for _, _, ratio in rows))
    mark = min(round(scale), BAR) - 1
    lines: list[str] = []
    for name, setting_name, ratio in rows:
        if name and lines:
            lines.append("")
        bar = _bar(ratio * scale, blocks)
        if len(bar) <= mark:
            bar = bar.ljust(mark) + ("│" if blocks else "|")
        lines.append(f"{name:9}{setting_name:9}{bar.ljust(BAR + 1)}{ratio:5.2f}")
    return "\n".join(lines)


def _bar(length: float, blocks: bool) -> str:
    if not blocks:
        return "#" * round(length)
    whole, eighths = divmod(round(length * 8), 8)
    return "█" * whole + (_EIGHTHS[eighths] if eighths else "")
