"""The rows of the history as text: conversations, search hits, and the branches of a conversation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from ds4chat.store import Conversation, Hit, Message, Node
from ds4chat.text import counted, one_line, printable
from ds4chat.tui.history.changes import UNTITLED
from ds4chat.tui.kit.figures import whole_percent
from ds4chat.tui.kit.row_list import sided_row

PREVIEW_MESSAGES = 12
PREVIEW_CHARACTERS = 1500
MOST_INDENTED = 12
"""Levels of branches that are indented differently."""
SYSTEM_CELLS = 24
"""Cells of a system prompt in a row."""
WHO = {"system": "System", "user": "You", "assistant": "Model"}
STATES = {"complete": "", "streaming": "being written", "stopped": "stopped", "failed": "failed"}


@dataclass(frozen=True, slots=True)
class Looks:
    """Styles of the parts of a row."""

    muted: Style
    hit: Style
    mark: Style


def when(ms: int, now_ms: int) -> str:
    """A time as a list shows it: without the date if it was today, without the year if it was this year."""
    then, now = datetime.fromtimestamp(ms / 1000), datetime.fromtimestamp(now_ms / 1000)
    if then.date() == now.date():
        return f"{then:%H:%M}"
    if then.year == now.year:
        return f"{then.day} {then:%b}"
    return f"{then:%Y-%m-%d}"


def conversation_row(found: Conversation, width: int, now_ms: int, looks: Looks, *, shown: bool) -> Text:
    """One line: marks, title, models, number of messages, and time. ``shown``: it is the one in the chat."""
    kind = "★" if found.pinned else "⑂" if found.forked_from is not None else " "
    mark = f"{'●' if shown else ' '}{kind}"
    models = Text(one_line(", ".join(found.models)))
    models.truncate(20 if width >= 90 else 12, overflow="ellipsis", pad=True)
    facts = f"{found.messages:>4} {when(found.updated_ms, now_ms):>10}"
    right = f"{models}  {facts}" if width >= 60 else facts
    return sided_row(mark, found.title or UNTITLED, right, width, looks.mark, looks.muted)


def hit_rows(hit: Hit, width: int, now_ms: int, looks: Looks) -> list[Text]:
    """Two lines: the conversation's title and the time, then who wrote the text, and the text with its
    matches."""
    date = when(hit.created_ms, now_ms)
    title = sided_row(" ", hit.title or UNTITLED, date, width, right_style=looks.muted)
    said = Text.assemble(("  " + (f"{WHO[hit.role]}: " if hit.role else "title: "), looks.muted))
    at, room = 0, width - said.cell_len
    if hit.matches and cell_len(hit.snippet[: hit.matches[0][1]]) > room:
        # The right end is cut off: begin shortly before the first match.
        at = max(0, hit.matches[0][0] - room // 4)
        said.append("…")
    for begin, end in hit.matches:
        said.append(one_line(hit.snippet[at:begin]))
        said.append(one_line(hit.snippet[begin:end]), looks.hit)
        at = end
    said.append(one_line(hit.snippet[at:]))
    said.truncate(width, overflow="ellipsis")
    return [title, said]


def preview(found: Conversation, path: Sequence[Message], looks: Looks, focus: int | None = None) -> Text:
    """The end of a conversation, or the messages around ``focus``."""
    text = Text.assemble((one_line(found.title) or UNTITLED, looks.mark))
    facts = [counted(found.messages, "message"), *map(one_line, found.models)]
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
    """Number of forks above it."""
    forks: bool
    """It has siblings."""
    shown: bool
    """It is on the path shown."""
    system: str | None = None
    """The system prompt that applies from here on, empty for none; None if it is the same as before."""


def branches(nodes: Sequence[Node], leaf: int | None) -> list[Branch]:
    """The messages from the roots down, depth first. A chain stays on one level; siblings and what follows
    them are one level further in.

    A system message with siblings is not a row of its own: its children take its place, so that a reply which
    was generated again under another system prompt stands beside the first one. A system message without
    children is left out unless the path shown ends there.
    """
    parents = {node.id: node.parent for node in nodes}
    shown: set[int] = set()
    at = leaf
    while at is not None and at not in shown:
        shown.add(at)
        at = parents.get(at)
    below, systems = _children(nodes, leaf)
    found: list[Branch] = []

    def visit_children(parent: int | None, level: int) -> None:
        children = below.get(parent, [])
        forks = len(children) > 1
        pending.extend(
            Branch(node, level + forks, forks, node.id in shown, systems.get(node.id))
            for node in reversed(children)
        )

    pending: list[Branch] = []
    visit_children(None, 0)
    while pending:
        found.append(branch := pending.pop())
        visit_children(branch.node.id, branch.level)
    return found


def _children(nodes: Sequence[Node], leaf: int | None) -> tuple[dict[int | None, list[Node]], dict[int, str]]:
    """The rows below each message, oldest first, and the system prompts that apply from some of them on."""
    below: dict[int | None, list[Node]] = {}
    for node in nodes:
        below.setdefault(node.parent, []).append(node)
    children: dict[int | None, list[Node]] = {}
    systems: dict[int, str] = {}
    for parent, found in below.items():
        live = [node for node in found if node.role != "system" or node.id in below or node.id == leaf]
        for node in live:
            under = below.get(node.id, []) if node.role == "system" and len(live) > 1 else []
            systems.update((child.id, node.preview) for child in under)
            children.setdefault(parent, []).extend(under or [node])
    for rows in children.values():
        rows.sort(key=lambda node: node.id)
    return children, systems


def branch_row(branch: Branch, width: int, looks: Looks) -> Text:
    """One line: whether it is on the path shown, the fork, who wrote it, and how it begins."""
    node = branch.node
    name_style = looks.mark if branch.shown else looks.muted
    text = Text.assemble(("● " if branch.shown else "  ", looks.mark))
    text.append(
        "  " * min(MOST_INDENTED, branch.level - branch.forks) + ("├ " if branch.forks else ""), looks.muted
    )
    text.append(WHO[node.role], name_style)
    if branch.system is not None:
        system = Text(one_line(branch.system).strip())
        system.truncate(SYSTEM_CELLS, overflow="ellipsis")
        text.append(f" (system: {system.plain or 'none'})", looks.muted)
    text.append(": ", name_style)
    text.append(one_line(node.preview).strip() or "(empty)")
    if state := STATES.get(node.state, node.state):
        text.append(f" ({state})", looks.muted)
    text.truncate(width, overflow="ellipsis")
    return text
