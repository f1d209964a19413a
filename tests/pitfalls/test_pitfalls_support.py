"""Support files: what is refused before llama.cpp sees it, and what a drafter takes over from the target."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
from kits.engine import END_NOW, PAIRS, load_of, opened

from ds4chat.engine.drafters.hidden import HiddenDrafter
from ds4chat.engine.drafters.nextn import NextN
from ds4chat.engine.events import Event, Generate, Load, LoadError, Notice
from ds4chat.engine.llama import Context, Floats, Model
from ds4chat.engine.opening import open_session


def quiet(event: Event) -> None:
    """Nobody listens."""


@pytest.fixture
def no_native_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that reaches llama.cpp fails the test."""

    def refuse(self: Model, path: str, **more: Any) -> None:
        raise AssertionError(f"{path} reached llama.cpp")

    monkeypatch.setattr(Model, "__init__", refuse)


@pytest.mark.parametrize(
    ("target", "support"),
    [
        ("llama", "eagle3"),
        ("llama", "llama-draft"),
        ("deepseek4", "deepseek4-support"),
        ("gemma4", "gemma4-assistant"),
    ],
)
@pytest.mark.parametrize("vocabulary", ["changed", "longer"])
def test_another_vocabulary_is_refused_and_the_target_answers_alone(
    tiny_dir: Path, target: str, support: str, vocabulary: str
) -> None:
    """Pitfall 10: one token's text differs, or there are 32 more of them, in every kind of support file."""
    path = tiny.build(support, tiny_dir, vocabulary=vocabulary)
    load = Load(str(tiny.build(target, tiny_dir)), str(path), ctx=512, threads=1)
    if support == "llama-draft" and vocabulary == "longer":
        # A draft model may be padded; what it proposes beyond the target's vocabulary is dropped.
        with opened(load) as bench:
            assert bench.ask(n=40, depth=3).ids == tiny.reply(tiny.encode(END_NOW)[-1], 40)
        return
    with pytest.raises(LoadError, match=r"vocabulary.*made for this model"):
        open_session(load, quiet, forgiving=False)
    events: list[Event] = []
    session, loaded = open_session(load, events.append, forgiving=True)
    assert loaded.drafter is None
    assert "vocabulary" in loaded.off_reason
    assert [e.level for e in events if isinstance(e, Notice)] == ["error"]
    session.close()


@pytest.mark.parametrize(
    ("target", "support", "words"),
    [
        ("llama", "gemma4-assistant", "drafts for gemma4"),
        ("llama", "deepseek4-support", "made for the architecture deepseek4"),
        ("deepseek4", "deepseek4-ds4", "convert-mtp"),
        ("gemma4-assistant", "", "Give the whole model with -m"),
        ("eagle3", "", "Give the whole model with -m"),
        ("deepseek4-support", "", "Give the whole model with -m"),
        ("deepseek4-ds4", "", "convert-mtp"),
    ],
)
@pytest.mark.usefixtures("no_native_load")
def test_files_in_the_wrong_place_never_reach_llama_cpp(
    tiny_dir: Path, target: str, support: str, words: str
) -> None:
    """Pitfalls 11 and 27: the kind is read from the header; llama.cpp would abort or draft rubbish."""
    path = str(tiny.build(support, tiny_dir)) if support else ""
    with pytest.raises(LoadError, match=words):
        open_session(Load(str(tiny.build(target, tiny_dir)), path, ctx=512), quiet, forgiving=False)


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_a_head_on_a_hybrid_keeps_the_counters_known_by_hand(tiny_dir: Path, depth: int) -> None:
    """Pitfall 16: an EAGLE-3 head and a recurrent state are rolled back together, at every length."""
    target, support = tiny.build("qwen35-nextn", tiny_dir), tiny.build("eagle3", tiny_dir, wrong_every=3)
    hand = tiny.simulate(tiny.encode(END_NOW), 100, depth, "eagle3", wrong_every=3)
    with opened(Load(str(target), str(support), ctx=512, threads=1)) as bench:
        got = bench.ask(n=100, depth=depth)
    assert got.ids == hand.tokens
    assert got.counts == (hand.steps, hand.drafted, hand.judged, hand.accepted)


