"""The result for people: a table, a picture of block characters, one sentence. Text in at most 80 columns."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Sequence

from ds4chat.commands.bench.result import (
    AutoFigures,
    BenchDocument,
    FixedFigures,
    SettingFigures,
    WorkloadDocument,
)
from ds4chat.commands.bench.runs import VERIFY_ROWS, name_of

WIDTH = 80
LABEL = 16
CELL = 7
COLUMNS = (WIDTH - LABEL) // CELL
BAR = 44
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def report(result: BenchDocument, *, with_plot: bool = False) -> str:
    """The whole table, if wanted the picture, and the advice as the last paragraph."""
    texts = result.workloads
    parts = [_head(result), *map(_text, texts)]
    if any(text.fixed for text in texts):
        parts += [_positions(texts), _legend(result)]
    elif sentences := _server_sentences(result):
        parts.append(_wrapped(sentences))
    if with_plot and texts:
        parts.append(plot(texts))
    return "\n\n".join([*parts, _wrapped([result.advice])])


def _wrapped(sentences: Sequence[str]) -> str:
    """The sentences in lines of at most 80 columns; names of files and options stay whole."""
    return textwrap.fill(" ".join(sentences), WIDTH, break_long_words=False, break_on_hyphens=False)


def _head(result: BenchDocument) -> str:
    model, machine = result.model, result.machine
    threads = f"{machine.threads} of {machine.cores} threads" if machine.device == "CPU" else machine.device
    lines = [
        f"model     {model.name}, {model.quantisation}, {model.parameters / 1e6:.0f} M parameters",
        f"drafter   {result.drafter.kind if result.drafter else 'none: ' + result.off_reason}",
        f"machine   {machine.cpu}, {threads}",
    ]
    if peak := result.memory.peak_rss_bytes:
        size = f"weights {model.size_bytes / 2**20:.0f} MiB"
        lines.append(f"memory    {peak / 2**20:.0f} MiB at most, {size}")
    if result.settings.mode != "exact" or result.settings.temp > 0:
        lines.append(f"settings  {result.settings.mode} mode, temperature {result.settings.temp:g}")
    for first in range(0, len(result.verify_cost), VERIFY_ROWS):
        part = result.verify_cost[first : first + VERIFY_ROWS]
        rows = "".join(f"{first + n:{CELL}}" for n in range(1, len(part) + 1))
        lines += ["", f"rows      {rows}", "cost      " + "".join(f"{v:{CELL}.2f}" for v in part)]
    if result.verify_ms:
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


def _text(text: WorkloadDocument) -> str:
    """One kind of text: a column for each setting, a line for each figure."""
    plain, server = text.plain, text.server
    rows: list[tuple[str, list[str]]] = []

    def line(
        label: str, of: Callable[[SettingFigures], str], of_plain: str = "", of_server: str = ""
    ) -> None:
        rows.append((label, [of_plain, *map(of, text.settings.values()), *[of_server] * bool(server)]))

    line(f"{text.name} ({text.prompts})", _column, "plain", "server")
    line(
        "  tok/s",
        lambda s: f"{s.tokens_per_s:.1f}",
        f"{plain.tokens_per_s:.1f}",
        f"{server.tokens_per_s:.1f}" if server else "",
    )
    line("  x plain", lambda s: f"{s.ratio:.2f}", of_server=f"{server.ratio:.2f}" if server else "")
    if text.prompts > 1:
        line("    quartiles", lambda s: f"±{(s.ratio_spread[1] - s.ratio_spread[0]) / 2:.2f}")
    line(
        "    predicted",
        lambda s: _two_places(s.predicted_tokens_per_s and s.predicted_tokens_per_s / plain.tokens_per_s),
    )
    line("    of the limit", lambda s: _two_places(s.limit_share))
    line(
        "  accepted",
        lambda s: _two_places(s.acceptance),
        of_server=_two_places(server.acceptance if server else None),
    )
    if text.fixed:
        line("  tokens a pass", lambda s: _two_places(s.tokens_per_step), _two_places(1))
    return _table(rows)


def _table(rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A line for each label with its cells, unless all are empty; columns that do not fit go below."""
    lines: list[str] = []
    for first in range(0, max(len(cells) for _, cells in rows), COLUMNS):
        for label, cells in rows:
            if any(part := cells[first : first + COLUMNS]):
                lines.append(f"{label:{LABEL}}" + "".join(f"{cell:>{CELL}}" for cell in part).rstrip())
    return "\n".join(lines)


def _column(setting: SettingFigures) -> str:
    if isinstance(setting, AutoFigures):
        return f"a {setting.mean_depth:.1f}"
    assert isinstance(setting, FixedFigures)
    return str(setting.depth)


def _two_places(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _positions(texts: Sequence[WorkloadDocument]) -> str:
    """Conditional acceptance by position, at the deepest setting."""
    deepest = max(fixed.depth for text in texts for fixed in text.fixed)
    rows = [("", [str(position) for position in range(1, deepest + 1)])]
    for text in texts:
        if setting := text.settings.get(deepest):
            rows.append((f"  {text.name}", [_two_places(count.rate) for count in setting.by_position]))
    return f"accepted at position, depth {deepest}\n{_table(rows)}"


def _legend(result: BenchDocument) -> str:
    same, runs = (sum(n) for n in zip(*(f.same_text for text in result.workloads for f in text.fixed)))
    sentences = [
        "In brackets the prompts of each kind; columns are depths, a is auto with its mean depth; figures "
        "are medians over prompts.",
        "Predicted: by the drafts of the deepest run and the measured times of steps.",
        "The limit: tokens a pass over v + k c, v the cost of k + 1 rows and c that of a draft.",
        f"{same} of {runs} replies have the tokens of plain decoding.",
    ]
    if noise := [value for text in result.workloads for value in text.noise]:
        sentences.append(
            f"Two plain runs of the same prompt differ by {statistics.median(noise):.0%} in the median."
        )
    sentences += _server_sentences(result)
    if not result.complete:
        sentences.append("It ended before every kind of text was measured.")
    return _wrapped(sentences)


def _server_sentences(result: BenchDocument) -> list[str]:
    """Sentences about the server; none without one."""
    servers = [text.server for text in result.workloads if text.server]
    if not servers:
        return []
    sentences = [f"Server: {result.server}."]
    same, named = (sum(counts) for counts in zip(*(server.same_text for server in servers)))
    if named and result.settings.temp == 0:
        sentences.append(f"{same} of its {named} replies have the tokens of plain decoding here.")
    return sentences


# ------------------------------------------------------------------------------------ the picture


def plot(texts: Sequence[WorkloadDocument]) -> str:
    """Bars of the speed at each setting against plain decoding, whose length is marked by a line."""
    groups = [
        (text.name, {"plain": 1.0, **{name_of(depth): s.ratio for depth, s in text.settings.items()}})
        for text in texts
    ]
    scale = BAR / max(ratio for _, ratios in groups for ratio in ratios.values())
    mark = min(round(scale), BAR) - 1
    paragraphs: list[str] = []
    for name, ratios in groups:
        lines: list[str] = []
        for setting, ratio in ratios.items():
            bar = _bar(ratio * scale)
            if len(bar) <= mark:
                bar = bar.ljust(mark) + "│"
            lines.append(f"{'' if lines else name:9}{setting:9}{bar.ljust(BAR + 1)}{ratio:5.2f}")
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def _bar(length: float) -> str:
    eighths = round(length * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
