"""The cycle on constructed models: the stream is plain decoding's, and every counter is known by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from kits.engine import END_NOW, PAIRS, Answer, Bench, cancel_at, load_of, opened
from tiny.tensors import GAIN

from ds4chat.engine.control import Control
from ds4chat.engine.events import (
    Ended,
    Event,
    Generate,
    Message,
    Prefill,
    SpeculationOff,
    Step,
    Tuning,
)
from ds4chat.engine.llama import Context

DEPTHS = (1, 2, 3, 4, 8)


@pytest.fixture(params=list(PAIRS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("wrong_every", [0, 3, 4])
def test_stream_and_counters_are_those_worked_out_by_hand(
    tiny_dir: Path, name: str, wrong_every: int
) -> None:
    prompt = tiny.encode(END_NOW)
    with opened(load_of(tiny_dir, name, wrong_every=wrong_every)) as bench:
        for depth in DEPTHS:
            got = bench.ask(n=200, depth=depth)
            hand = tiny.simulate(prompt, 200, depth, name, wrong_every=wrong_every)  # type: ignore[arg-type]
            assert got.ids == hand.tokens == tiny.reply(prompt[-1], 200)
            assert got.counts == hand.counts
            assert got.by_position == [pair for pair in hand.by_position if pair[0]]
            assert [t.origin for t in got.tokens] == hand.origins


def test_the_known_counts_stand_as_literals(tiny_dir: Path) -> None:
    """Every fourth word wrong, 200 tokens: steps, drafted, judged, accepted."""
    with opened(load_of(tiny_dir, "deepseek4-support")) as bench:
        assert bench.ask(n=200, depth=1).counts == (101, 100, 100, 99)
        assert bench.ask(n=200, depth=2).counts == (100, 200, 150, 100)
        assert bench.ask(n=200, depth=3).counts == (51, 152, 150, 149)
        assert bench.ask(n=200, depth=4).counts == (51, 202, 199, 149)


def test_step_outcomes_are_told_apart(tiny_dir: Path) -> None:
    """Depth 4: a miss, 49 steps of three accepted of four, and a last step cut to the budget."""
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        got = bench.ask(n=200, depth=4)
    assert got.steps[0].outcome == "miss"
    assert {s.outcome for s in got.steps[1:-1]} == {"partial"}
    assert (got.steps[-1].outcome, got.steps[-1].depth) == ("full", 2)


@pytest.mark.parametrize("prompt", ["hi emoji", "hi broken", "hi stop", "hi cut", "so ponder"])
def test_replies_that_end_inside_a_block(tiny_dir: Path, name: str, prompt: str) -> None:
    """An end token among the accepted drafts, one that the drafter misses, characters split over tokens."""
    ids = tiny.encode(prompt)
    with opened(load_of(tiny_dir, name)) as bench:
        for depth in (0, 3, 8):
            got = bench.ask(prompt, depth=depth)
            hand = tiny.simulate(ids, 99, depth, name)  # type: ignore[arg-type]
            assert got.ids == hand.tokens
            assert got.counts == hand.counts
            assert got.ended.finish_reason == "stop"
            # The next turn starts from a cache that is cut to the last token that counts.
            assert bench.session.caches.target.used == len(bench.session.caches.tokens)
            assert bench.ask(f"{prompt} end now", 12, depth=depth).ids == tiny.reply(
                tiny.encode(" now")[-1], 12
            )


def test_characters_split_over_tokens_and_steps_come_whole(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "deepseek4-support")) as bench:
        for depth in (0, 1, 2, 3, 8):
            got = bench.ask("hi emoji", depth=depth)
            assert got.text == " look😀€ wowé"
            assert [t.text for t in got.tokens[1:5]] == ["", "", "", "😀"]
            assert bench.ask("hi broken", depth=depth).text == "\ufffd ok\ufffd"


def test_thinking_is_told_from_the_answer_inside_accepted_blocks(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "deepseek4-support")) as bench:
        for depth in (0, 2, 8):
            got = bench.ask("so ponder", depth=depth)
            thought = "".join(t.text for t in got.tokens if t.thinking)
            answer = "".join(t.text for t in got.tokens if not t.thinking)
            assert thought == " let me see this"
            assert answer == " yes it is fine."


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_the_budget_is_met_to_the_token(tiny_dir: Path, name: str, n: int) -> None:
    with opened(load_of(tiny_dir, name)) as bench:
        got = bench.ask(n=n, depth=8)
        assert got.ids == tiny.reply(tiny.encode(END_NOW)[-1], n)
        assert got.ended.finish_reason == "length"


@pytest.mark.parametrize("depth", [0, 1, 8, 16])
def test_the_context_end_gives_the_text_of_plain_decoding(tiny_dir: Path, name: str, depth: int) -> None:
    """Room for prompt + 5: a draft must never reach past it."""
    prompt = tiny.encode(END_NOW)
    with opened(load_of(tiny_dir, name)) as bench:
        bench.session.n_ctx = len(prompt) + 5
        got = bench.ask(depth=depth)
        assert got.ids == tiny.reply(prompt[-1], 6)
        assert got.ended.finish_reason == "context"
        assert "context of" in got.ended.detail
        assert not got.notices


def test_a_prompt_longer_than_the_context_is_refused_with_a_sentence(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        got = bench.ask(" end now" * 400)
        assert got.ended.finish_reason == "context"
        assert "Shorten it" in got.ended.detail
        assert bench.ask(n=5).ids == tiny.reply(tiny.encode(END_NOW)[-1], 5)


@pytest.mark.parametrize("words", [1, 2, 3, 127, 128, 129, 130])
def test_odd_prompt_lengths_around_the_prefill_chunk(tiny_dir: Path, name: str, words: int) -> None:
    prompt = " now" * words
    ids = tiny.encode(prompt)
    with opened(load_of(tiny_dir, name)) as bench:
        assert bench.ask(prompt, 20, depth=3).ids == tiny.reply(ids[-1], 20)


def test_turns_reuse_the_cache_and_edits_decode_only_what_changed(tiny_dir: Path) -> None:
    """Token comparison: an extension keeps all, an edit keeps the common prefix."""
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        first = bench.ask(" end now", 10, depth=3)
        whole = " end now" + first.text
        grown = bench.ask(whole + " so hi", 10, depth=3)
        n = len(tiny.encode(whole))
        assert grown.ended.reused_tokens >= n - 1
        edited = bench.ask(" end now" + " hi" * 3, 10, depth=3)
        common = len(tiny.encode(" end now"))
        assert edited.ended.reused_tokens in (common, common - 1)
        assert edited.ids == tiny.reply(tiny.encode(" hi")[-1], 10)


def test_an_edit_leaves_hidden_state_drafters_right(tiny_dir: Path, name: str) -> None:
    """After going back, drafts must be made of the kept rows: the counters equal those of a fresh session."""
    edited = " end now hi we"
    with opened(load_of(tiny_dir, name)) as bench:
        fresh = bench.ask(edited, 40, depth=3)
    with opened(load_of(tiny_dir, name)) as bench:
        bench.ask(" end now hi hi so", 30, depth=3)
        again = bench.ask(edited, 40, depth=3)
        assert (again.ids, again.counts) == (fresh.ids, fresh.counts)


def test_regenerating_keeps_the_prompt(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "eagle3")) as bench:
        one = bench.ask(n=30, depth=3)
        two = bench.ask(n=30, depth=3)
        assert two.ids == one.ids
        assert two.counts == one.counts
        assert two.ended.reused_tokens >= len(tiny.encode(END_NOW)) - 2


@pytest.mark.parametrize("phase", ["prefill", "draft", "verify", "between"])
@pytest.mark.parametrize("depth", [0, 3])
def test_a_cancel_at_any_phase_leaves_both_caches_usable(
    tiny_dir: Path, name: str, phase: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(load_of(tiny_dir, name)) as bench:
        got = _cancelled(bench, phase, depth, monkeypatch)
        assert got.ended.finish_reason == "cancelled"
        assert got.ids == tiny.reply(tiny.encode(END_NOW)[-1], 60)[: len(got.ids)]
        assert bench.session.caches.target.used == len(bench.session.caches.tokens)
        after = bench.ask(" end now", 40, depth=depth)
        hand = tiny.simulate(tiny.encode(" end now"), 40, depth, name)  # type: ignore[arg-type]
        assert (after.ids, after.counts) == (hand.tokens, hand.counts)


def _cancelled(bench: Bench, phase: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """An answer that is cancelled in this phase."""
    if phase == "prefill":
        return bench.ask(
            " end" * 300 + " now",
            60,
            depth=depth,
            hook=lambda e, c: c.cancel() if isinstance(e, Prefill) and e.done else None,
        )
    if phase == "between" or (phase == "draft" and not depth):  # at depth 0 nothing is drafted
        return bench.ask(n=60, depth=depth, hook=cancel_at(3))
    return bench.cancelled_in(4, monkeypatch, drafting=phase == "draft", n=60, depth=depth)


def test_keep_accepted_decides_what_a_stop_inside_a_block_leaves(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel comes during the verification of the second block of four."""
    for keep, emitted in ((True, 5), (False, 1)):
        with opened(load_of(tiny_dir, "llama-draft")) as bench:
            got = bench.cancelled_in(2, monkeypatch, n=60, depth=3, keep_accepted=keep)
            # One token of the first step (a miss), and the block of four or nothing of it.
            assert len(got.ids) == emitted
            assert bench.session.caches.target.used == len(bench.session.caches.tokens)
            assert bench.ask(n=20, depth=3).ids == tiny.reply(tiny.encode(END_NOW)[-1], 20)


