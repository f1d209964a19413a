"""From files to a session: what is refused, what is converted, what is remembered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from kits import gguf as kit
from kits.engine import END_NOW, load_of, opened

from ds4chat.engine import opening
from ds4chat.engine.batched import BatchedSession
from ds4chat.engine.events import Depth, Event, Load, Loading, Notice
from ds4chat.engine.llama import LlamaError, Model, _context_advice, memory, version
from ds4chat.engine.opening import LoadError, depth_of_copies, open_session


def quiet(event: Event) -> None:
    """Nobody listens."""


def test_a_support_file_in_ds4s_layout_says_how_to_convert_it(tiny_dir: Path) -> None:
    target, support = tiny.build("deepseek4", tiny_dir), tiny.build("deepseek4-ds4", tiny_dir)
    with pytest.raises(LoadError, match="ds4chat convert-mtp"):
        open_session(Load(str(target), str(support), ctx=512), quiet, forgiving=False)


def test_a_conversion_on_load_drafts_as_the_file_made_for_llama_cpp(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built from the same numbers in both layouts: the same drafts and the same counters; and once only."""
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path))
    target = tiny.build("deepseek4", tiny_dir)
    ours = tiny.build("deepseek4-support", tiny_dir, wrong_every=4)
    theirs = tiny.build("deepseek4-ds4", tiny_dir, wrong_every=4)
    with opened(Load(str(target), str(ours), ctx=512, threads=1)) as bench:
        wanted = bench.ask(n=100, depth=3)
    for first in (True, False):
        events: list[Event] = []
        load = Load(str(target), str(theirs), ctx=512, threads=1, convert=True)
        session, loaded = open_session(load, events.append, forgiving=False)
        session.close()
        assert loaded.drafter is not None
        assert loaded.drafter.kind == "nextn-support"
        assert any("was converted" in e.message for e in events if isinstance(e, Notice)) is first
        assert any(e.stage.startswith("converting") for e in events if isinstance(e, Loading)) is first
    with opened(load) as bench:
        got = bench.ask(n=100, depth=3)
    assert (got.ids, got.counts, got.by_position) == (wanted.ids, wanted.counts, wanted.by_position)
    drafts = [[row.draft for row in s.judged] for s in got.steps]
    assert drafts == [[row.draft for row in s.judged] for s in wanted.steps]


def test_megabytes_that_llama_cpp_quotes_from_a_file_are_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"attention.head_count": 2, "attention.layer_norm_rms_epsilon": 1e-5, "feed_forward_length": 32}
    path = kit.whole(tmp_path / "a.gguf", own=own, keys={"tokenizer.ggml.model": "x" * 1_000_000})
    with caplog.at_level("DEBUG"), pytest.raises(LlamaError, match="unknown tokenizer: 'xxx") as caught:
        Model(str(path))
    assert len(str(caught.value)) < 600 + len(str(path))
    assert max(len(record.getMessage()) for record in caplog.records) <= 1000


def test_the_llama_cpp_that_runs_it_is_named(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        assert bench.loaded.llama_cpp == version()


@pytest.mark.parametrize("mode", ["row", "tensor"])
def test_split_over_devices_switches_speculation_off_and_says_why(tiny_dir: Path, mode: str) -> None:
    load = load_of(tiny_dir, "llama-draft", split_mode=mode, lookup=True)
    with opened(load) as bench:
        assert bench.loaded.drafter is None
        assert f"split mode {mode}" in bench.loaded.off_reason
        assert bench.ask(n=9, depth=3).ids == tiny.reply(tiny.encode(END_NOW)[-1], 9)


def test_a_hybrid_without_rollback_runs_plainly_with_the_reason(tiny_dir: Path) -> None:
    path = tiny.build("qwen3next-nextn", tiny_dir)
    for load in (Load(str(path), "embedded", ctx=512), Load(str(path), "", lookup=True, ctx=512)):
        with opened(load) as bench:
            assert bench.loaded.drafter is None
            assert "recurrent state" in bench.loaded.off_reason
            assert bench.ask(n=20, depth=3).ids == tiny.reply(tiny.encode(END_NOW)[-1], 20)


@pytest.mark.parametrize("vocabulary", ["changed", "longer"])
def test_a_support_file_with_another_vocabulary_is_refused(tiny_dir: Path, vocabulary: str) -> None:
    """One token's text differs, or there are more tokens: a refusal, and the target is usable alone."""
    target = tiny.build("llama", tiny_dir)
    support = tiny.build("eagle3", tiny_dir, vocabulary=vocabulary)
    load = Load(str(target), str(support), ctx=512, threads=1)
    with pytest.raises(LoadError, match="vocabulary"):
        open_session(load, quiet, forgiving=False)
    session, loaded = open_session(load, quiet, forgiving=True)
    session.close()
    assert loaded.drafter is None
    assert "vocabulary" in loaded.off_reason


def test_what_auto_depth_measured_is_kept_for_the_next_load(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path))
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        assert bench.ask(n=200, depth="auto").ids == tiny.reply(tiny.encode(END_NOW)[-1], 200)
        measured = bench.session._auto.table
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        kept = bench.session._costs.at(0)
        assert kept is not None
        assert kept == measured


def test_strict_says_what_it_does_here_and_keeps_the_plain_stream(tiny_dir: Path) -> None:
    path = tiny.build("llama-random", tiny_dir, quant="Q8_0")
    draft = tiny.build("llama-random", tiny_dir, quant="Q4_0")
    load = Load(str(path), str(draft), ctx=1024, threads=1, strict=True)
    with opened(load) as bench:
        assert "bit-equal" in bench.loaded.strict_note
        plain = bench.ask(" the old mill", 400, depth=0, strict=True, ignore_eos=True)
        spec = bench.ask(" the old mill", 400, depth=4, strict=True, ignore_eos=True)
        assert spec.ids == plain.ids
        assert spec.stats.judged > 0


