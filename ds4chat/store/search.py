"""Full-text search over messages, the thinking of replies among them, and titles.

What the user types is never parsed as FTS5's own language: it is split into words and "quoted phrases", and
each becomes an FTS5 string. A message matches if it contains all of them; a word also matches the beginning
of a longer one, and case and accents are ignored. What the index cannot tell apart (symbols, as in "C++", and
scripts written without blanks) is searched for in the text itself.

Up to MOST_RANKED messages are ranked by how well they match. If there are more, the words are in nearly every
message, and a rank would take long and mean little: then the newest come first.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from dataclasses import dataclass
from itertools import islice

from ds4chat.store.conversations import ANSWERED_BY, containing
from ds4chat.store.database import Database
from ds4chat.store.entities import Role, time_of_day
from ds4chat.store.rows import typed
from ds4chat.text import encodable

SNIPPET_LENGTH = 160
MOST_TERMS = 32
LONGEST_TERM = 200
MOST_RANKED = 1000
MOST_MATCHES = 1000
"""Of one term in one snippet's text."""

_TERM = re.compile(r'"([^"]*)"?|([^\s"]+)')
_MARKS = "[\u0300-\u036f]"
_NO_BLANKS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True, slots=True)
class Term:
    """A word or phrase to search for."""

    text: str
    phrase: bool
    """Quoted: the last word must be a whole one."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One message, or one title, that matches."""

    conversation: int
    title: str
    message: int | None
    """None: the title matched, and it is the snippet."""
    role: Role | None
    created_ms: int
    snippet: str
    """A part of the text, on one line, that contains the first match."""
    matches: tuple[tuple[int, int], ...]
    """Begin and end of every match in the snippet."""
    at: int = 0
    """Where the first match begins in the whole: a reply's thinking, then its text."""


def terms_of(query: str) -> list[Term]:
    """The words and quoted phrases that the user typed, each once."""
    found = [
        Term((quoted or word).strip()[:LONGEST_TERM], phrase=not word)
        for quoted, word in _TERM.findall(encodable(query).replace("\0", " "))
    ]
    return list(dict.fromkeys(term for term in found if term.text))[:MOST_TERMS]


def search(database: Database, query: str, *, model: str = "", limit: int = 200) -> list[Hit]:
    """Titles that match, then messages, the best match or the newest first, without deleted conversations.
    ``model`` keeps those in which a model answered whose name or path contains it. Raises StoreError."""
    terms = terms_of(query)
    if not terms:
        return []
    with database.read() as connection:
        titles = _titles(connection, terms, model, limit)
        return titles + _messages(connection, terms, model, max(limit - len(titles), 0))


def _titles(connection: sqlite3.Connection, terms: list[Term], model: str, limit: int) -> list[Hit]:
    where, values = _where(terms, "c.title", model)
    rows = connection.execute(
        f"SELECT c.id, c.title, c.updated_ms FROM conversations c WHERE {where} "
        "ORDER BY c.updated_ms DESC LIMIT ?",
        (*values, limit),
    )
    patterns = [_literal_pattern(term) for term in terms]
    return [
        Hit(id_, title, None, None, time_of_day(updated), *_snippet(title, patterns))
        for id_, title, updated in typed(rows.fetchall(), list[tuple[int, str, int]])
    ]


def _messages(connection: sqlite3.Connection, terms: list[Term], model: str, limit: int) -> list[Hit]:
    indexed = [term for term in terms if _is_indexed(term)]
    literal = [term for term in terms if not _is_indexed(term) or _has_symbol(term)]
    where, values = _where(literal, "m.text || ' ' || m.thinking", model)
    columns = "m.conversation, c.title, m.id, m.role, m.created_ms"
    joins = "JOIN conversations c ON c.id = m.conversation"
    if indexed:
        rows = connection.execute(
            f"SELECT {columns}, search.rank FROM search JOIN messages m ON m.id = search.rowid {joins} "
            f"WHERE search MATCH ? AND {where} ORDER BY search.rowid DESC LIMIT ?",
            (" AND ".join(map(_fts, indexed)), *values, MOST_RANKED + 1),
        ).fetchall()
        if len(rows) <= MOST_RANKED:
            # Equally good ones stay in their order, the newest first.
            rows.sort(key=lambda row: row[-1])
    else:
        rows = connection.execute(
            f"SELECT {columns}, 0 FROM messages m {joins} WHERE {where} ORDER BY m.id DESC LIMIT ?",
            (*values, limit),
        ).fetchall()
    # FTS5's own highlight would search the whole index again for every message shown.
    patterns = [_literal_pattern(term) if term in literal else _word_pattern(term) for term in terms]
    hits = []
    shown = typed(rows[:limit], list[tuple[int, str, int, Role, int, float]])
    for conversation, title, message, role, created_ms, _ in shown:
        found = connection.execute("SELECT text, thinking FROM messages WHERE id = ?", (message,)).fetchone()
        text, thinking = typed(found, tuple[str, str])
        snippet, matches, at = _snippet(text, patterns)
        if matches or not thinking:
            at += len(thinking)
        else:
            snippet, matches, at = _snippet(thinking, patterns)
        hits.append(Hit(conversation, title, message, role, time_of_day(created_ms), snippet, matches, at))
    return hits


