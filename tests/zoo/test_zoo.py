"""Every architecture that ds4chat's tables name, as a tiny model, drafts as worked out beforehand and never
changes a token."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import pytest
import tiny
from kits.engine import END_NOW, Answer, Bench, opened
from tiny import species, zoo
from tiny.simulate import DrafterKind, Simulated
from zoo.fast import params

from ds4chat.engine.drafters.registry import OPENERS
from ds4chat.engine.events import Event, Load, Replayed, Step, Tuning
from ds4chat.engine.opening import LoadError, open_session
from ds4chat.engine.session import Control
from ds4chat.models.architectures import ABILITIES, abilities
from ds4chat.models.kinds import DRAFTERS
from ds4chat.models.pairing import check_pair, check_target

DEPTHS = (1, 2, 4, 8)
TIE = 1e-3
"""Logits. On random weights a stream may leave plain decoding where the two best tokens are nearly equal."""
PROMPT = " the old mill turns and the old mill turns and the"


DRAFTING = [name for name in species.NEXTN if name != "qwen3next"]
"""qwen3next has a graph and cannot roll back."""
TARGETS = [name for name, kind in species.ALL.items() if abilities(kind.architecture).eagle3]
NOT_RUN = {"mamba", "rwkv6", "rwkv6qwen2", "arwkv7", "jamba", "plamo2"}
"""Their state cannot be rolled back, so that nothing drafts for them."""
OFF = [name for name in TARGETS if abilities(species.ALL[name].architecture).rollback == "none"]
EAGLE3 = [name for name in TARGETS if name not in OFF]
HEIGHTS = {"gemma4": 8.0, "muse-glimmer": 8.0}
"""Of the one in a layer's input, where the embedding is scaled or normalised."""


def load(folder: Path, name: str, support: str = "embedded", **more: object) -> Load:
    style = more.pop("style", "chain")
    part = "trunk" if support != "embedded" else "whole"
    path = zoo.build(name, folder, style, part)
    if support == "file":
        support = str(zoo.build(name, folder, style, "support"))
    return Load(**{"model": str(path), "support": support, "ctx": 512, "threads": 1, **more})


def expected(name: str, n: int, depth: int) -> Simulated:
    """A block without a head of its own borrows the target's, which is never wrong."""
    kind = species.ALL[name]
    drafter = "mimo2-nextn" if kind.heads > 1 else "qwen35-nextn"
    return tiny.simulate(tiny.encode(END_NOW), n, depth, drafter, wrong_every=4 if kind.own_head else 0)


def same(got: Answer, wanted: Simulated) -> None:
    assert got.ids == wanted.tokens
    assert got.counts == (wanted.steps, wanted.drafted, wanted.judged, wanted.accepted)
    # A drafter of three heads has no fourth position.
    judged = [pair for pair in wanted.by_position if pair != (0, 0)]
    assert got.by_position[: len(judged)] == judged


def replayed(bench: Bench) -> Replayed:
    events: list[Event] = []
    bench.session.replay(1, Control(Tuning()), events.append)
    answer = events[-1]
    assert isinstance(answer, Replayed)
    return answer


def test_every_architecture_of_the_tables_is_in_the_zoo() -> None:
    known = {kind.architecture for kind in species.ALL.values()} | {"deepseek4"}
    assert ABILITIES.keys() - known == NOT_RUN
    nextn = {name for name in ABILITIES if abilities(name).nextn}
    assert {kind.architecture for kind in species.NEXTN.values()} | {"deepseek4"} == nextn


def test_every_kind_of_drafter_is_opened_and_constructed() -> None:
    """tiny.simulate knows each by the name of its constructed file."""
    assert set(OPENERS) == DRAFTERS
    for kind in DRAFTERS:
        stem = {"nextn-embedded": "nextn", "nextn-support": "support", "draft-model": "draft"}.get(kind, kind)
        assert any(name.endswith(stem) for name in get_args(DrafterKind)), kind


@pytest.mark.parametrize("name", params(list(species.PLAIN)))
def test_plain_decoding_says_the_chain(name: str, tiny_dir: Path) -> None:
    with opened(Load(str(zoo.build(name, tiny_dir)), ctx=512, threads=1)) as bench:
        assert bench.ask(n=60, depth=0).ids == tiny.reply(tiny.encode(END_NOW)[-1], 60)


@pytest.mark.parametrize("support", ["embedded", "file"])
@pytest.mark.parametrize("name", params(DRAFTING))
def test_nextn_drafts_as_simulated(name: str, support: str, tiny_dir: Path) -> None:
    with opened(load(tiny_dir, name, support)) as bench:
        assert bench.loaded.drafter is not None, bench.loaded.off_reason
        assert bench.loaded.drafter.kind == ("nextn-embedded" if support == "embedded" else "nextn-support")
        for depth in DEPTHS:
            bench.session.reset()
            same(bench.ask(n=80, depth=depth), expected(name, 80, depth))


