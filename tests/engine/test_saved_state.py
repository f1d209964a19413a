"""A conversation's state on disk: what comes back is what was saved, or nothing."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from kits.engine import PAIRS, Answer, Bench, load_of
from kits.faults import until

from ds4chat.engine import child, saved_state
from ds4chat.engine.client import EngineClient
from ds4chat.engine.drafters.base import DrafterState, Stateful
from ds4chat.engine.events import Ended, Event, Generate, Load, Loaded, Notice, Step, Tuning
from ds4chat.engine.opening import open_session
from ds4chat.models.demo import demo_model, demo_support
from ds4chat.settings.paths import state_file

pytestmark = pytest.mark.usefixtures("home")

STORY = " sun sea fog hut" * 150
"""900 tokens of the constructed vocabulary."""
PROSE = " the old mill turns and the young man at the door looks up to the red sky" * 40
TARGETS = {
    "lookup": ("llama", "", True),
    "lookup-before-nextn": ("qwen35-nextn", "embedded", True),
    "no-rollback": ("qwen3next-nextn", "", False),
    "random-llama": ("llama-random", "", False),
    "random-deepseek4": ("deepseek4-random", "", True),
    "random-qwen35": ("qwen35-random", "", True),
}


class Chat(Bench):
    """Questions of one conversation, the first of the store, unless another is named."""

    def ask(self, *args: Any, **more: Any) -> Answer:
        return super().ask(*args, **{"conversation": 1, **more})

    def ask_and_keep(self, *args: Any, **more: Any) -> Answer:
        """The answer, after which the state is kept."""
        answer = self.ask(*args, **more)
        self.session.keep()
        return answer


@contextmanager
def chat(load: Load, *, keep: bool = True) -> Iterator[Chat]:
    """A session as the engine process opens it."""
    load = replace(load, keep_states=keep)
    session, loaded = open_session(load, lambda event: None, forgiving=False, resuming=keep)
    try:
        yield Chat(session, loaded)
    finally:
        session.close()


def load_named(folder: Path, name: str) -> Load:
    if name in PAIRS:
        return load_of(folder, name, ctx=2048)
    target, support, lookup = TARGETS[name]
    return Load(str(tiny.build(target, folder)), support, lookup=lookup, ctx=2048, threads=1)


def files(home: Path) -> list[Path]:
    """Those that hold a state."""
    return sorted(path for path in (home / "states").glob("*.state") if path.lstat().st_size)


def drafter_state(bench: Bench) -> DrafterState | None:
    drafter = bench.session.caches.drafter
    return drafter.state() if isinstance(drafter, Stateful) else None


def same(a: DrafterState | None, b: DrafterState | None) -> bool:
    if a is None or b is None:
        return a is b
    return (
        (a.known, a.observed, a.backlog) == (b.known, b.observed, b.backlog)
        and np.array_equal(a.features, b.features)
        and bytes(a.cache) == bytes(b.cache)
    )


def drafts(answer: Answer) -> list[list[int]]:
    return [[row.draft for row in step.judged] for step in answer.steps]


@pytest.mark.parametrize("name", [*PAIRS, *TARGETS])
def test_what_comes_back_is_what_was_saved_and_goes_on_as_after_a_prefill(
    tiny_dir: Path, home: Path, name: str
) -> None:
    load = load_named(tiny_dir, name)
    depth = 0 if name in ("no-rollback", "random-llama") else 3
    prompt, n = (PROSE, 1) if name.startswith("random") else (STORY + " end now", 30)
    with chat(load) as bench:
        first = bench.ask_and_keep(prompt, n, depth=depth, ignore_eos=True)
        target, tokens = bytes(bench.session.caches.target.save_state()), list(bench.session.caches.tokens)
        drafter = drafter_state(bench)
        prompt += (first.text if n > 1 else "") + " the old hut"
        within = bench.ask(prompt, 40, depth=depth, ignore_eos=True)
        assert within.restored == 0
    assert len(files(home)) == 1
    with chat(load) as bench:
        session = bench.session
        ids = session.prompter.raw(prompt).tokens
        assert ids[: len(tokens)] == tokens
        assert session._states is not None
        found = session._states.restore(1, session.caches, ids[:-1])
        assert (found, session.caches.tokens, session.caches.target.used) == (
            len(tokens),
            tokens,
            len(tokens),
        )
        assert bytes(session.caches.target.save_state()) == target
        assert same(drafter_state(bench), drafter)
    with chat(load) as bench:
        resumed = bench.ask(prompt, 40, depth=depth, ignore_eos=True)
        assert resumed.restored == len(tokens)
        assert resumed.ended.reused_tokens >= len(tokens) - 1  # a hidden row may have to be made again
    with chat(load, keep=False) as bench:
        prefilled = bench.ask(prompt, 40, depth=depth, ignore_eos=True)
        assert prefilled.restored == 0
    assert resumed.ids == within.ids == prefilled.ids
    assert (drafts(resumed), resumed.counts) == (drafts(within), within.counts)
    if not name.startswith("random"):
        assert (drafts(resumed), resumed.counts) == (drafts(prefilled), prefilled.counts)


@pytest.mark.slow
def test_the_demo_pair_goes_on_with_the_same_reply(home: Path) -> None:
    """The real model: 30 layers, and drafts by EAGLE-3 that depend on every cell."""
    # One thread: two wait for each other where something else runs.
    load = Load(str(demo_model()), str(demo_support()), ctx=1024, threads=1)
    prompt = "The lighthouse keeper wrote down what he saw each morning. " * 50
    with chat(load) as bench:
        first = bench.ask_and_keep(prompt, 24, depth=2)
        tokens = list(bench.session.caches.tokens)
        prompt += first.text
        within = bench.ask(prompt, 24, depth=2)
    with chat(load) as bench:
        resumed = bench.ask(prompt, 24, depth=2)
        assert resumed.restored >= len(tokens) - 3  # the text may be cut into other tokens where it ends
    with chat(load, keep=False) as bench:
        prefilled = bench.ask(prompt, 24, depth=2)
    assert resumed.ids == within.ids == prefilled.ids
    assert drafts(resumed) == drafts(within)


@pytest.mark.parametrize("name", ["llama-draft", "eagle3"])
def test_a_prompt_that_leaves_the_saved_one_takes_the_part_they_share(
    tiny_dir: Path, home: Path, name: str
) -> None:
    """A reply asked for again, or an edited message."""
    load = load_named(tiny_dir, name)
    saved(load, home)
    with chat(load) as bench:
        answer = bench.ask(STORY + " the old hut", 30, depth=3)
        assert answer.restored == len(tiny.encode(STORY))
        resumed = answer.ids
    with chat(load, keep=False) as bench:
        assert bench.ask(STORY + " the old hut", 30, depth=3).ids == resumed


@pytest.mark.parametrize("name", ["qwen35-nextn", "deepseek4-support", "gemma4-assistant", "mimo2-nextn"])
def test_what_cannot_be_cut_is_taken_whole_or_not_at_all(tiny_dir: Path, home: Path, name: str) -> None:
    load = load_named(tiny_dir, name)
    saved(load, home)
    with chat(load) as bench:
        answer = bench.ask(STORY + " the old hut", 30, depth=3)
        assert (answer.restored, answer.ended.reused_tokens) == (0, 0)


@pytest.mark.parametrize("name", ["eagle3", "qwen35-nextn", "deepseek4-support", "gemma4-assistant"])
def test_another_conversation_after_a_restore_begins_with_nothing_of_it(
    tiny_dir: Path, home: Path, name: str
) -> None:
    """No cell and no hidden row stays: the drafts are those of a session that never restored anything."""
    load = load_named(tiny_dir, name)
    with chat(load) as bench:
        first = bench.ask_and_keep(STORY + " end now", 30, depth=3, ignore_eos=True)
    prompt = STORY + " end now" + first.text + " the old hut"
    with chat(load) as bench:
        assert bench.ask(prompt, 5, depth=3).restored > 0
        after = bench.ask(" end now", 40, depth=3, ignore_eos=True)
    with chat(load, keep=False) as bench:
        fresh = bench.ask(" end now", 40, depth=3, ignore_eos=True)
    assert (after.ids, drafts(after), after.counts) == (fresh.ids, drafts(fresh), fresh.counts)


def saved(load: Load, home: Path) -> Path:
    with chat(load) as bench:
        bench.ask_and_keep(STORY + " end now", 20, depth=3)
    (path,) = files(home)
    return path


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "empty": lambda path: path.write_bytes(b""),
    "another format": lambda path: flip(path, 14),
    "a bit of the header": lambda path: flip(path, 60),
    "a bit of the tokens": lambda path: flip(path, path.read_bytes().index(b'"tokens":') + 60),
    "a bit of the state": lambda path: flip(path, path.stat().st_size // 2),
    "a bit of the digest": lambda path: flip(path, path.stat().st_size - 1),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "unreadable": lambda path: (path.unlink(), path.symlink_to("/proc/self/mem")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_file_that_is_not_whole_is_left_alone(tiny_dir: Path, home: Path, damage) -> None:  # type: ignore[no-untyped-def]
    load = load_named(tiny_dir, "eagle3")
    path = saved(load, home)
    damage(path)
    with chat(load) as bench:
        answer = bench.ask(STORY + " end now the old hut", 20, depth=3)
        assert (answer.restored, answer.ended.reused_tokens) == (0, 0)
        assert answer.ended.finish_reason == "length"
        ids = answer.ids
    with chat(load, keep=False) as bench:
        assert bench.ask(STORY + " end now the old hut", 20, depth=3).ids == ids


@pytest.mark.parametrize("fails", ["target", "drafter"])
def test_a_state_that_llama_cpp_refuses_is_read_again(
    tiny_dir: Path, home: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole by its digest, and still of no use: here the two caches' parts in each other's place."""
    load = load_named(tiny_dir, "llama-draft")
    write = saved_state.SavedStates._write

    def swapped(self, path, caches, interrupted):  # type: ignore[no-untyped-def]
        state = replace(caches.drafter.state(), cache=b"rubbish" * 99)
        monkeypatch.setattr(caches.drafter, "state", lambda: state, raising=False)
        if fails == "target":
            monkeypatch.setattr(caches.target, "save_state", lambda: memoryview(bytearray(b"rubbish" * 99)))
        return write(self, path, caches, interrupted)

    monkeypatch.setattr(saved_state.SavedStates, "_write", swapped)
    saved(load, home)
    with chat(load) as bench:
        answer = bench.ask(STORY + " end now the old hut", 20, depth=3)
        assert (answer.restored, answer.ended.reused_tokens) == (0, 0)
        assert answer.stats.judged > 0
    assert files(home) == []


