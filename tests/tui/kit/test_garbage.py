"""Full garbage collections run between replies, and leave out what was there at the start."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from ds4chat.tui.kit.garbage import DUE, YOUNG, collect_if_due, spare_replies


class Node:
    """Something that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_in_a_chat() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    spare_replies()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def garbage() -> weakref.ref[Node]:
    return weakref.ref(Node())


def test_a_reply_of_usual_length_is_not_held_up() -> None:
    found = garbage()
    held = [[] for _ in range(YOUNG // 2)]
    assert found() is not None and len(held) == YOUNG // 2


def test_garbage_is_collected_between_replies_once_there_is_enough() -> None:
    found = garbage()
    collect_if_due()
    assert found() is not None
    held = [[] for _ in range(DUE)]
    collect_if_due()
    assert found() is None and len(held) == DUE


def test_what_outlives_several_collections_is_collected_too() -> None:
    node = Node()
    found = weakref.ref(node)
    for generation in (0, 1):
        gc.collect(generation)
    del node
    held = []
    for _ in range(15):
        held.append([[] for _ in range(DUE)])
        collect_if_due()
    assert found() is None