@pytest.mark.parametrize("name", params(DRAFTING))
def test_nextn_on_caches_that_matter_changes_no_token(name: str, tiny_dir: Path) -> None:
    """Random weights, right drafts and wrong ones, a cancel, a turn that goes on and one that goes back."""
    with opened(load(tiny_dir, name, style="mixed", lookup=True)) as bench:
        for depth in (1, 3, 8):
            got = bench.ask(PROMPT, 50, depth=depth, ignore_eos=True)
            assert got.stats.judged > 0
            answer = replayed(bench)
            assert answer.equal or answer.gap < TIE, dataclasses.asdict(answer)

        def hook(event: Event, control: Control) -> None:
            if isinstance(event, Step):
                control.cancel()

        bench.ask(PROMPT + " so", 40, depth=4, hook=hook, ignore_eos=True)
        bench.ask(PROMPT + " so it goes", 40, depth=4, ignore_eos=True)
        answer = replayed(bench)
        assert answer.equal or answer.gap < TIE, dataclasses.asdict(answer)


@pytest.mark.parametrize("name", params(DRAFTING))
def test_strict_replies_are_those_of_single_decodes(name: str, tiny_dir: Path) -> None:
    """Heads of 24 or 48 wide (MLA) have no q8_0 cache: f16 then, row by row, with a note."""
    with opened(load(tiny_dir, name, style="mixed", strict=True)) as bench:
        assert bench.loaded.drafter is not None, bench.loaded.off_reason
        assert bench.ask(PROMPT, 50, depth=4, strict=True, ignore_eos=True).stats.judged > 0
        answer = replayed(bench)
        assert answer.equal, f"{answer} ({bench.loaded.strict_note})"


def test_strict_with_heads_that_have_no_q8_0_cache(tiny_dir: Path, tmp_path: Path) -> None:
    kind = dataclasses.replace(
        species.ALL["llama"],
        metadata=dict.fromkeys(
            ("attention.key_length", "attention.value_length", "rope.dimension_count"), 40
        ),
    )
    path = tmp_path / "odd.gguf"
    zoo.save(path, kind, zoo.fill(kind, zoo.grow(kind, tmp_path / "growing.gguf"), "random"))
    with opened(Load(str(path), lookup=True, ctx=512, threads=1, strict=True)) as bench:
        assert bench.loaded.strict_note == (
            "verification is one token at a time: this model's heads are no multiple of 32 wide, so its "
            "cache is f16 instead of q8_0, and batches are not bit-equal over it"
        )
        assert bench.ask(PROMPT, 60, depth=4, strict=True, ignore_eos=True).stats.judged > 0
        assert replayed(bench).equal


@pytest.mark.parametrize("name", params(EAGLE3))
def test_eagle3_drafts_as_simulated(name: str, tiny_dir: Path) -> None:
    layers = (0, 5, 7) if name == "nanbeige-loops" else (0, 2, 3)
    support = tiny.build("eagle3", tiny_dir, layers=layers, height=HEIGHTS.get(name, 1.0))
    with opened(load(tiny_dir, name, str(support))) as bench:
        assert bench.loaded.drafter is not None, bench.loaded.off_reason
        for depth in DEPTHS:
            bench.session.reset()
            wanted = tiny.simulate(tiny.encode(END_NOW), 80, depth, "eagle3")
            same(bench.ask(n=80, depth=depth), wanted)


@pytest.mark.parametrize("name", params(["mimo2-1", "nemotron_h", "nemotron_h_moe"]))
def test_eagle3_reads_what_the_last_layer_makes(name: str, tiny_dir: Path) -> None:
    """And not of an architecture that does not give it out: llama.cpp would end the process."""
    support = tiny.build("eagle3", tiny_dir, layers=(0, 2, species.LAYERS))
    with opened(load(tiny_dir, name, str(support))) as bench:
        assert bench.loaded.drafter is not None, bench.loaded.off_reason
        same(bench.ask(n=80, depth=3), tiny.simulate(tiny.encode(END_NOW), 80, 3, "eagle3"))


@pytest.mark.parametrize(
    ("name", "words"),
    params([("lfm2", "the target has 4 layers"), ("qwen4exp", "llama.cpp does not expose")]),
)
def test_eagle3_that_llama_cpp_cannot_run_is_refused(name: str, words: str, tiny_dir: Path) -> None:
    support = tiny.build("eagle3", tiny_dir, layers=(0, 2, species.LAYERS))
    with pytest.raises(LoadError, match=words):
        open_session(load(tiny_dir, name, str(support)), lambda event: None, forgiving=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", OFF)
def test_a_target_that_cannot_roll_back_is_off_with_a_reason(name: str, tiny_dir: Path) -> None:
    pair = check_pair(check_target(zoo.build(name, tiny_dir, part="trunk")), tiny.build("eagle3", tiny_dir))
    assert "recurrent state" in pair.off_reason