@pytest.mark.parametrize("target", ["llama", "deepseek4", "gemma4"])
def test_a_target_without_nextn_says_why_nothing_is_drafted(tiny_dir: Path, target: str) -> None:
    """Pitfall 12: never silently off."""
    load = Load(str(tiny.build(target, tiny_dir)), "embedded", ctx=512, threads=1)
    with pytest.raises(LoadError, match=r"no NextN block.*--mtp FILE.*--lookup"):
        open_session(load, quiet, forgiving=False)
    session, loaded = open_session(load, quiet, forgiving=True)
    session.close()
    assert loaded.drafter is None
    assert "no NextN block" in loaded.off_reason


def test_a_chat_without_a_support_file_says_so_too(tiny_dir: Path) -> None:
    """Pitfall 12: off because nothing was asked for is a reason as well."""
    with opened(Load(str(tiny.build("llama", tiny_dir)), ctx=512, threads=1)) as bench:
        assert "no support model was given" in bench.loaded.off_reason


@pytest.mark.parametrize("name", [name for name in PAIRS if name != "qwen35-nextn"])
def test_a_drafter_runs_where_and_as_its_target_does(
    tiny_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 26: offload, split mode, buffers, threads and cache types are the target's, the assistant's
    among them, which reads the target's cache."""
    models: list[dict[str, Any]] = []
    contexts: list[dict[str, Any]] = []
    real_model, real_context = Model.__init__, Context.__init__

    def model(self: Model, path: str, **more: Any) -> None:
        models.append(more)
        real_model(self, path, **more)

    def context(self: Context, *args: Any, **more: Any) -> None:
        contexts.append(more)
        real_context(self, *args, **more)

    monkeypatch.setattr(Model, "__init__", model)
    monkeypatch.setattr(Context, "__init__", context)
    load = load_of(
        tiny_dir,
        name,
        gpu_layers=3,
        split_mode="none",
        cache_type_k="q8_0",
        cache_type_v="q8_0",
        flash_attn="on",
        threads=2,
    )
    with opened(load) as bench:
        assert bench.loaded.drafter is not None, bench.loaded.off_reason
        assert bench.ask(n=40, depth=3).ids == tiny.reply(tiny.encode(END_NOW)[-1], 40)
    for key, value in (("gpu_layers", 3), ("split_mode", "none"), ("extra_buffers", True)):
        assert {more[key] for more in models} == {value}
    # Without a cache given: the one in which a state is measured.
    of_target, of_drafter = (more for more in contexts if "cache" in more)
    assert of_target["cache"] == of_drafter["cache"]
    assert (of_drafter["cache"].type_k, of_drafter["cache"].flash_attn) == ("q8_0", "on")
    assert of_target["threads"] == of_drafter["threads"] == 2


def test_what_is_said_against_a_pair_reaches_the_user(tiny_dir: Path) -> None:
    """Pitfall 4: a pair's warnings come as notices, and it is run all the same. Here the one for a draft
    model of four layers beside a target of one; that of low-bit heads takes the same way."""
    target, support = tiny.build("llama-draft", tiny_dir, wrong_every=0), tiny.build("llama", tiny_dir)
    events: list[Event] = []
    load = Load(str(target), str(support), ctx=512, threads=1)
    session, loaded = open_session(load, events.append, forgiving=False)
    session.close()
    assert loaded.drafter is not None
    notices = [(e.level, e.message) for e in events if isinstance(e, Notice)]
    assert notices == [
        (
            "warning",
            f"The draft model {support} is not smaller than the target: "
            "drafting costs as much as it can save.",
        )
    ]


@pytest.mark.parametrize("off", [1, 2])
def test_a_hidden_row_from_the_wrong_position_costs_the_acceptance(
    tiny_dir: Path, off: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 5: the counters known by hand (99 of 100 at depth 1) hold for the right row alone."""
    with opened(load_of(tiny_dir, "deepseek4-nextn", wrong_every=0)) as bench:
        right = bench.ask(n=100, depth=3).stats
        assert right.accepted == right.judged > 0
    real = NextN._target_rows

    def shifted(self: NextN, rows: int) -> Floats:
        return real(self, rows)[:, [max(i - off, 0) for i in range(rows)]]

    monkeypatch.setattr(NextN, "_target_rows", shifted)
    with opened(load_of(tiny_dir, "deepseek4-nextn", wrong_every=0)) as bench:
        wrong = bench.ask(n=100, depth=3).stats
    assert wrong.acceptance is not None
    assert wrong.acceptance < 0.9


@pytest.mark.parametrize(
    "name", ["deepseek4-support", "deepseek4-nextn", "qwen35-nextn", "eagle3", "mimo2-nextn"]
)
@pytest.mark.parametrize("words", [1, 40, 300, 450])
def test_the_drafters_cache_reaches_as_far_as_the_targets(tiny_dir: Path, name: str, words: int) -> None:
    """Pitfall 6: every prompt token is in the drafter's cache once it drafts, and no earlier cell is missing;
    EAGLE-3 keeps the cell of a token one position lower."""
    shift = 1 if name == "eagle3" else 0
    prompt = " we" * (words - 1) + " now"
    with opened(load_of(tiny_dir, name)) as bench:
        decoded: set[int] = set()
        draft_context = bench.session.caches.drafter._context  # type: ignore[union-attr]
        real = draft_context.decode

        def decode(tokens: Any, pos: int, **more: Any) -> None:
            decoded.update(range(pos, pos + len(tokens)))
            real(tokens, pos, **more)

        draft_context.decode = decode
        bench.ask(prompt, 2, depth=1)
        n = len(tiny.encode(prompt))
        assert set(range(n - shift)) <= decoded
        assert draft_context.used >= n - 1 - shift


@pytest.mark.parametrize("name", PAIRS)
def test_a_new_conversation_starts_from_no_pending_row(tiny_dir: Path, name: str) -> None:
    """Pitfall 18: nothing of the conversation before is drafted from; counters are those of a fresh load."""
    first, second = " end now", "so hi we go"
    with opened(load_of(tiny_dir, name)) as bench:
        fresh = bench.ask(second, 60, depth=3)
    with opened(load_of(tiny_dir, name)) as bench:
        bench.ask(first, 33, depth=3)
        bench.session.reset()
        drafter = bench.session.caches.drafter
        if isinstance(drafter, HiddenDrafter):
            assert (drafter._oldest, drafter._hidden[-1].any()) == (-1, False)
        again = bench.ask(second, 60, depth=3)
    assert (again.ids, again.counts, again.by_position) == (fresh.ids, fresh.counts, fresh.by_position)


@pytest.mark.parametrize("name", [*PAIRS, "lookup"])
def test_a_second_run_of_a_prompt_drafts_no_better_than_the_first(tiny_dir: Path, name: str) -> None:
    """Pitfall 30: no cache of drafts outlives a reply; the text that was taken back is forgotten with it."""
    load = load_of(tiny_dir, "llama-draft" if name == "lookup" else name)
    if name == "lookup":
        load = dataclasses.replace(load, support="", lookup=True)
    with opened(load) as bench:
        runs = [bench.ask(n=60, depth=4) for _ in range(3)]
    assert runs[0].stats.judged > 0
    assert {run.counts for run in runs} == {runs[0].counts}


def test_a_gate_holds_for_every_draft_of_a_replayed_prompt(tiny_dir: Path) -> None:
    """Pitfall 30: the second run of a prompt is gated like the first; nothing slips past the stop."""
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        free = bench.ask(n=40, depth=3)
        gaps = [row.draft_gap for s in free.steps for row in s.judged if row.draft_gap is not None]
        for _ in range(2):
            assert bench.ask(n=40, depth=3, gate=max(gaps) + 1).stats.drafted == 0


def test_the_load_offers_no_way_to_embeddings_or_images() -> None:
    """Pitfalls 28 and 29: a context that drafts is never asked for pooled embeddings nor fed an image's
    rows, because no command can ask for either."""
    fields = {f.name for command in (Load, Generate) for f in dataclasses.fields(command)}
    assert not {name for name in fields if "embed" in name or "image" in name or "mmproj" in name}
