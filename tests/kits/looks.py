"""The looks in which pictures of screens are taken."""

from __future__ import annotations

import itertools

import pytest

LOOKS = tuple(itertools.product(((80, 24), (140, 45)), ("ds4-dark", "ds4-light")))

looks = pytest.mark.parametrize(
    ("size", "theme"),
    [
        # A theme's colours are seen at the one size, and the places of things in the other theme.
        pytest.param(size, theme, marks=pytest.mark.slow if look == LOOKS[-1] else ())
        for look in LOOKS
        for size, theme in (look,)
    ],
    ids=[f"{width}x{height}-{theme}" for (width, height), theme in LOOKS],
)
