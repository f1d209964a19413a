"""Features that ds4chat does not have: asking for one is refused, and nothing in the code reaches for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from kits import gguf as kit
from kits.command_line import ds4chat
from kits.engine import load_of, opened

import ds4chat as package

# Engines in processes of their own, or whole conversations by each drafter.
pytestmark = pytest.mark.slow

SOURCES = sorted(Path(package.__file__).parent.rglob("*.py"))
LLAMA = Path(package.__file__).parent / "engine" / "llama.py"


def trees(*, but: Path | None = None) -> Iterator[tuple[Path, ast.Module]]:
    """Every module of the package, parsed."""
    for path in SOURCES:
        if path != but:
            yield path, ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--grammar", "root ::= x"],
        ["--grammar-file", "g.gbnf"],
        ["--json-schema", "{}"],
        ["-j", "{}"],
        ["--image", "a.png"],
        ["--mmproj", "m.gguf"],
        ["--audio", "a.wav"],
        ["--embedding"],
        ["--embeddings"],
        ["--pooling", "mean"],
        ["--prompt-cache", "state.bin"],
        ["--session", "state.bin"],
        ["--slot-save-path", "states"],
        ["--tools", "tools.json"],
        ["--draft-p-min", "0.6"],
    ],
)
def test_what_does_not_exist_is_refused_and_not_passed_over(tiny_dir: Path, arguments: list[str]) -> None:
    """Pitfalls 18, 22, 24, 28, 29, 30: a usage error that names the option, before anything is loaded."""
    ran = ds4chat("-m", tiny.build("llama", tiny_dir), "-p", "hi", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert f"ds4chat: {arguments[0]} is not an option" in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("architecture", "more", "words"),
    [
        ("clip", {}, "projector of images or audio"),
        ("bert", {}, "embedding or reranking model"),
        ("llama", {"keys": {"llama.pooling_type": 1}}, "embedding or reranking model"),
    ],
)
def test_models_of_images_and_embeddings_are_refused_in_either_place(
    tiny_dir: Path, tmp_path: Path, architecture: str, more: dict, words: str
) -> None:
    """Pitfalls 28 and 29."""
    path = kit.whole(tmp_path / "other.gguf", architecture, **more)
    for arguments in (["-m", path], ["-m", tiny.build("llama", tiny_dir), "--mtp", path]):
        ran = ds4chat(*arguments, "-p", "hi")
        assert (ran.code, ran.out) == (1, "")
        assert words in ran.err


def test_eagle3_for_a_target_that_keeps_its_layers_is_refused_in_one_sentence(
    tiny_dir: Path, tmp_path: Path
) -> None:
    """Pitfall 27: gemma3 does not give out its layers' inputs; llama.cpp would abort in the first decode."""
    target = kit.whole(tmp_path / "gemma3.gguf", "gemma3", own={"embedding_length": 64})
    ran = ds4chat("-m", target, "--mtp", tiny.build("eagle3", tiny_dir), "-p", "hi")
    assert (ran.code, ran.out) == (1, "")
    assert len(ran.err.splitlines()) == 1
    assert "Give the support file that was made for this model." in ran.err


def test_mtp_on_a_target_without_nextn_is_a_sentence_and_exit_code_1(tiny_dir: Path) -> None:
    """Pitfall 12: asked for and not there; what can be done instead is named."""
    ran = ds4chat("-m", tiny.build("llama", tiny_dir), "--raw", "-p", "hi", "--mtp")
    assert (ran.code, ran.out) == (1, "")
    assert "has no NextN block inside, so --mtp needs a file" in ran.err


def test_a_hybrid_that_cannot_roll_back_answers_and_says_why_nothing_is_drafted(tiny_dir: Path) -> None:
    """Pitfalls 12 and 16: off with its reason, on stderr and in the JSON."""
    path = tiny.build("qwen3next-nextn", tiny_dir)
    ran = ds4chat(
        *("-m", path, "--mtp", "--raw", "-p", " end now", "-n", "20"), "-c", "512", "-t", "1", "--json"
    )
    assert ran.code == 0
    assert "MTP is off: qwen3next models keep a recurrent state" in ran.err
    assert "recurrent state" in ran.json["settings"]["off_reason"]
    assert ran.ids == tiny.reply(tiny.encode(" end now")[-1], 20)


