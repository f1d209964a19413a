"""The rows of the history: conversations, search hits and the branches of one, as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from ds4chat.store import Conversation, Hit, Message, Node
from ds4chat.text import one_line, printable
from ds4chat.tui.history.changes import UNTITLED
from ds4chat.tui.kit.figures import whole_percent

PREVIEW_MESSAGES = 12
PREVIEW_CHARACTERS = 1500
MOST_INDENTED = 12
"""Levels of branches that are told apart by their place in the row."""
SYSTEM_CELLS = 24
"""Cells of a system prompt that a row shows."""
WHO = {"system": "System", "user": "You", "assistant": "Model"}
STATES = {"complete": "", "streaming": "being written", "stopped": "stopped", "failed": "failed"}


@dataclass(frozen=True, slots=True)
class Looks:
    """How parts of a row look."""

    muted: Style
    hit: Style
    mark: Style


def amount(number: int, what: str) -> str:
    """``1 message``, ``2,000 messages``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def when(ms: int, now_ms: int) -> str:
    """A time of day as a list shows it: the clock today, the day this year, else the date."""
    then, now = datetime.fromtimestamp(ms / 1000), datetime.fromtimestamp(now_ms / 1000)
    if then.date() == now.date():
        return f"{then:%H:%M}"
    if then.year == now.year:
        return f"{then.day} {then:%b}"
    return f"{then:%Y-%m-%d}"


def conversation_row(found: Conversation, width: int, now_ms: int, looks: Looks, *, shown: bool) -> Text:
    """One line: mark, title, and at the right the messages, the models and when. ``shown``: it is the one in
    the chat."""
    mark = "●" if shown else "★" if found.pinned else "⑂" if found.forked_from is not None else " "
    models = one_line(", ".join(found.models))
    room = 20 if width >= 90 else 12
    models = set_cell_size(models, room - 1) + "…" if cell_len(models) > room else set_cell_size(models, room)
    facts = f"{found.messages:>4} {when(found.updated_ms, now_ms):>10}"
    right = f"{models}  {facts}" if width >= 60 else facts
    return _sided(mark, one_line(found.title) or UNTITLED, right, width, looks)


def hit_rows(hit: Hit, width: int, now_ms: int, looks: Looks) -> list[Text]:
    """Two lines: the title of the conversation and when, then who said it and the text with its matches."""
    title = _sided(" ", one_line(hit.title) or UNTITLED, when(hit.created_ms, now_ms), width, looks)
    said = Text.assemble(("  " + (f"{WHO[hit.role]}: " if hit.role else "title: "), looks.muted))
    at = 0
    for begin, end in hit.matches:
        said.append(one_line(hit.snippet[at:begin]))
        said.append(one_line(hit.snippet[begin:end]), looks.hit)
        at = end
    said.append(one_line(hit.snippet[at:]))
    said.truncate(width, overflow="ellipsis")
    return [title, said]


