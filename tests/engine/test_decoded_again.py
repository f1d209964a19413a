"""The conversation decoded again within a reply: it shows how far it is, and a cancel ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny
from kits.engine import Answer, Bench, load_of, opened

from ds4chat.engine.control import Control
from ds4chat.engine.events import Event, Prefill, SpeculationOff, Step
from ds4chat.engine.llama import Context, DecodeError, LlamaError

PROMPT = " end" * 300 + " now"
CAUSES = ["refused rollback", "failed draft", "unclear cache"]


@contextmanager
def faulty(bench: Bench, cause: str, monkeypatch: pytest.MonkeyPatch, times: int = 1) -> Iterator[None]:
    """Something fails ``times`` times, so that the caches have to be made anew."""
    left = {"n": times}
    target, drafter = bench.session.caches.target, bench.session.caches.drafter
    assert drafter is not None
    remove_from, decode, draft = Context.remove_from, Context.decode, drafter.draft

    def fails() -> bool:
        left["n"] -= 1
        return left["n"] >= 0

    def refusing(self: Context, pos: int, seq: int = 0) -> bool:
        return False if self is target and fails() else remove_from(self, pos, seq)

    def failing(self: Context, tokens, pos, **more):  # type: ignore[no-untyped-def]
        decode(self, tokens, pos, **more)
        if self is target and more.get("outputs", "all") == "all" and len(tokens) > 1 and fails():
            raise DecodeError(-3, len(tokens))

    def hopeless(*args):  # type: ignore[no-untyped-def]
        if fails():
            drafter.rewind(0)
            raise LlamaError("the drafter's cache is damaged.")
        return draft(*args)

    with monkeypatch.context() as patch:
        if cause == "refused rollback":
            patch.setattr(Context, "remove_from", refusing)
        elif cause == "failed draft":
            patch.setattr(drafter, "draft", hopeless)
        else:
            patch.setattr(Context, "decode", failing)
        yield


def again(got: Answer) -> list[Prefill]:
    return [e for e in got.events if isinstance(e, Prefill) and e.again]


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("name", ["llama-draft", "eagle3", "qwen35-nextn", "deepseek4-support"])
def test_it_shows_how_far_it_is_and_obeys_a_cancel(
    tiny_dir: Path, name: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cause == "unclear cache" and name in ("llama-draft", "eagle3"):
        cause = "refused rollback"  # such a cache is cut instead
    # Wrong after every third word: no kind of drafter can fall into step with that.
    with opened(load_of(tiny_dir, name, wrong_every=3)) as bench:
        with faulty(bench, cause, monkeypatch):
            got = bench.ask(PROMPT, 40, depth=4)
        assert got.ids == tiny.reply(tiny.encode(" now")[-1], 40)
        seen = again(got)
        # Three chunks, and where it begins.
        assert [p.done for p in seen[:3]] == [0, 128, 256]
        assert len(seen) == 4 and seen[-1].done == seen[-1].total >= 301
        assert any("decoded again" in n or "drafter failed" in n for n in got.notices)

        def stop(event: Event, control: Control) -> None:
            if isinstance(event, Prefill) and event.again and event.done:
                control.cancel()

        bench.session.reset()
        with faulty(bench, cause, monkeypatch):
            stopped = bench.ask(PROMPT, 40, depth=4, hook=stop)
        assert stopped.ended.finish_reason == "cancelled"
        assert [p.done for p in again(stopped)] == [0, 128]
        assert bench.session.caches.target.used == len(bench.session.caches.tokens) == 128
        assert stopped.ids == tiny.reply(tiny.encode(" now")[-1], 40)[: len(stopped.ids)]
        steps = [e for e in stopped.events if isinstance(e, Step)]
        assert [t.id for s in steps for t in s.tokens] == stopped.ids
        after = bench.ask(PROMPT + " so hi end now", 40, depth=4)
        assert after.ids == tiny.reply(tiny.encode(" now")[-1], 40)
        assert after.stats.accepted > 0


def test_a_drafter_that_fails_again_and_again_is_given_up_by_one_event(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        with faulty(bench, "failed draft", monkeypatch, times=99):
            got = bench.ask(n=40, depth=4)
        assert got.ids == tiny.reply(tiny.encode(" now")[-1], 40)
        (off,) = [e for e in got.events if isinstance(e, SpeculationOff)]
        assert "failed 3 times in a row" in off.reason and "cache is damaged" in off.reason
        loaded = bench.loaded.without_drafter(off)
        assert (loaded.drafter, loaded.off_reason) == (None, off.reason)
