"""The looks in which pictures of screens are taken."""

from __future__ import annotations

import itertools

import pytest

LOOKS = tuple(itertools.product(((80, 24), (140, 45)), ("ds4-dark", "ds4-light")))

looks = pytest.mark.parametrize(
    ("size", "theme"), LOOKS, ids=[f"{width}x{height}-{theme}" for (width, height), theme in LOOKS]
)