CHANGES = {
    "context": lambda load: replace(load, ctx=1024),
    "cache type": lambda load: replace(load, cache_type_k="q8_0"),
    "flash attention": lambda load: replace(load, flash_attn="off"),
    "drafter": lambda load: replace(load, support=""),
    "strict": lambda load: replace(load, strict=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_other_settings_of_the_cache_are_another_state(tiny_dir: Path, home: Path, change) -> None:  # type: ignore[no-untyped-def]
    load = load_named(tiny_dir, "llama-draft")
    saved(load, home)
    with chat(change(load)) as bench:
        assert bench.ask(STORY + " end now the old hut", 5, depth=1).restored == 0


def test_another_file_in_the_models_place_is_another_state(
    tiny_dir: Path, home: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(tiny.build("llama", tiny_dir).read_bytes())
    load = Load(str(model), lookup=True, ctx=2048, threads=1)
    saved(load, home)
    os.utime(model, ns=(1, 1))
    with chat(load) as bench:
        assert bench.ask(STORY + " end now the old hut", 5).restored == 0


def test_only_what_pays_is_saved(tiny_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = load_named(tiny_dir, "llama-draft")
    with chat(load) as bench:
        bench.ask(" sun" * 500, 5)  # 506 tokens with the begin token and the reply's first four
        bench.session.keep()
        assert files(home) == []
        monkeypatch.setattr(saved_state, "WORTH", 1e9)
        bench.ask_and_keep(STORY, 5)
        assert files(home) == []
        monkeypatch.setattr(saved_state, "WORTH", 0.0)
        monkeypatch.setattr(saved_state, "MAX_FILE", 1000)
        bench.ask_and_keep(STORY, 5)
        assert files(home) == []
        monkeypatch.undo()
        monkeypatch.setenv("DS4CHAT_HOME", str(home))
        monkeypatch.setattr(saved_state, "WORTH", 0.0)
        bench.ask_and_keep(STORY, 5)
        assert len(files(home)) == 1


def test_the_arithmetic_of_what_pays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 tokens of 2 ms are 2 s; 250 MB at 250 MB/s are 1 s, and twice that is asked for."""
    monkeypatch.setattr(saved_state, "WORTH", 2.0)
    states = saved_state.SavedStates({})
    assert not states._pays(1000, 250_000_000, 2.0)
    assert states._pays(1001, 250_000_000, 2.0)


def test_prefills_of_short_turns_are_measured_together(home: Path) -> None:
    states = saved_state.SavedStates({})
    states.prefilled(40, 0.2)
    assert states._ms_per_token == 0.0
    states.prefilled(24, 0.12)
    assert states._ms_per_token == pytest.approx(5.0)


def test_the_files_are_private(tiny_dir: Path, home: Path) -> None:
    before = os.umask(0)
    try:
        path = saved(load_named(tiny_dir, "llama-draft"), home)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_conversation_has_one_file_and_the_oldest_go(
    tiny_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_state, "MAX_FILES", 3)
    load = load_named(tiny_dir, "llama-draft")
    with chat(load) as bench:
        bench.ask_and_keep(STORY + " end now", 5, conversation=7)
        (first,) = files(home)
        content = first.read_bytes()
        bench.session.keep()  # nothing new
        bench.ask_and_keep(
            STORY + " end now" + tiny.text(bench.session.caches.tokens[-4:]) + " red", 5, conversation=7
        )
        assert [path.name for path in files(home)] == ["7.state"]
        assert first.read_bytes() != content
        for i, word in enumerate((" sea", " sun", " fog")):
            os.utime(files(home)[0], (time.time() - 50 + i, time.time() - 50 + i))
            bench.ask_and_keep(word * 600, 5, conversation=11 + i)
    assert [path.name for path in files(home)] == ["11.state", "12.state", "13.state"]


def test_what_no_store_has_is_kept_nowhere(tiny_dir: Path, home: Path) -> None:
    """One shots, and chats whose store is in memory: their numbers are not those of the store on disk."""
    with chat(load_named(tiny_dir, "llama-draft")) as bench:
        bench.ask_and_keep(STORY + " end now", 5, conversation=0)
    assert not list(home.glob("states/*"))


def test_all_states_together_take_no_more_than_their_budget_not_even_for_a_while(
    tiny_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for two and a half: the third costs the oldest, before it is written."""
    load = load_named(tiny_dir, "llama-draft")
    during: list[list[Path]] = []

    with_digest = saved_state._with_digest

    def watched(parts: Any, interrupted: Any) -> Iterator[memoryview]:
        during.append(files(home))
        return with_digest(parts, interrupted)

    monkeypatch.setattr(saved_state, "_with_digest", watched)
    with chat(load) as bench:
        for number, (age, word) in enumerate(((50, " sea"), (40, " sun"), (30, " red")), 1):
            bench.ask_and_keep(word * 600, 5, conversation=number)
            (newest,) = set(files(home)) - set(during[-1])
            os.utime(newest, (time.time() - age,) * 2)
            monkeypatch.setattr(saved_state, "MAX_BYTES", newest.stat().st_size * 5 // 2)
    assert [len(held) for held in during] == [0, 1, 1]
    assert len(files(home)) == 2 and not set(during[1]) & set(files(home))


def test_off_keeps_nothing_and_deletes_what_there_is(tiny_dir: Path, home: Path) -> None:
    load = load_named(tiny_dir, "llama-draft")
    path = saved(load, home)
    (path.parent / "2.state").touch()
    foreign = path.parent / "notes.txt"
    foreign.write_text("mine")
    session, _ = open_session(load, lambda event: None, forgiving=True, resuming=True)
    session.close()
    assert list(path.parent.iterdir()) == [foreign]


def test_old_files_and_those_of_engines_that_died_are_deleted_at_the_next_load(
    tiny_dir: Path, home: Path
) -> None:
    load = load_named(tiny_dir, "llama-draft")
    path = saved(load, home)
    waiting, dead = path.parent / "2.state", path.parent / "3.state"
    for file in (waiting, dead):
        file.touch()
    os.utime(dead, (time.time() - 7200,) * 2)
    with chat(load):
        assert set(path.parent.iterdir()) == {path, waiting}
    os.utime(path, (time.time() - 8 * 24 * 3600,) * 2)
    with chat(load):
        assert list(path.parent.iterdir()) == [waiting]


@pytest.mark.parametrize(
    "name",
    ["0123456789abcdef-0123456789abcdef.state", ".012-34.state.77.ab_cd123", ".77.abcd0123.mark", "0.state"],
)
def test_what_is_named_by_no_conversation_is_deleted(tiny_dir: Path, home: Path, name: str) -> None:
    """Its text could not be deleted with the conversation that it is of."""
    load = load_named(tiny_dir, "llama-draft")
    path = saved(load, home)
    (path.parent / name).write_bytes(b"x")
    with chat(load):
        assert list(path.parent.iterdir()) == [path]


def test_a_state_of_a_deleted_conversation_is_not_written_any_more(tiny_dir: Path, home: Path) -> None:
    """The caches still hold it when its file is unlinked: neither an idle time nor a quit brings it back."""
    load = load_named(tiny_dir, "llama-draft")
    with chat(load) as bench:
        bench.ask(STORY + " end now", 20)
        state_file(1).unlink()
        bench.session.keep()
        bench.session.keep()
        assert list((home / "states").iterdir()) == []
        # The next conversation is kept as usual.
        bench.ask_and_keep(" sea" * 600, 20, conversation=2)
        assert files(home) == [state_file(2)]
        # So is the one that is gone on with, deleted or not.
        state_file(2).unlink()
        bench.ask_and_keep(" sea" * 600 + " end now", 20, conversation=2)
        assert files(home) == [state_file(2)]


def test_a_deletion_at_any_moment_of_a_save_removes_the_state(
    tiny_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the folder was tidied, after the file was opened, between two pieces, and when all is written."""
    monkeypatch.setattr(saved_state, "_PIECE", 100_000)
    load = load_named(tiny_dir, "llama-draft")
    make_room, with_digest = saved_state._make_room, saved_state._with_digest
    looks = 0

    def deleted_before(size: int, path: Path) -> None:
        make_room(size, path)
        path.unlink()

    def deleted_at(piece: int) -> Callable[..., Iterator[memoryview]]:
        def pieces(parts: Any, interrupted: Any) -> Iterator[memoryview]:
            nonlocal looks
            for looks, part in enumerate(with_digest(parts, interrupted)):
                if looks == piece:
                    state_file(1).unlink()
                yield part
            if piece == -1:
                state_file(1).unlink()

        return pieces

    changes = [("_make_room", deleted_before), *(("_with_digest", deleted_at(n)) for n in (0, 3, -1))]
    with chat(load) as bench:
        for i, (name, change) in enumerate(changes):
            bench.ask(STORY + " end now" + " sea" * i, 20)
            with monkeypatch.context() as patch:
                patch.setattr(saved_state, name, change)
                bench.session.keep()
            bench.session.keep()
            assert list((home / "states").iterdir()) == []
        assert looks > 3
        bench.ask_and_keep(STORY + " end now the old hut", 20)
        assert files(home) == [state_file(1)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_save_that_is_given_up_leaves_nothing_of_the_text_and_is_made_good_later(
    tiny_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(saved_state, "_PIECE", 1000)
    load = load_named(tiny_dir, "llama-draft")
    with chat(load) as bench:
        bench.ask_and_keep(STORY + " end now", 5)
        prompt = STORY + " end now" + tiny.text(bench.session.caches.tokens[-4:]) + " red"
        bench.ask(prompt, 5)
        if fails:
            with monkeypatch.context() as patch:
                patch.setattr(saved_state, "_with_digest", full_disk)
                bench.session.keep()
            assert list((home / "states").iterdir()) == []
            return
        before = state_file(1).read_bytes()
        for looks in (0, 1, 3):
            left = iter([False] * looks)
            bench.session.keep(lambda left=left: next(left, True))  # type: ignore[misc]
            assert state_file(1).read_bytes() == (before if not looks else b"")
        tokens = list(bench.session.caches.tokens)
        bench.session.keep()
        assert files(home) == [state_file(1)]
    with chat(load) as bench:
        assert bench.ask(prompt + tiny.text(tokens[-4:]) + " old hut", 5).restored == len(tokens)


def full_disk(parts: Any, interrupted: Any) -> Iterator[memoryview]:
    yield memoryview(parts[1])[:1000]
    raise OSError(28, "No space left on device")


def test_a_folder_that_cannot_be_written_costs_the_file_alone(tiny_dir: Path, home: Path) -> None:
    home.mkdir()
    (home / "states").write_text("in the way")
    with chat(load_named(tiny_dir, "llama-draft")) as bench:
        bench.ask_and_keep(STORY + " end now", 5)
        assert bench.ask(STORY + " end now", 5).ended.finish_reason == "length"
    assert (home / "states").read_text() == "in the way"


# -- the engine process

LONG = 120.0
"""Seconds to wait for what must come; only a broken engine makes a test wait that long."""

ENDLESS_SAVE = """
def endless(parts, interrupted):
    while not interrupted():
        yield b"x" * 100_000
        time.sleep(0.01)
    raise saved_state._GivenUp
saved_state._with_digest = endless
"""
"""A disk so slow that no state is ever written to its end."""
HUNG_SAVE = """
def hung(parts, interrupted):
    yield b"x" * 100_000
    time.sleep(3600)
saved_state._with_digest = hung
"""


@pytest.fixture
def engine(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], EngineClient]]:
    """Starts engine processes, each with something changed in it."""
    started: list[EngineClient] = []
    popen = subprocess.Popen

    def start(change: str = "") -> EngineClient:
        code = f"import time\nfrom ds4chat.engine import child, saved_state\n{change}\nchild.main()"

        def changed(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
            return popen([*command[:2], "-c", code], **how)

        client = EngineClient(tmp_path / "engine.log")
        with monkeypatch.context() as patch:
            patch.setattr("ds4chat.engine.client.subprocess.Popen", changed)
            client.start()
        started.append(client)
        return client

    yield start
    for client in started:
        client.kill()
        client.close()


def deepseek(folder: Path) -> Load:
    """DeepSeek V4's layout: of the constructed models the one whose prefill costs most, so that it pays."""
    return replace(load_named(folder, "deepseek4-support"), keep_states=True)


def ask(client: EngineClient, load: Load, prompt: str) -> list[Event]:
    client.send(load)
    assert client.wait_for(Loaded, LONG)[0]
    return ask_again(client, 1, prompt)


def ask_again(client: EngineClient, reply: int, prompt: str) -> list[Event]:
    client.send(Generate(reply, prompt=prompt, tuning=Tuning(depth=3), max_tokens=20, conversation=1))
    ended, seen = client.wait_for(Ended, LONG)
    assert ended is not None
    return seen


def restored_in(events: list[Event]) -> bool:
    return any("restored from disk" in e.message for e in events if isinstance(e, Notice))


def left(client: EngineClient) -> int | None:
    """The exit code of the client's process."""
    assert client._process is not None
    return client._process.poll()


def is_whole(path: Path) -> bool:
    content = path.read_bytes()
    return hashlib.blake2b(content[:-32], digest_size=32).digest() == content[-32:]


@pytest.mark.parametrize("how", ["quit", "idle"])
def test_the_engine_process_keeps_a_conversation_over_a_restart(
    tiny_dir: Path, engine: Callable[[str], EngineClient], home: Path, how: str
) -> None:
    client = engine("child.IDLE_S = " + ("0.1" if how == "idle" else "3600.0"))
    seen = ask(client, deepseek(tiny_dir), STORY + " end now")
    assert not restored_in(seen)
    if how == "idle":
        until(lambda: any(map(is_whole, files(home))), "a whole state")
        client.kill()  # nothing is left to do
        client.close()
    else:
        client.close(LONG)
        assert left(client) == 0
    assert len(files(home)) == 1
    answer = Answer()
    for event in seen:
        if isinstance(event, Step | Ended):
            answer.collect(event)
    client = engine("")
    assert restored_in(ask(client, deepseek(tiny_dir), STORY + " end now" + answer.text + " the old hut"))


def test_a_conversation_deleted_right_after_its_reply_does_not_come_back_at_the_quit(
    tiny_dir: Path, engine: Callable[[str], EngineClient], home: Path
) -> None:
    client = engine("child.IDLE_S = 3600.0")
    ask(client, deepseek(tiny_dir), STORY + " end now")
    state_file(1).unlink()
    client.close(LONG)
    assert left(client) == 0
    assert list((home / "states").iterdir()) == []


def test_a_process_whose_client_is_gone_leaves_at_once(
    tiny_dir: Path, engine: Callable[[str], EngineClient], home: Path
) -> None:
    """No state is kept then: nobody said Quit."""
    client = engine("child.IDLE_S = 3600.0")
    ask(client, deepseek(tiny_dir), STORY + " end now")
    assert client._process is not None and client._process.stdin is not None
    client._process.stdin.close()
    assert client._process.wait(LONG) == 0
    assert files(home) == []


def test_a_quit_gives_up_a_state_for_which_the_clients_patience_is_too_short(
    tiny_dir: Path, engine: Callable[[str], EngineClient], home: Path
) -> None:
    """It leaves by itself, in the time that the client gives it, and nothing half-written stays."""
    client = engine(f"child.IDLE_S = 3600.0\nchild.KEEP_SHARE = 0.01\n{ENDLESS_SAVE}")
    ask(client, deepseek(tiny_dir), STORY + " end now")
    client.close(LONG)
    assert left(client) == 0
    assert [path.stat().st_size for path in (home / "states").iterdir()] == [0]
    assert 0 < child.KEEP_SHARE < 1


def test_a_prompt_does_not_wait_for_a_state_that_is_written(
    tiny_dir: Path, engine: Callable[[str], EngineClient], home: Path
) -> None:
    client = engine(f"child.IDLE_S = 0.05\n{ENDLESS_SAVE}")
    ask(client, deepseek(tiny_dir), STORY + " end now")
    until(lambda: files(home), "the beginning of a state")
    ask_again(client, 2, " the old hut")
    assert not files(home)


def test_what_a_process_leaves_that_had_to_be_killed_is_no_state(
    tiny_dir: Path, engine: Callable[[str], EngineClient], home: Path
) -> None:
    """A disk that hangs: the client does not wait for it, and no torn state is ever taken for one."""
    client = engine(f"child.IDLE_S = 0.05\n{HUNG_SAVE}")
    ask(client, deepseek(tiny_dir), STORY + " end now")
    until(lambda: files(home), "the beginning of a state")
    client.close(0.5)
    assert left(client) is not None
    client = engine("child.IDLE_S = 3600.0")
    assert not restored_in(ask(client, deepseek(tiny_dir), STORY + " end now"))
    client.close(LONG)
    assert [is_whole(path) for path in files(home)] == [True]
