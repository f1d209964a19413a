"""The curve of a figure over the steps of a reply, in bounded memory, with marks at changes of settings."""

from __future__ import annotations

from dataclasses import dataclass

CAPACITY = 2048


@dataclass(slots=True)
class Group:
    """Consecutive steps; ``numerator`` / ``denominator`` is their mean."""

    numerator: float = 0.0
    denominator: float = 0.0
    marked: bool = False
    """A setting changed before one of these steps."""

    @property
    def value(self) -> float | None:
        return self.numerator / self.denominator if self.denominator else None

    def add(self, other: Group) -> None:
        self.numerator += other.numerator
        self.denominator += other.denominator
        self.marked |= other.marked


class History:
    """Means over equal groups of steps, counted from the first step so that no column ever shifts.

    When ``capacity`` groups are full, neighbours merge and every group covers twice as many steps.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self.clear()

    def clear(self) -> None:
        """Forget every step."""
        self._groups: list[Group] = []
        self._group_steps = 1
        self._in_last = 0
        self.steps = 0

    def add(self, numerator: float, denominator: float, marked: bool) -> None:
        """Append one step. A denominator of 0 means a step without this figure."""
        if not self._groups or self._in_last == self._group_steps:
            if len(self._groups) == self._capacity:
                self._groups = _merged(self._groups, 2)
                self._group_steps *= 2
            self._groups.append(Group())
            self._in_last = 0
        self._groups[-1].add(Group(numerator, denominator, marked))
        self._in_last += 1
        self.steps += 1

    def columns(self, width: int) -> list[Group]:
        """At most ``width`` groups that cover all steps; the number of steps in each doubles as they grow."""
        factor = self._factor(width)
        return self._groups if factor == 1 else _merged(self._groups, factor)

    def column_steps(self, width: int) -> int:
        """How many steps each of these groups covers, the last one perhaps fewer."""
        return self._factor(width) * self._group_steps

    def _factor(self, width: int) -> int:
        factor = 1
        while len(self._groups) > width * factor:
            factor *= 2
        return factor


def _merged(groups: list[Group], factor: int) -> list[Group]:
    merged = []
    for start in range(0, len(groups), factor):
        group = Group()
        for part in groups[start : start + factor]:
            group.add(part)
        merged.append(group)
    return merged
