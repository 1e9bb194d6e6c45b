"""`items()` and `values()` of a table. One rule: one pass over the store, not one look-up a key. Used by its view."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, ValuesView
from typing import Any, TypeVar, cast

from pipeline.tables import Table

K = TypeVar("K")
V = TypeVar("V")


class Items(ItemsView[K, V]):
    """Pairs."""

    def __init__(self, table: Table[K, V]) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._table.range()

    def __contains__(self, item: object) -> bool:
        key, value = cast("tuple[K, V]", item)
        return key in self._table and self._table[key] == value


class Values(ValuesView[V]):
    def __init__(self, table: Table[Any, V]) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._table.range())
