"""A report for an issue as one Markdown block: versions, machine, files, settings and figures, and no text of
a conversation."""

from __future__ import annotations

import os
import platform
import re
import textwrap
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from ds4chat import __version__
from ds4chat.engine import machine
from ds4chat.engine.events import Loaded, ServerInfo
from ds4chat.engine.stats import PHASES, Stats
from ds4chat.models.errors import ModelFileError, shown_size
from ds4chat.models.gguf_file import read_header
from ds4chat.models.summary import quantisation
from ds4chat.settings.schema import OPTIONS, Option, Settings
from ds4chat.text import counted, one_line
from ds4chat.tui.kit.charts import baseline_words
from ds4chat.tui.kit.figures import count, decimal, grouped, percent

Facts = list[tuple[str, str]]
"""Labels and values. The label is empty if the value continues the line before."""

LABEL = 16
PRIVATE_KINDS = frozenset({"str", "table"})
"""Kinds of settings whose values may name people, machines or topics."""


def machine_facts(loaded: Loaded | None) -> Facts:
    """The machine, and the device of the model."""
    memory = machine.memory()
    facts = [
        ("system", f"{machine.system()} {platform.release()}"),
        ("processor", f"{one_line(machine.processor())}, {counted(machine.cores(), 'core')}"),
    ]
    if memory:
        facts.append(("memory", shown_size(memory)))
    if loaded is None:
        facts.append(("device", "not known before a model is loaded"))
    elif loaded.server is None:
        facts.append(("device", f"{one_line(loaded.device)}, {counted(loaded.threads, 'thread')}"))
    return facts


def model_facts(loaded: Loaded | None) -> Facts:
    """The model and its drafter, with their files, whose headers are read for it."""
    if loaded is None:
        return [("model", "none is loaded")]
    target, drafter, server = loaded.target, loaded.drafter, loaded.server
    if server is None:
        size = _file_words(target.path)
    else:
        size = f"{shown_size(target.size_bytes)} of weights" if target.size_bytes else ""
    kind = (
        target.architecture,
        target.quantisation,
        size,
        f"{target.parameters / 1e6:,.0f}M parameters" if target.parameters else "",
    )
    facts = [("model", one_line(", ".join([target.title, *filter(None, kind)])))]
    if server is None:
        facts.append(("", one_line(target.path)))
    else:
        facts.append(("server", _server_words(server)))
    if drafter is not None:
        most = f"at most {drafter.max_depth} drafts per step" if drafter.max_depth else ""
        file = _file_words(drafter.path, named=True) if drafter.path else ""
        facts.append(("drafter", one_line(", ".join(filter(None, (drafter.kind, file, most))))))
        if drafter.path:
            facts.append(("", one_line(drafter.path)))
    if loaded.off_reason:
        facts.append(("MTP is off", one_line(loaded.off_reason)))
    return facts


def _server_words(server: ServerInfo) -> str:
    host = urlsplit(server.url).hostname or ""
    where = "on this machine" if machine.is_this_machine(host) else "on another machine"
    return one_line(f"{server.kind} {server.version}".strip() + f", {where}; it reports {server.tells}")


def _file_words(path: str, *, named: bool = False) -> str:
    """Size of a model file, all its parts together; ``named``: with its quantisation."""
    try:
        header = read_header(path)
    except ModelFileError:
        return "its file cannot be read now"
    size = f"a file of {shown_size(header.file_size)}"
    return f"{quantisation(header)}, {size}" if named else size


def setting_facts(settings: Settings) -> Facts:
    """The settings that differ from their defaults; those that may be private without their values."""
    return [
        (option.key, _setting_words(option, getattr(settings, option.attribute)))
        for option in OPTIONS
        if getattr(settings, option.attribute) != option.default
    ]


def _setting_words(option: Option, value: object) -> str:
    if option.kind in PRIVATE_KINDS:
        return "set (not shown)"
    if isinstance(value, bool):
        return "on" if value else "off"
    return one_line(value)


