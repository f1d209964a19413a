"""``ds4chat logs``: the stored conversations on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from ds4chat.commands.arguments import Parser, UsageError
from ds4chat.commands.running import say
from ds4chat.files import user_path
from ds4chat.settings.paths import folder, made_folder
from ds4chat.store.entities import Conversation
from ds4chat.store.errors import StoreError
from ds4chat.store.search import Hit
from ds4chat.store.store import FILE_NAME, Store, open_store
from ds4chat.text import counted, json_text, one_line, printable, supports_escapes, unguarded

ACTIONS = {
    "list": "List the conversations, pinned ones first, then the newest.",
    "show ID": "Print a conversation.",
    "search TEXT": 'Find messages with all words and "quoted phrases" of TEXT.',
    "export ID": "Write one as md, json (everything) or jsonl (judged drafts).",
    "import FILE": "Import a conversation that was exported as json.",
}


def parser() -> Parser:
    """The parser of the command."""
    actions = "\n".join(f"  {name:13}{text}" for name, text in ACTIONS.items())
    made = Parser(
        prog="ds4chat logs",
        usage="ds4chat logs ACTION [options]",
        description=f"The stored conversations. ACTION is one of\n\n{actions}",
    )
    group = made.add_argument_group("Options")
    group.add_argument("--json", action="store_true", help="list, show, search: JSON on stdout.")
    group.add_argument(
        "--model",
        metavar="NAME",
        help="list, search: only conversations in which a model of that name answered.",
    )
    group.add_argument("--limit", metavar="N", help="list, search: at most N results.")
    group.add_argument("--format", choices=("md", "json", "jsonl"), help="export: what to write.")
    group.add_argument("-o", "--output", metavar="FILE", help="export: the file to write, instead of stdout.")
    group.add_argument("--force", action="store_true", help="export: replace FILE if it exists.")
    return made


def main(argv: Sequence[str]) -> int:
    """Carry out ``ds4chat logs``; the exit code. Raises UsageError."""
    given, words = parser().read(argv)
    action, rest = (words[0], words[1:]) if words else ("", [])
    actions: dict[str, Callable[[Any, list[str]], int]] = {
        "list": _list,
        "show": _show,
        "search": _search,
        "export": _export,
        "import": _import,
    }
    if action not in actions:
        said = f'"{one_line(action)}" is not one of them.' if action else "It needs one of them."
        raise UsageError(f"ds4chat logs takes list, show, search, export or import. {said}")
    _refuse_others(given, action)
    try:
        return actions[action](given, rest)
    except StoreError as error:
        if error.kind == "exists":
            raise StoreError(f"{error} --force replaces it.") from None
        raise


_TAKES = {
    "json": ("list", "show", "search"),
    "model": ("list", "search"),
    "limit": ("list", "search"),
    "format": ("export",),
    "output": ("export",),
    "force": ("export",),
}


def _refuse_others(given: Any, action: str) -> None:
    for name, takers in _TAKES.items():
        if getattr(given, name) not in (None, False) and action not in takers:
            raise UsageError(f"--{name} goes with {' and '.join(takers)}, not with {action}.")


# ---------------------------------------------------------------------------------------- actions


def _list(given: Any, rest: list[str]) -> int:
    if rest:
        raise UsageError(f'ds4chat logs list takes no further word "{one_line(rest[0])}".')
    limit = _number(given.limit, "--limit") if given.limit is not None else -1
    with closing(_open_to_read()) as store:
        found = store.conversations.listed(model=given.model or "", limit=limit)
    if given.json:
        _print_json(to_builtins(found))
    elif found:
        for conversation in found:
            print(_line(conversation))
    else:
        say(
            f'no stored conversation has an answer of a model whose name contains "{one_line(given.model)}".'
            if given.model
            else "no conversations are stored here."
        )
    return 0


def _show(given: Any, rest: list[str]) -> int:
    number = _id(rest, "show")
    with closing(_open_to_read()) as store:
        facts = store.conversations.get(number)
        path = store.conversations.path(number)
    if given.json:
        _print_json({**to_builtins(facts), "path": to_builtins(path)})
        return 0
    print(_line(facts))
    for message in path:
        model = f" ({one_line(message.model.title)})" if message.model else ""
        ending = f" [{message.ending}]" if message.ending else ""
        print(f"\n{message.role}{model}{ending}, {_time(message.created_ms)}:")
        print(printable(message.text).strip())
        if message.detail:
            print(f"-- {one_line(message.detail)}")
        if message.judged:
            share = 100 * message.accepted / message.judged
            print(
                f"-- {message.tokens} tokens, {message.accepted} of {message.judged} drafts ({share:.0f} %)"
            )
    return 0


def _search(given: Any, rest: list[str]) -> int:
    query = " ".join(rest).strip()
    if not query:
        raise UsageError("ds4chat logs search needs the TEXT to look for.")
    limit = _number(given.limit, "--limit") if given.limit is not None else 50
    with closing(_open_to_read()) as store:
        found = store.search(query, model=given.model or "", limit=limit)
    if given.json:
        _print_json(to_builtins(found))
        return 0
    if not found:
        say("nothing was found.")
    for hit in found:
        where = hit.role if hit.message is not None else "title"
        line = f"{hit.conversation:6}  {_time(hit.created_ms)}  {where:9}  {_marked(hit)}"
        print(line, file=unguarded(sys.stdout))
    return 0


def _export(given: Any, rest: list[str]) -> int:
    number = _id(rest, "export")
    from ds4chat.store.export import chunks, export, form_of

    form = given.format or (form_of(Path(given.output)) if given.output is not None else None)
    if form is None:
        raise UsageError("ds4chat logs export needs --format md, json or jsonl, or a FILE with that ending.")
    with closing(_open_to_read()) as store:
        if given.output is not None:
            export(store, number, user_path(given.output), form=form, overwrite=given.force)
            say(f"wrote {one_line(given.output)}.")
        else:
            # Markdown holds raw text, which could control a terminal.
            out = sys.stdout if sys.stdout.isatty() else unguarded(sys.stdout)
            out.writelines(chunks(store, number, form))
    return 0


def _import(given: Any, rest: list[str]) -> int:
    if len(rest) != 1:
        raise UsageError("ds4chat logs import takes one FILE.")
    from ds4chat.store.importing import import_file

    path = user_path(rest[0])
    if not (folder("data") / FILE_NAME).exists():
        # A refused file must not create a database.
        with closing(Store.in_memory()) as trial:
            import_file(trial, path)
    with closing(open_store(made_folder("data") / FILE_NAME)) as store:
        number = import_file(store, path)
        title = store.conversations.get(number).title
    print(f"{number}  {one_line(title)}")
    return 0


# ---------------------------------------------------------------------------------------- parts


def _open_to_read() -> Store:
    """The store; an empty one if nothing was stored yet, so that reading creates no files."""
    path = folder("data") / FILE_NAME
    if not path.exists():
        return Store.in_memory()
    try:
        return open_store(path)
    except StoreError as error:
        if error.kind != "read-only":
            raise
        return open_store(path, read_only=True)


def _id(rest: list[str], action: str) -> int:
    if len(rest) != 1:
        raise UsageError(f"ds4chat logs {action} takes the number of one conversation; list shows them.")
    return _number(rest[0], f"ds4chat logs {action}")


def _number(word: str, what: str) -> int:
    if not (word.isascii() and word.isdigit()) or not 0 < int(word[:20]) < 2**63:
        raise UsageError(f'{what} takes a number from 1 up, not "{one_line(word[:40])}".')
    return int(word)


def _line(conversation: Conversation) -> str:
    pin = "*" if conversation.pinned else " "
    count = counted(conversation.messages, "message")
    models = one_line(", ".join(conversation.models)) or "-"
    title = one_line(conversation.title) or "(no title)"
    return f"{conversation.id:6}{pin} {_time(conversation.updated_ms)}  {count:13} {models:24} {title}"


def _time(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000):%Y-%m-%d %H:%M}"
    except (OverflowError, OSError, ValueError):
        return "----------------"


def _marked(hit: Hit) -> str:
    """The snippet, with its matches bold on a terminal."""
    if not supports_escapes(sys.stdout) or os.environ.get("NO_COLOR"):
        return one_line(hit.snippet)
    parts, at = [], 0
    for begin, end in hit.matches:
        parts += [one_line(hit.snippet[at:begin]), "\x1b[1m", one_line(hit.snippet[begin:end]), "\x1b[0m"]
        at = end
    return "".join(parts) + one_line(hit.snippet[at:])


def _print_json(value: object) -> None:
    print(json_text(value, indent=1))