def test_the_context_is_as_long_as_asked_for(tiny_dir: Path) -> None:
    """llama.cpp would make 512 cells of these 300; the reply must still stop at 300."""
    with opened(load_of(tiny_dir, "llama-draft", ctx=300)) as bench:
        assert bench.loaded.n_ctx == 300
        got = bench.ask(depth=8)
        assert got.ended.finish_reason == "context"
        assert len(got.ids) == 300 - len(tiny.encode(END_NOW)) + 1


def test_a_quantised_v_cache_without_flash_attention_says_what_would_fix_it(tiny_dir: Path) -> None:
    """A shorter context would not."""
    load = replace(load_of(tiny_dir, "llama-draft"), flash_attn="off", cache_type_v="q4_0")
    with pytest.raises(LoadError) as failed:
        open_session(load, quiet, forgiving=False)
    assert str(failed.value).endswith(
        ". Switch flash attention on (-fa on), or choose a V cache that is not quantised (-ctv f16)."
    )


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        (
            "K cache type q4_0 with block size 32 does not divide n_embd_head_k=80",
            "Choose a cache type that suits the model (-ctk f16 -ctv f16).",
        ),
        (
            "failed to initialize the context: std::bad_alloc",
            "Lower the context length (-c, or /ctx in the chat), or free memory.",
        ),
    ],
)
def test_what_llama_cpp_says_of_a_context_decides_what_is_advised(reason: str, advice: str) -> None:
    assert _context_advice(f"llama_init_from_model: {reason}") == advice


def test_more_cells_than_llama_cpp_counts_are_never_asked_of_it(tiny_dir: Path) -> None:
    """256 slots of 2^31 - 1 tokens: cut to 32 bits, llama.cpp would begin to make 2^32 - 256 cells."""
    load = Load(str(tiny.build("llama", tiny_dir)), ctx=2**31 - 1, threads=1)
    with pytest.raises(LlamaError) as failed:
        BatchedSession(load, 256)
    assert str(failed.value) == (
        "A context of 549,755,813,632 tokens in all is longer than the 2,147,483,647 that llama.cpp counts. "
        "Lower the context length (-c, or /ctx in the chat), or answer fewer prompts at once (--parallel)."
    )


# -- copies of a recurrent state


@pytest.mark.parametrize(
    ("asked", "copy", "available", "depth", "said"),
    [
        (2, 75 << 20, 32 << 30, 2, ""),  # 150 MiB of 32 GiB
        (16, 75 << 20, 32 << 30, 16, ""),  # 1,200 MiB are 3.7 %
        (16, 75 << 20, 16 << 30, 16, "16 copies of this model's recurrent state are kept: 1,200 MiB, 7% of"),
        ("auto", 75 << 20, 16 << 30, 10, ""),  # 5 % are 819 MiB
        ("auto", 75 << 20, 1 << 30, 1, "1 copies"),  # 5 % are 51 MiB: one is kept all the same
        ("auto", 1000, 32 << 30, 16, ""),
        (0, 1000, 32 << 30, 1, ""),  # paused: one, so that it can go on
        (4, 1000, 0, 4, ""),  # memory unknown
    ],
)
def test_the_arithmetic_of_copies(asked: Depth, copy: int, available: int, depth: int, said: str) -> None:
    got, sentence = depth_of_copies(asked, copy, available)
    assert got == depth
    assert (said in sentence) if said else not sentence


@pytest.mark.parametrize("name", ["qwen35-nextn", "deepseek4-support"])
@pytest.mark.parametrize("lookup", [False, True])
def test_a_recurrent_target_keeps_as_many_copies_as_the_depth_needs(
    tiny_dir: Path, name: str, lookup: bool
) -> None:
    with opened(load_of(tiny_dir, name, wrong_every=3, depth=2, lookup=lookup)) as bench:
        assert bench.session.caches.target.rollback == 2
        assert bench.loaded.drafter is not None
        assert bench.loaded.drafter.max_depth == 2
        assert "copies of the recurrent state" in bench.loaded.drafter.note
        for depth in (1, 2, 8, "auto"):
            got = bench.ask(n=60, depth=depth)
            assert got.ids == tiny.reply(tiny.encode(END_NOW)[-1], 60)
            assert max(step.depth for step in got.steps) <= 2


def test_copies_that_take_much_memory_are_said_and_auto_takes_few(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a memory of a million bytes, 5 % are two copies of 17 kB."""
    monkeypatch.setattr(opening, "memory", lambda: 1_000_000)
    for asked, kept in ((4, 4), ("auto", 2)):
        events: list[Event] = []
        session, loaded = open_session(
            load_of(tiny_dir, "qwen35-nextn", depth=asked), events.append, forgiving=False
        )
        session.close()
        assert (
            loaded.drafter is not None and loaded.drafter.max_depth == session.caches.target.rollback == kept
        )
        said = [e.message for e in events if isinstance(e, Notice)]
        assert bool(said) is (asked == 4)
        assert all("4 copies" in message and "7% of the memory" in message for message in said)


def test_other_targets_draft_as_deep_as_ever(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft", depth=2)) as bench:
        assert bench.loaded.drafter is not None
        assert (bench.loaded.drafter.max_depth, bench.loaded.drafter.note) == (16, "")
        assert bench.session.caches.target.rollback == 0


def test_the_memory_of_the_device_is_known() -> None:
    assert memory() > 1 << 28