def preview(found: Conversation, path: Sequence[Message], looks: Looks, focus: int | None = None) -> Text:
    """The end of a conversation, or what is around the message ``focus``, to read."""
    text = Text.assemble((one_line(found.title) or UNTITLED, looks.mark))
    facts = [amount(found.messages, "message"), *map(one_line, found.models)]
    judged, accepted = sum(m.judged for m in path), sum(m.accepted for m in path)
    if judged:
        facts.append(f"{whole_percent(accepted / judged).strip()} of {judged:,} drafts accepted")
    text.append("\n" + " · ".join(facts) + "\n", looks.muted)
    at = next((i for i, message in enumerate(path) if message.id == focus), len(path) - 1)
    first = max(0, min(at - PREVIEW_MESSAGES // 2, len(path) - PREVIEW_MESSAGES))
    for message in path[first : first + PREVIEW_MESSAGES]:
        who = WHO[message.role]
        if message.role == "assistant" and message.model is not None:
            who = one_line(message.model.name) or who
        state = STATES.get(message.state, message.state)
        text.append(f"\n{who}", looks.mark)
        text.append(f" {state}\n" if state else "\n", looks.muted)
        body = message.text.strip() or message.thinking.strip()
        text.append(printable(body[:PREVIEW_CHARACTERS]) + ("…" if len(body) > PREVIEW_CHARACTERS else ""))
        text.append("\n")
    return text


@dataclass(frozen=True, slots=True)
class Branch:
    """A message in the tree of branches."""

    node: Node
    level: int
    """How many forks lie above it."""
    turns: bool
    """It is one of several in its place."""
    shown: bool
    """It is on the path shown."""
    system: str | None = None
    """The system prompt that begins to hold with it (empty: none does); None: the one before it."""


def branches(nodes: Sequence[Node], leaf: int | None) -> list[Branch]:
    """The messages from the roots down, depth first. A chain stays on one level; where messages stand in the
    same place, those after them are one level further in.

    A system message beside others is no answer of its own: what was asked under it stands in its place, so
    that a reply asked for again under another system prompt is beside the first one. One that nothing was
    asked under is left out, unless it is where the path shown ends.
    """
    parents = {node.id: node.parent for node in nodes}
    shown: set[int] = set()
    at = leaf
    while at is not None and at not in shown:
        shown.add(at)
        at = parents.get(at)
    below, systems = _places(nodes, leaf)
    found: list[Branch] = []

    def put_off(parent: int | None, level: int) -> None:
        several = len(below.get(parent, ())) > 1
        for node in reversed(below.get(parent, ())):
            waiting.append(Branch(node, level + several, several, node.id in shown, systems.get(node.id)))

    waiting: list[Branch] = []
    put_off(None, 0)
    while waiting:
        found.append(branch := waiting.pop())
        put_off(branch.node.id, branch.level)
    return found


def _places(nodes: Sequence[Node], leaf: int | None) -> tuple[dict[int | None, list[Node]], dict[int, str]]:
    """The messages in the place below each one, oldest first, and the system prompts that begin to hold with
    some of them, for ``branches``."""
    below: dict[int | None, list[Node]] = {}
    for node in nodes:
        below.setdefault(node.parent, []).append(node)
    places: dict[int | None, list[Node]] = {}
    systems: dict[int, str] = {}
    for parent, found in below.items():
        live = [node for node in found if node.role != "system" or node.id in below or node.id == leaf]
        place = places[parent] = []
        for node in live:
            under = below.get(node.id, []) if node.role == "system" and len(live) > 1 else []
            systems.update((child.id, node.preview) for child in under)
            place += under or [node]
        place.sort(key=lambda node: node.id)
    return places, systems


def branch_row(branch: Branch, width: int, looks: Looks) -> Text:
    """One line: on the path or not, the fork, who, and how it begins."""
    node = branch.node
    text = Text.assemble(("● " if branch.shown else "  ", looks.mark))
    text.append(
        "  " * min(MOST_INDENTED, branch.level - branch.turns) + ("├ " if branch.turns else ""), looks.muted
    )
    text.append(WHO[node.role], looks.mark if branch.shown else looks.muted)
    if branch.system is not None:
        system = Text(one_line(branch.system).strip())
        system.truncate(SYSTEM_CELLS, overflow="ellipsis")
        text.append(f" (system: {system.plain or 'none'})", looks.muted)
    text.append(": ", looks.mark if branch.shown else looks.muted)
    state = STATES.get(node.state, node.state)
    text.append(one_line(node.preview).strip() or "(nothing came)")
    if state:
        text.append(f" ({state})", looks.muted)
    text.truncate(width, overflow="ellipsis")
    return text


def _sided(mark: str, left: str, right: str, width: int, looks: Looks) -> Text:
    room = max(8, width - cell_len(right) - 4)
    if cell_len(left) > room:
        left = set_cell_size(left, room - 1) + "…"
    text = Text.assemble((f"{mark} ", looks.mark))
    text.append(left)
    text.append(" " * max(1, width - 2 - cell_len(left) - cell_len(right)))
    text.append(right, looks.muted)
    return text