CTRL_C_AT_STEP_10 = """
import os, signal
from ds4chat.engine.session import Session
real = Session._step
def step(self, reply, index):
    if index == 10:
        os.kill(os.getpid(), signal.SIGINT)
    return real(self, reply, index)
Session._step = step
"""


@pytest.mark.parametrize("as_json", [True, False])
def test_ctrl_c_keeps_what_came(tiny_dir: Path, as_json: bool) -> None:
    """Pitfall 20: a real SIGINT in a reply without end; the text so far is whole, exit code 130."""
    support = tiny.build("llama-draft", tiny_dir, wrong_every=0)
    ran = ds4chat(
        *("-m", tiny.build("llama", tiny_dir), "--mtp", support, "-c", "2048", "-t", "1"),
        *("-p", " end now", "--raw", "--mtp-draft", "3"),
        *(["--json"] if as_json else []),
        before=CTRL_C_AT_STEP_10,
    )
    # Two plain steps and eight of four tokens.
    ids = tiny.reply(tiny.encode(" end now")[-1], 34)
    assert ran.code == 130
    if as_json:
        assert ran.ids == ids
        assert ran.json["finish_reason"] == "cancelled"
    else:
        assert ran.out == tiny.text(ids) + "\n"


# -- guards: what makes a row impossible here stays so


def test_the_states_of_caches_are_written_and_read_in_one_place_and_never_in_part() -> None:
    """Pitfalls 18 and 19: a target's state goes with the drafter's cache and its pending row, which the
    drafter itself puts beside it; what that gives is tests/engine/test_saved_state.py."""
    users: dict[str, set[str]] = {}
    for path, tree in trees(but=LLAMA):
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("save_state", "load_state"):
                users.setdefault(path.name, set()).add(node.attr)
    both = {"save_state", "load_state"}
    assert users == {"saved_state.py": both, "hidden.py": both, "model.py": both}
    assert "PARTIAL" not in LLAMA.read_text(encoding="utf-8")
    assert "state_seq_get_data_ext" not in LLAMA.read_text(encoding="utf-8")


def test_only_the_low_level_of_llama_cpp_python_is_used() -> None:
    """Pitfall 31: no Llama class, no speculative helper, no logits of every row."""
    imported: set[tuple[str, str]] = set()
    for path, tree in trees():
        for node in ast.walk(tree):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [f"{node.module}.{a.name}" for a in node.names]
                if isinstance(node, ast.ImportFrom) and node.module
                else []
            )
            imported |= {(path.name, name) for name in names if name.split(".")[0] == "llama_cpp"}
    assert imported == {
        ("llama.py", "llama_cpp"),  # for its version
        ("llama.py", "llama_cpp.llama_cpp"),
        ("llama.py", "llama_cpp.llama_cpp_ext"),
    }
    assert "logits_all" not in LLAMA.read_text(encoding="utf-8")


def test_a_prefill_keeps_no_logits(tiny_dir: Path) -> None:
    """Pitfall 31: the target has room for the rows of one verification, 17, whatever the prompt's length."""
    with opened(load_of(tiny_dir, "deepseek4-support")) as bench:
        asked: list[str] = []
        real = bench.session.caches.target.decode

        def decode(tokens, pos, **more):  # type: ignore[no-untyped-def]
            asked.append(more["outputs"])
            real(tokens, pos, **more)

        bench.session.caches.target.decode = decode  # type: ignore[method-assign]
        bench.ask(" now" * 300, 4, depth=2)
        assert asked[:3] == ["none"] * 3
        assert set(asked[3:]) == {"all"}
        with pytest.raises(ValueError, match="room for 17 output rows"):
            real([1] * 18, len(bench.session.caches.tokens), outputs="all")


def test_no_context_asks_for_embeddings() -> None:
    """Pitfall 28: the parameter that llama.cpp asserts on beside MTP is never set."""
    set_fields = {
        target.attr
        for node in ast.walk(ast.parse(LLAMA.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "params"
    }
    assert {"n_ctx", "n_rs_seq", "ctx_type"} <= set_fields
    assert not set_fields & {"embeddings", "pooling_type"}
