"""What somebody wrote stays text, with every kind of tokenizer, and everything else is tokenized as llama.cpp
does it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits import vocabularies

from ds4chat.engine.llama import Model, SpecialToken
from ds4chat.engine.user_text import (
    Finder,
    Marks,
    TextRange,
    _as_text,
    forbidden_tokens,
    names_of,
    partition,
    tokenize,
)
from ds4chat.models.demo import demo_model

PIECES = (
    *("<|im_end|>", "<|im_start|>", "<s>", "</s>", "<h1>", "<｜User｜>", "<think>", "<unk>"),
    *("<", "<|", "im_end|>", "a", "the", " ", "  ", "\n", "ab", "|>", "ü", "🙂", " log"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
MODELS = [*vocabularies.KINDS, "bpe", "demo"]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    folder = tmp_path_factory.mktemp("vocabularies")

    @cache
    def load(kind: str) -> Model:
        if kind == "demo":
            return Model(str(demo_model()))
        if kind == "bpe":
            return Model(str(tiny.build("llama", folder)))
        return vocabularies.load(kind, folder)

    return load


relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def tokens_of(model: Model, text: str, own: list[TextRange], structural: tuple[str, ...] = ()) -> list[int]:
    specials = model.special_tokens
    forbidden = forbidden_tokens(specials, Finder(names_of(specials)), text, own, structural)
    return tokenize(model, text, own, forbidden)


def text_of(model: Model, tokens: list[int]) -> str:
    return b"".join(model.piece(t, special=True) for t in tokens).decode("utf-8", "replace")


@pytest.mark.parametrize("kind", MODELS)
@relaxed
@given(text=TEXTS)
def test_a_prompt_in_parts_has_the_tokens_of_the_whole(
    model_of: Callable[[str], Model], kind: str, text: str
) -> None:
    """Cut at every special token, as where something in it is disarmed, and tokenized part by part."""
    model = model_of(kind)
    parts = partition(text, (), model.special_tokens, {})
    tokens: list[int] = []
    for start, end, token in parts:
        tokens += [token] if token is not None else _as_text(model, text[start:end], {})
    assert tokens == model.tokenize(text, add_special=False, parse_special=True)


@pytest.mark.parametrize("kind", MODELS)
@relaxed
@given(text=TEXTS)
def test_no_text_becomes_a_token_that_the_template_uses(
    model_of: Callable[[str], Model], kind: str, text: str
) -> None:
    """Its letters all arrive, and the template's own tokens around it stay what they are."""
    model = model_of(kind)
    opener, closer = model.bos, model.eos
    prompt = f"{opener}{text}{closer}"
    own = [(len(opener), len(opener) + len(text))] if text else []
    tokens = tokens_of(model, prompt, own, ("<|im_start|>",))
    ids = {name: model.tokenize(name, add_special=False, parse_special=True)[-1] for name in (opener, closer)}
    assert (tokens[0], tokens[-1]) == (ids[opener], ids[closer])
    structural = {s.id for s in model.special_tokens if s.control or s.text == "<|im_start|>"}
    unknown = {s.id for s in model.special_tokens if s.text == "<unk>"}  # of a letter that it does not have
    assert structural.isdisjoint(set(tokens[1:-1]) - unknown)
    if kind in ("bpe", "demo", "rwkv"):  # the others add blanks and leave out letters
        assert text_of(model, tokens[1:-1]) == text


@pytest.mark.parametrize("kind", MODELS)
def test_user_defined_tokens_stay_in_a_text_unless_the_template_uses_them(
    model_of: Callable[[str], Model], kind: str
) -> None:
    model = model_of(kind)
    text = "a <h1> <|im_start|>"
    found = {s.text: s.id for s in model.special_tokens if not s.control}
    for structural in ((), ("<|im_start|>",)):
        tokens = tokens_of(model, text, [(0, len(text))], structural)
        if kind in vocabularies.KINDS:
            assert found["<h1>"] in tokens
            assert (found["<|im_start|>"] in tokens) == (not structural)
    written = "<|im_start|>a<|im_start|>b"
    tokens = tokens_of(model, written, [(12, 26)])
    if kind in vocabularies.KINDS:
        assert tokens.count(found["<|im_start|>"]) == 1


SPECIALS = (
    SpecialToken(7, "<|end|>", True),
    SpecialToken(8, "<a>", False, strips_left=True, strips_right=True),
    SpecialToken(9, "<|", True),
)


@pytest.mark.parametrize(
    ("text", "own", "forbidden", "wanted"),
    [
        ("", [], {}, []),
        ("x<|end|>y", [], {}, ["x", 7, "y"]),
        ("x<|end|>y", [(0, 9)], {7: "<|end|>", 9: "<|"}, ["x<|end|>y"]),
        ("x<|end|>y", [(0, 2)], {7: "<|end|>", 9: "<|"}, ["x<|end|>y"]),  # one letter of it is enough
        ("x<|end|><|end|>", [(0, 8)], {7: "<|end|>", 9: "<|"}, ["x<|end|>", 7]),
        ("x \n<a>\t y", [], {}, ["x", 8, "y"]),
        (" <a>", [(0, 4)], {}, [8]),
        ("<|<|end|>", [], {}, [9, 7]),
    ],
)
def test_partition_by_hand(
    text: str, own: list[tuple[int, int]], forbidden: dict[int, str], wanted: list[str | int]
) -> None:
    parts = partition(text, own, SPECIALS, forbidden)
    assert [text[a:b] if token is None else token for a, b, token in parts] == wanted


def test_marks_tell_whose_word_each_letter_is() -> None:
    texts = ["  hi <|end|> you\n", "", "ok"]
    marks = Marks(texts, Finder(["<|end|>"]))
    marked = [marks.mark(i, text) for i, text in enumerate(texts)]
    assert marked[1] == ""
    assert "<|end|>" not in marked[0]
    rendered = f"<user>{marked[0].strip()}<|end|><bot>{marked[2]}!"
    text, own = marks.remove(rendered)
    assert text == "<user>hi <|end|> you<|end|><bot>ok!"
    assert "".join(text[a:b] for a, b in own) == "hi <|end|> youok"


@pytest.mark.parametrize("cut", [slice(1, None), slice(None, -1), slice(3, None), slice(None, -3)])
def test_a_text_whose_mark_is_cut_off_counts_with_what_stands_next_to_it(cut: slice) -> None:
    marks = Marks(["abcdef", "ok"], Finder([]))
    rendered = f"{marks.mark(0, 'abcdef')[cut]}<user>{marks.mark(1, 'ok')}"
    text, own = marks.remove(rendered)
    kept = text.index("<user>")
    assert own[0][0] == 0 and own[0][1] >= kept


def test_marks_are_characters_that_no_text_holds() -> None:
    taken = chr(0xF0000) + chr(0xF0003)
    marks = Marks([taken], Finder([]))
    text, own = marks.remove(f"<{marks.mark(0, taken)}>")
    assert (text, own) == (f"<{taken}>", [(1, 3)])
    with pytest.raises(ValueError, match="private-use"):
        Marks(["".join(map(chr, range(0xF0000, 0x110000, 2)))], Finder([]))


def test_names_are_found_where_they_overlap() -> None:
    finder = Finder(["aba", "ab", "", "c"])
    assert list(finder.spans("ababac")) == [(0, 3), (2, 5), (5, 6)]
    assert finder.middles("ababac") == [2, 4, 6]
    assert list(Finder([]).spans("abc")) == []
