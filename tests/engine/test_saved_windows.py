"""A state brought back from disk, on each kind of cache: whatever is asked next, the text is that of a
session that read all of it itself.

llama.cpp leaves out of a state what lies outside the sliding windows of its last token, so that going back
behind what was saved would leave those windows half empty, without an error.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from kits.engine import Answer, Bench, opened

from ds4chat.engine.events import Load
from ds4chat.engine.opening import open_session
from ds4chat.settings.paths import state_file

# Engines in processes of their own, or whole conversations by each drafter.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home")]

PROSE = " the old mill turns and the young man at the door looks up to the red sky" * 40
KINDS = {
    "full": "llama-random",
    "window": "mimo2-random",
    "recurrent": "mamba-random",
    "hybrid": "qwen35-random",
    "compressed": "deepseek4-random",
}
WHOLE = {"window", "recurrent", "hybrid", "compressed"}
"""Kinds of which a state is restored whole or not at all."""
REPLY = 12
SAID = " we go up to the old red hut by sea and sit on a big log so sun may set and the man at the door"


def ask(bench: Bench, prompt: str) -> Answer:
    return bench.ask(prompt, REPLY, depth=3, ignore_eos=True, conversation=1)


@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_conversation_goes_on_as_one_that_was_read(
    tiny_dir: Path, home: Path, kind: str, lookup: bool
) -> None:
    """Continued, retried and edited: each right after the restore, and also after the restored conversation
    was continued. The reply that is saved is given as words, since random ones come back as other tokens."""
    path = str(tiny.build(KINDS[kind], tiny_dir))
    load = Load(path, lookup=lookup, ctx=2048, threads=1, keep_states=True)
    continued = PROSE + SAID + " the sun may set"
    prompts = {
        "continued": continued,
        "retried": PROSE,
        "edited": PROSE.removesuffix(" red sky") + " blue sea",
        "edited further back": PROSE[: len(PROSE) * 9 // 10] + " and so the sea",
    }
    plain = {}
    with opened(Load(path, ctx=2048, threads=1)) as fresh:
        for name, prompt in prompts.items():
            fresh.session.reset()
            plain[name] = fresh.ask(prompt, REPLY, depth=0, ignore_eos=True).ids
    assert len({tuple(ids) for ids in plain.values()}) > 1
    session, loaded = open_session(load, lambda event: None, forgiving=False, resuming=True)
    bench = Bench(session, loaded)
    try:
        bench.ask(PROSE + SAID, 1, depth=3, conversation=1)
        session.keep()
        saved = len(session.caches.tokens)
        content = state_file(1).read_bytes()
        for before in ([], ["continued"]):
            for name in prompts:
                state_file(1).write_bytes(content)
                session.reset()  # as the engine starts again
                answers = [(turn, ask(bench, prompts[turn])) for turn in (*before, name)]
                for turn, answer in answers:
                    assert answer.ids == plain[turn], (kind, before, name)
                found = answers[0][1].restored
                if before or name == "continued":
                    assert found == saved
                elif kind in WHOLE:
                    assert found == 0
                else:
                    assert saved * 0.85 < found < saved
                assert session.caches.target.used == len(session.caches.tokens)
    finally:
        session.close()
