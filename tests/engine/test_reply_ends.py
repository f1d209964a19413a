"""Every end of a reply, under every way of verifying, with every kind of drafter.

However a reply ends, the cache holds the tokens that the session counts as committed, these are all that was
emitted but the token that it ended on, and further turns run on top of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny
from kits.engine import END_NOW, PAIRS, Answer, Bench, cancel_at, load_of, opened

from ds4chat.engine.events import Load
from ds4chat.engine.llama import Context, DecodeError

KINDS = [*PAIRS, "lookup", "lookup before llama-draft", "lookup before qwen35-nextn"]
WAYS = ["batch", "one by one", "one by one, failing late", "fallback", "probe"]
PROMPT = tiny.encode(END_NOW)
WHOLE = tiny.text(tiny.reply(PROMPT[-1], 60))


LEAD = END_NOW + WHOLE + " so hi"
"""What a lookup finds the reply's words in."""


def load_for(folder: Path, kind: str) -> Load:
    """Drafts that are right, so that replies end inside accepted blocks."""
    if kind == "lookup":
        return Load(str(tiny.build("llama", folder)), lookup=True, ctx=512, threads=1)
    name = kind.removeprefix("lookup before ")
    return dataclasses.replace(load_of(folder, name, wrong_every=0), lookup=name != kind)


@contextmanager
def verified(bench: Bench, way: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the session verify in this way."""
    real = Context.decode
    target = bench.session.caches.target
    late = {"n": 0}

    def decode(self: Context, tokens, pos, **more):  # type: ignore[no-untyped-def]
        if self is target and more.get("outputs", "all") == "all":
            if way == "fallback" and len(tokens) > 1:
                raise DecodeError(1, len(tokens))
            late["n"] += 1
            # A draft's own decode: the session has committed nothing of this step yet.
            if (
                way == "one by one, failing late"
                and pos > len(bench.session.caches.tokens)
                and late["n"] % 3 == 0
            ):
                raise DecodeError(1, 1)
        return real(self, tokens, pos, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "decode", decode)
        yield


def ends(bench: Bench, lead: str, depth: int, tuning: dict[str, object]) -> Iterator[tuple[str, str, Answer]]:
    """A reply for each way to end: what it is called, the prompt, and the reply. ``lead``: what stands before
    every prompt."""

    def ask(prompt: str, n: int = -1, **more: object) -> Answer:
        bench.session.reset()
        return bench.ask(prompt, n, depth=depth, **tuning, **more)  # type: ignore[arg-type]

    for prompt in ("hi stop", "hi cut", "so ponder"):
        yield "end token", lead + prompt, ask(lead + prompt)
    prompt = lead + END_NOW
    for n in (1, 2, 5):
        yield "limit", prompt, ask(prompt, n)
    for at in (5, 14, 60):
        yield "stop text", prompt, ask(prompt, stop=(WHOLE[at : at + 4],))
    for keep in (True, False):
        yield "cancel", prompt, ask(prompt, 60, keep_accepted=keep, hook=cancel_at(3))
    for room in (1, 4):
        bench.session.n_ctx, n_ctx = len(tiny.encode(prompt)) + room, bench.session.n_ctx
        yield "context", prompt, ask(prompt)
        bench.session.n_ctx = n_ctx


def matrix() -> list[object]:
    """All of it; the ways that differ least from one kind to the next are slow but for two kinds."""
    few = ("llama-draft", "qwen35-nextn")
    return [
        pytest.param(
            way, kind, marks=[] if kind in few or way in ("batch", "one by one") else [pytest.mark.slow]
        )
        for way in WAYS
        for kind in KINDS
    ]


@pytest.mark.parametrize(("way", "kind"), matrix())
def test_the_cache_holds_what_is_committed_and_further_turns_run(
    tiny_dir: Path, kind: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = {"end token": "stop", "stop text": "stop", "limit": "length", "cancel": "cancelled"}
    tuning = {"strict": way.startswith("one by one"), "probe": way == "probe"}
    lead = LEAD if kind.startswith("lookup") else ""
    seen, drafted = set(), 0
    with opened(load_for(tiny_dir, kind)) as bench, verified(bench, way, monkeypatch):
        session = bench.session
        assert not session.batches_are_exact
        for depth in (1, 4):
            for end, prompt, got in ends(bench, lead, depth, tuning):
                drafted += got.stats.drafted
                n_ctx, session.n_ctx = session.n_ctx, 512
                case = (kind, way, depth, end, prompt)
                seen.add(end)
                assert got.ended.finish_reason == reasons.get(end, end), case
                assert session.caches.target.used == len(session.caches.tokens), case
                # What is committed is what plain decoding would have committed.
                begun = tiny.encode(prompt)
                last = session._last
                assert last is not None
                ended_by = [last.end_token] if last.end_token >= 0 else []
                assert session.caches.tokens == [*begun, *got.ids, *ended_by][:-1], case
                said = prompt + tiny.text(got.ids)
                for turn in (" end now", " so hi end now"):
                    said += turn
                    more = bench.ask(said, 12, depth=depth, **tuning)  # type: ignore[arg-type]
                    assert more.ids == tiny.reply(tiny.encode(" now")[-1], 12), (*case, turn)
                    assert session.caches.target.used == len(session.caches.tokens), (*case, turn)
                    said += tiny.text(more.ids)
                session.n_ctx = n_ctx
        assert seen == {*reasons, "context"}
        assert drafted


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_inside_a_verification_commits_what_it_keeps(
    tiny_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch and one by one; with keep_accepted off nothing of the block is emitted, and only the token
    that was certain before it is committed."""
    for strict in (False, True):
        for keep in (True, False):
            with opened(load_for(tiny_dir, kind)) as bench:
                session = bench.session
                got = bench.cancelled_in(
                    30 if strict else 10, monkeypatch, n=150, depth=4, strict=strict, keep_accepted=keep
                )
                assert got.ended.finish_reason == "cancelled"
                assert session.caches.target.used == len(session.caches.tokens)
                all_of_it = [*PROMPT, *got.ids]
                assert session.caches.tokens in (all_of_it, all_of_it[:-1])
                assert got.ids == tiny.reply(PROMPT[-1], 150)[: len(got.ids)]
                again = bench.ask(END_NOW + tiny.text(got.ids) + " end now", 12, depth=4, strict=strict)
                assert again.ids == tiny.reply(tiny.encode(" now")[-1], 12)