def figure_facts(reply: Stats, session: Stats) -> Facts:
    """Counters, speeds and outcomes of the last reply and of the session."""

    def both(label: str, last: str, whole: str) -> tuple[str, str]:
        return label, f"{last:>10}{whole:>14}"

    def counts(label: str, name: str) -> tuple[str, str]:
        return both(label, count(getattr(reply, name)), count(getattr(session, name)))

    def figures(label: str, name: str) -> tuple[str, str]:
        return both(label, decimal(getattr(reply, name), places=2), decimal(getattr(session, name), places=2))

    plain = reply.plain
    facts = [
        both("", "last reply", "session"),
        *(counts(name, name) for name in ("steps", "drafted", "judged", "accepted", "emitted", "lossy")),
        both("acceptance", percent(reply.acceptance), percent(session.acceptance)),
        figures("mean accepted", "mean_accepted"),
        figures("tokens per step", "tokens_per_step"),
        figures("tok/s", "decode_tokens_per_s"),
        figures("prefill tok/s", "prefill_tokens_per_s"),
    ]
    if plain.tokens_per_s is None:
        facts.append(("plain", "plain decoding was not measured"))
    else:
        ratio = f", {plain.speedup:.2f}× plain" if plain.speedup else ""
        facts.append(("plain", f"{plain.tokens_per_s:.1f} tok/s by {_measured(reply)}{ratio}"))
    outcomes = [f"{outcome} {number:,}" for outcome, number in reply.outcomes.items() if number]
    facts.append(("outcomes", ", ".join(outcomes) or "none"))
    if reply.loop_tokens:
        since = (reply.loop_since or 0) + 1
        facts.append(("repeated", f"{reply.loop_tokens:,} tokens, from token {since:,}"))
    return facts


def _measured(reply: Stats) -> str:
    return baseline_words(reply.plain).removeprefix("by ")


def position_facts(reply: Stats) -> Facts:
    """Acceptance by the draft's position in its step."""
    return [
        (f"position {at}", f"{percent(counted.rate)}  {counted.accepted:,}/{counted.judged:,}")
        for at, counted in enumerate(reply.by_position, start=1)
        if counted.judged
    ]


def phase_facts(reply: Stats) -> Facts:
    """Milliseconds per step of each phase, and its share."""
    total = reply.ms["total"]
    return [
        (phase, f"{decimal(reply.ms[phase] / reply.steps, 8, 2)} ms {percent(reply.ms[phase] / total)}")
        for phase in PHASES
        if reply.steps and total > 0
    ]


def report(settings: Settings, loaded: Loaded | None, reply: Stats | None, session: Stats, state: str) -> str:
    """The report. ``reply``: the figures of the last reply, or None; ``state``: the engine's, in a word."""
    parts: list[tuple[str, Facts]] = [
        ("", [*_versions(loaded), *machine_facts(loaded), ("engine", one_line(state))]),
        ("", model_facts(loaded)),
        ("Settings that are not the defaults", setting_facts(settings) or [("", "none")]),
    ]
    if loaded is not None:
        used = (reply or session).context
        parts[1][1].append(("context", f"{grouped(used)} of {grouped(loaded.n_ctx or None)} tokens"))
    if reply is None or not reply.steps:
        parts.append(("Figures", [("", "there is no reply with steps yet")]))
    else:
        parts += [
            ("Figures", figure_facts(reply, session)),
            ("Acceptance by position, last reply", position_facts(reply) or [("", "no draft was judged")]),
            ("Milliseconds per step, last reply", phase_facts(reply) or [("", "not known")]),
        ]
    lines = [line for title, facts in parts for line in _part(title, facts)]
    return _without_private("\n".join(["```text", *lines[1:], "```"]) + "\n", settings, loaded)


def _versions(loaded: Loaded | None) -> Facts:
    try:
        bindings = metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        bindings = "not installed"
    known = loaded.llama_cpp if loaded else ""
    return [
        ("ds4chat", __version__),
        ("llama.cpp", known or f"the one in llama-cpp-python {bindings}"),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
    ]


def _part(title: str, facts: Facts) -> Sequence[str]:
    lines = [f"{label:<{LABEL}} {value}".rstrip() for label, value in facts]
    return ["", title, *textwrap.indent("\n".join(lines), "  ").split("\n")] if title else ["", *lines]


def _without_private(text: str, settings: Settings, loaded: Loaded | None) -> str:
    """``text`` with ~ for the home folder, and without the addresses of servers."""
    home = str(Path.home())
    hidden = dict.fromkeys({home, os.path.realpath(home)} - {"/"}, "~")
    server = loaded.server if loaded else None
    addresses = [server.url, server.name] if server else []
    addresses += [address.strip() for address in settings.rpc.split(",")]
    hidden |= {one_line(address): "(a server)" for address in addresses if address}
    for name, instead in hidden.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", instead, text)
    return text
