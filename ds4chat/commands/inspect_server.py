"""``inspect --server``: what a server is, what it reports about its speculation, and which settings it
accepts."""

from __future__ import annotations

from typing import Any

from ds4chat.commands.running import say
from ds4chat.engine.events import Event, Loaded, Notice, ServerInfo, Tells
from ds4chat.engine.from_settings import load_of
from ds4chat.engine.sessions import open_session
from ds4chat.settings.schema import TUNING, Settings
from ds4chat.text import json_text

TELLS: dict[Tells, str] = {
    "exact": "every token's origin, as the reply is written",
    "exact at the end": "every token's origin, once the reply has ended",
    "by step": "how many of a step's tokens were accepted",
    "counters": "the totals of a reply, at its end",
    "nothing": "nothing",
}


def run(settings: Settings, json: bool) -> int:
    """Print the report; the exit code. Raises LoadError if no known server answers."""

    def note(event: Event) -> None:
        if isinstance(event, Notice):
            say(event.message)

    _, loaded = open_session(load_of(settings), note, forgiving=False)
    assert loaded.server is not None
    report = _report(loaded, loaded.server)
    print(json_text(report, ascii_only=True) if json else _lines(report))
    return 0


def _report(loaded: Loaded, server: ServerInfo) -> dict[str, Any]:
    keys = {option.tuning: option.key for option in TUNING}
    fixed = dict(server.fixed)
    return {
        "url": server.url,
        "kind": server.kind,
        "version": server.version,
        "model": loaded.target.name,
        "context": loaded.n_ctx or None,
        "speculates": server.speculates,
        "drafter": loaded.drafter.kind if loaded.drafter else None,
        "tells": server.tells,
        "not_told": server.why,
        "per_request": [keys[field] for field in keys if field in server.live],
        "fixed": {keys[field]: fixed[field] for field in keys if field in fixed},
        "key": server.has_key,
        "encrypted": server.url.startswith("https://"),
    }


def _lines(report: dict[str, Any]) -> str:
    drafts = {True: "yes", False: "no drafter is in use", None: "not told"}[report["speculates"]]
    if report["drafter"] not in (None, "server"):
        drafts = report["drafter"]
    rows = [
        ("kind", f"{report['kind']} {report['version']}".strip()),
        ("model", report["model"]),
        ("context", f"{report['context']:,} tokens" if report["context"] else "not told"),
        ("speculation", drafts),
        ("tells", TELLS[report["tells"]]),
        ("not told", report["not_told"]),
        ("per request", ", ".join(report["per_request"])),
        ("key", "sent with each request" if report["key"] else "none"),
    ]
    rows += [(f"{key}", f"fixed: {why}") for key, why in report["fixed"].items()]
    return "\n".join([report["url"], *(f"  {label:<14}{text}" for label, text in rows if text)])
