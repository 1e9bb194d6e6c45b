"""Maps that share their keys with the map before them: what a member of 100 tasks says changes in values, seldom in tasks.

One rule: a Column is what the dict of its keys and values would be, and costs next to nothing until somebody looks into
it. Made by beats.py; everybody else sees a Mapping.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping
from typing import Any, TypeVar

from orchestrator.model import TaskId

V = TypeVar("V")


class Column(Mapping[TaskId, V]):
    """Other values for the keys of `before`: a list of as many, or several lists whose rows are the values."""

    __slots__ = ("_dict", "_told", "keys_of")

    def __init__(self, before: Mapping[TaskId, Any], told: list[V] | tuple[list[Any], ...]) -> None:
        self.keys_of: Mapping[TaskId, Any] = before.keys_of if type(before) is Column else before
        self._told = told
        self._dict: dict[TaskId, V] | None = None

    def whole(self) -> dict[TaskId, V]:
        if self._dict is None:
            self._dict = dict(self.rows())
        return self._dict

    def rows(self) -> Iterator[tuple[TaskId, V]]:
        """Keys with their values, without making the dict."""
        told: Any = zip(*self._told, strict=True) if isinstance(self._told, tuple) else self._told
        return zip(self.keys_of, told, strict=True)

    def __getitem__(self, key: TaskId) -> V:
        return self.whole()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.keys_of

    def __iter__(self) -> Iterator[TaskId]:
        return iter(self.keys_of)

    def __len__(self) -> int:
        return len(self.keys_of)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Column):
            if other.keys_of is self.keys_of:
                return self._told == other._told
            other = other.whole()
        return self.whole() == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.whole())

    def keys(self) -> KeysView[TaskId]:
        return self.keys_of.keys()

    def items(self) -> ItemsView[TaskId, V]:
        return self.whole().items()


def same_keys(a: Mapping[TaskId, Any], b: Mapping[TaskId, Any]) -> bool:
    """Whether two maps have the same keys; at once where one was told by the other."""
    of_a = a.keys_of if type(a) is Column else a
    of_b = b.keys_of if type(b) is Column else b
    return of_a is of_b or of_a.keys() == of_b.keys()