def _where(literal: list[Term], column: str, model: str) -> tuple[str, list[str]]:
    where, values = ["c.deleted_ms IS NULL"], []
    for term in literal:
        where.append(f"{column} LIKE ? ESCAPE '\\'")
        values.append(containing(term.text))
    if model:
        where.append(ANSWERED_BY)
        values += [containing(model)] * 2
    return " AND ".join(where), values


def _is_indexed(term: Term) -> bool:
    """The index can find it: it has a letter or digit, and none from a script without blanks."""
    return any(map(str.isalnum, term.text)) and not _NO_BLANKS.search(term.text)


def _has_symbol(term: Term) -> bool:
    """Something in a word would be lost in the index, which has only letters and digits."""
    return not term.phrase and term.text.isascii() and not term.text.isalnum()


def _fts(term: Term) -> str:
    quoted = term.text.replace('"', '""')
    return f'"{quoted}"' if term.phrase else f'"{quoted}" *'


def _literal_pattern(term: Term) -> re.Pattern[str]:
    return re.compile(re.escape(_folded(term.text)))


def _word_pattern(term: Term) -> re.Pattern[str]:
    """What the index finds: the words one after the other, whole ones except for the last."""
    words = re.findall(r"[^\W_]+", _folded(term.text))
    # Possessive, so that no text, such as a million accents, makes it try every possible end.
    spelled = [f"{_MARKS}*+".join(map(re.escape, word)) + f"{_MARKS}*+" for word in words]
    end = r"(?![^\W_])" if term.phrase else r"[^\W_]*+"
    return re.compile(r"(?<![^\W_])" + r"[\W_]++".join(spelled) + end)


def _folded(text: str) -> str:
    """``text`` without case and accents, character for character, so that places in it are places in the
    text. What folds into several characters stays as it is."""
    if text.isascii():
        return text.lower()
    table: dict[int, str] = {}
    for char in set(text):
        base = unicodedata.normalize("NFD", char)[0].lower()
        table[ord(char)] = base if len(base) == 1 else char
    return text.translate(table)


def _snippet(text: str, patterns: list[re.Pattern[str]]) -> tuple[str, tuple[tuple[int, int], ...], int]:
    """The part of the text around the first match, its line ends as blanks; the matches in it; and where in
    the text the first one begins, 0 without one."""
    folded = _folded(text)
    first = min((found.start() for p in patterns if (found := p.search(folded))), default=0)
    begin = max(0, min(first - SNIPPET_LENGTH // 4, len(text) - SNIPPET_LENGTH))
    if begin:
        # Begin with a whole word, if one begins soon.
        blank = re.compile(r"\s").search(text, begin, min(first, begin + 16))
        begin = blank.end() if blank else begin
    end = begin + SNIPPET_LENGTH
    lead = "…" if begin else ""
    snippet = lead + re.sub(r"\s", " ", text[begin:end]) + ("…" if end < len(text) else "")
    shift = len(lead) - begin
    # Far enough beyond the end that no term in sight is cut.
    matches = (
        match.span()
        for pattern in patterns
        for match in islice(pattern.finditer(folded, begin, end + LONGEST_TERM), MOST_MATCHES)
    )
    inside = sorted({(a, min(b, end)) for a, b in matches if a < end and b > a})
    return snippet, tuple((a + shift, b + shift) for a, b in _apart(inside)), first


def _apart(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order, with those that overlap made one."""
    found: list[tuple[int, int]] = []
    for begin, end in spans:
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