def test_probe_drafts_and_compares_and_never_uses(tiny_dir: Path) -> None:
    """Every fourth draft is wrong: 50 misses of 200, and the text comes one token a step."""
    with opened(load_of(tiny_dir, "deepseek4-support")) as bench:
        got = bench.ask(n=200, depth=4, probe=True)
        assert got.ids == tiny.reply(tiny.encode(END_NOW)[-1], 200)
        assert got.stats.steps == 200
        assert {t.origin for t in got.tokens} == {"plain"}
        assert got.stats.judged - got.stats.accepted == 50


def test_full_logits_fill_the_judged_rows(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        plain = bench.ask(n=12, depth=3)
        full = bench.ask(n=12, depth=3, full_logits=True)
        assert all(row.full is None for s in plain.steps for row in s.judged)
        rows = [row for s in full.steps for row in s.judged]
        assert rows
        for row in rows:
            assert row.full is not None
            assert len(row.full.top) == 5
            assert row.full.top[0][0] == row.target
            assert row.full.p_draft == pytest.approx(row.full.p_target * row.ratio, rel=1e-4)
        assert full.ids == plain.ids


def test_the_gate_stops_drafting_where_the_drafter_is_unsure(tiny_dir: Path) -> None:
    """A gate above every gap leaves no draft; one below every gap changes nothing."""
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        free = bench.ask(n=40, depth=3)
        gaps = [row.draft_gap for s in free.steps for row in s.judged if row.draft_gap is not None]
        assert gaps
        closed = bench.ask(n=40, depth=3, gate=max(gaps) + 1)
        assert closed.stats.drafted == 0
        assert {s.outcome for s in closed.steps[:-1]} == {"gated"}
        assert closed.ids == free.ids
        assert bench.ask(n=40, depth=3, gate=min(gaps) / 2).counts == free.counts


def test_an_approximate_margin_takes_drafts_that_exact_refuses(tiny_dir: Path) -> None:
    """Margin 0 accepts every draft: the text is then the drafter's own, and every lossy token is told."""
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        got = bench.ask(n=40, depth=4, margin=0.0)
        assert got.stats.accepted == got.stats.judged
        assert got.stats.lossy > 0
        assert got.ids != tiny.reply(tiny.encode(END_NOW)[-1], 40)
        strict = bench.ask(n=40, depth=4, margin=0.0, strict=True)
        assert strict.ids == tiny.reply(tiny.encode(END_NOW)[-1], 40)


# The right token's logit is 8 * GAIN above 383 equals: at GAIN / 0.8 its probability is about a half.
@pytest.mark.parametrize("temp", [GAIN / 0.8, GAIN / 0.9])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_a_seeded_stream_is_that_of_plain_decoding(
    tiny_dir: Path, name: str, temp: float, penalty: float
) -> None:
    with opened(load_of(tiny_dir, name)) as bench:
        sampling = {
            "temp": temp,
            "seed": 7,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "repeat_penalty": penalty,
        }
        plain = bench.ask(n=80, depth=0, **sampling)
        for depth in (1, 4):
            assert bench.ask(n=80, depth=depth, **sampling).ids == plain.ids
        assert plain.ids != tiny.reply(tiny.encode(END_NOW)[-1], 80)
        assert bench.ask(n=80, depth=2, **{**sampling, "seed": 8}).ids != plain.ids


def test_a_retune_applies_from_the_next_step_and_is_stamped(tiny_dir: Path) -> None:
    def hook(event: Event, control: Control) -> None:
        if isinstance(event, Step) and event.index == 4:
            control.tuning = Tuning(depth=2, gate=0.5)

    with opened(load_of(tiny_dir, "deepseek4-support")) as bench:
        got = bench.ask(n=60, tuning=Tuning(depth=4), hook=hook)
        assert [s.tuning.depth for s in got.steps[:6]] == [4, 4, 4, 4, 4, 2]
        assert all(s.depth <= 2 for s in got.steps[5:])
        assert got.ids == tiny.reply(tiny.encode(END_NOW)[-1], 60)


def test_a_retune_before_the_reply_begins_counts_from_its_start_and_is_what_a_check_repeats(
    tiny_dir: Path,
) -> None:
    """The request waited while the sampling was changed."""
    sampling = Tuning(depth=3, temp=GAIN / 0.8, top_k=0, top_p=1.0, min_p=0.0, seed=7)
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        wanted = bench.ask(n=60, tuning=sampling)
        assert wanted.ids != tiny.reply(tiny.encode(END_NOW)[-1], 60)
        events: list[Event] = []
        request = Generate(1, prompt=END_NOW, tuning=Tuning(depth=1), max_tokens=60)
        bench.session.generate(request, Control(sampling), events.append)
        ended = events[-1]
        assert isinstance(ended, Ended) and ended.seed == 7
        assert [t.id for e in events if isinstance(e, Step) for t in e.tokens] == wanted.ids
        assert bench.check().equal


def test_a_check_shows_how_far_it_is_of_prompt_and_reply(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft", ctx=2048)) as bench:
        bench.ask(" end" * 300 + " now", 300, depth=3)
        events: list[Event] = []
        bench.session.replay(1, Control(Tuning()), events.append)
        seen = [e for e in events if isinstance(e, Prefill)]
        assert {e.total for e in seen} == {301 + 300}
        assert [e.done for e in seen] == [0, 128, 256, 301, 301 + 128, 301 + 256]


def test_a_refused_rollback_is_made_good_by_decoding_again(
    tiny_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Wrong after every third word: no kind of drafter can fall into step with that.
    with opened(load_of(tiny_dir, name, wrong_every=3)) as bench:
        real, refused = Context.remove_from, {"n": 0}

        def remove_from(self: Context, pos: int, seq: int = 0) -> bool:
            if self is bench.session.caches.target and refused["n"] < 3:
                refused["n"] += 1
                return False
            return real(self, pos, seq)

        monkeypatch.setattr(Context, "remove_from", remove_from)
        got = bench.ask(n=120, depth=4)
        assert refused["n"] == 3
        assert got.ids == tiny.reply(tiny.encode(END_NOW)[-1], 120)
        assert any("decoded again" in note for note in got.notices)
        assert got.stats.outcomes["fallback"] >= 1


def test_drafts_that_never_hit_switch_speculation_off(tiny_dir: Path) -> None:
    """A head that is wrong after every word: 64 judged, none accepted, and the text goes on."""
    with opened(load_of(tiny_dir, "llama-draft", wrong_every=1)) as bench:
        got = bench.ask(n=120, depth=1)
        assert got.ids == tiny.reply(tiny.encode(END_NOW)[-1], 120)
        assert got.stats.judged == 64
        (off,) = [e for e in got.events if isinstance(e, SpeculationOff)]
        assert "made for another model" in off.reason
        assert bench.session.caches.drafter is None
        assert bench.ask(n=20, depth=3).ids == tiny.reply(tiny.encode(END_NOW)[-1], 20)


def test_temperature_0_never_draws(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        one = bench.ask(n=30, depth=3, seed=1)
        two = bench.ask(n=30, depth=3, seed=2)
        assert one.ids == two.ids


def test_stop_strings_are_tested_token_by_token(tiny_dir: Path) -> None:
    """The stop string ends inside an accepted block; nothing of it shows, and the cache is cut there."""
    whole = tiny.text(tiny.reply(tiny.encode(END_NOW)[-1], 40))
    stop = whole[30:44]
    with opened(load_of(tiny_dir, "deepseek4-support")) as bench:
        for depth in (0, 3, 8):
            got = bench.ask(depth=depth, stop=(stop,))
            assert got.text == whole[: whole.find(stop)]
            assert got.ended.finish_reason == "stop"
            assert bench.session.caches.target.used == len(bench.session.caches.tokens)


def test_ignore_eos_goes_on_past_the_end(tiny_dir: Path) -> None:
    ids = tiny.encode("hi stop")
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        got = bench.ask("hi stop", 12, depth=3, ignore_eos=True)
        hand = tiny.simulate(ids, 12, 3, "llama-draft", ignore_eos=True)
        assert tiny.EOS in got.ids
        assert (got.ids, got.counts) == (hand.tokens, hand.counts)


def test_the_chat_template_of_the_file_is_used(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "deepseek4-support")) as bench:
        prompt = bench.session.prompter.chat([Message("user", "hi")], think=False)
        assert prompt.tokens[0] == tiny.BOS
        assert tiny.USER in prompt.tokens
        assert tiny.ASSISTANT in prompt.tokens
        answer = bench.ask(prompt=None, messages=(Message("user", "hi"),), n=8, think=False)
        assert (answer.ended.finish_reason, answer.ids) == ("stop", tiny.reply(prompt.tokens[-1], 8))


def test_a_lookup_drafts_what_stood_there_before(tiny_dir: Path) -> None:
    """The cycle of 24 words repeats: once it is round, lookup copies it without a support file."""
    with opened(replace(load_of(tiny_dir, "llama-draft", lookup=True), support="")) as bench:
        assert bench.loaded.drafter is not None
        assert bench.loaded.drafter.kind == "lookup"
        got = bench.ask(n=200, depth=8)
        assert got.ids == tiny.reply(tiny.encode(END_NOW)[-1], 200)
        assert got.stats.acceptance == 1.0
        # 24 + 2 tokens until a 3-gram comes again, then 9 a step.
        assert got.stats.steps <= 26 + -(-174 // 9) + 2


def test_lookup_stands_before_a_support_model(tiny_dir: Path, name: str) -> None:
    load = replace(load_of(tiny_dir, name), lookup=True)
    with opened(load) as bench:
        got = bench.ask(n=120, depth=4)
        assert got.ids == tiny.reply(tiny.encode(END_NOW)[-1], 120)
        assert {s.drafter for s in got.steps if s.drafted} > {"lookup"}


def test_replay_finds_the_reply_equal_to_plain_decoding(tiny_dir: Path, name: str) -> None:
    with opened(load_of(tiny_dir, name)) as bench:
        bench.ask(n=40, depth=4, temp=GAIN / 0.8, top_k=0, seed=5)
        answer = bench.check()
        assert (answer.equal, answer.compared, answer.first_difference) == (True, 40, -1)


def test_replay_shows_the_first_difference_of_an_approximate_reply(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        got = bench.ask(n=40, depth=4, margin=0.0)
        plain = tiny.reply(tiny.encode(END_NOW)[-1], 40)
        first = next(i for i, (a, b) in enumerate(zip(got.ids, plain)) if a != b)
        answer = bench.check()
        assert (answer.equal, answer.first_difference) == (False, first)
        assert (answer.spec_token, answer.plain_token) == (got.ids[first], plain[first])
        assert "approximate" in answer.detail
