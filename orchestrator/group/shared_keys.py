"""Maps that share their keys with the map before them: what a member of 100 tasks says changes in values, seldom in tasks.

One rule: a SharedKeys is what the dict of its keys and values would be, and costs next to nothing until it is read from
it. Made by heartbeat_delta.py; every other reader sees a Mapping.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping
from typing import Any, TypeVar

from orchestrator.model import TaskId

V = TypeVar("V")


class SharedKeys(Mapping[TaskId, V]):
    """Other values for the keys of `before`: a list of as many, or several lists whose rows are the values."""

    __slots__ = ("_dict", "_values", "keys_of")

    def __init__(self, before: Mapping[TaskId, Any], values: list[V] | tuple[list[Any], ...]) -> None:
        self.keys_of: Mapping[TaskId, Any] = before.keys_of if type(before) is SharedKeys else before
        self._values = values
        self._dict: dict[TaskId, V] | None = None

    def whole(self) -> dict[TaskId, V]:
        if self._dict is None:
            self._dict = dict(self.rows())
        return self._dict

    def rows(self) -> Iterator[tuple[TaskId, V]]:
        """Keys with their values, without making the dict."""
        values: Any = zip(*self._values, strict=True) if isinstance(self._values, tuple) else self._values
        return zip(self.keys_of, values, strict=True)

    def __getitem__(self, key: TaskId) -> V:
        return self.whole()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.keys_of

    def __iter__(self) -> Iterator[TaskId]:
        return iter(self.keys_of)

    def __len__(self) -> int:
        return len(self.keys_of)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedKeys):
            if other.keys_of is self.keys_of:
                return self._values == other._values
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
    """Whether two maps have the same keys; at once where one was made from the other."""
    of_a = a.keys_of if type(a) is SharedKeys else a
    of_b = b.keys_of if type(b) is SharedKeys else b
    return of_a is of_b or of_a.keys() == of_b.keys()
