"""What a function with `columns=True` is given: `Columns` and `ColumnTable`. One rule: arrays in, arrays out.

The classes are here without pyarrow, so that importing them costs nothing; what fills them is in the modules beside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

K = TypeVar("K")
V = TypeVar("V")
K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)


class Columns(Generic[K_co, V_co]):
    """Some records of one task, in order. `table` has a column `key`, one for each field of the value (or `value`, where
    it has none), `timestamp_ms` and `offset`. A keyless record's key is null, and all of a tombstone's fields are."""

    __slots__ = ("table",)

    def __init__(self, table: pa.Table) -> None:
        self.table: pa.Table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return f"<Columns: {len(self)} records of {', '.join(self.table.column_names)}>"


class ColumnTable(ABC, Generic[K, V]):
    """A table of the task by arrays of keys (`pyarrow.Array` or `ChunkedArray`): the same entries that `Table` has."""

    @abstractmethod
    def get(self, keys: pa.Array | pa.ChunkedArray) -> Any:
        """An array with the value of each key, in order: the default where nothing is stored, null where the table has
        none."""

    @abstractmethod
    def put(self, keys: pa.Array | pa.ChunkedArray, values: pa.Array | pa.ChunkedArray) -> None:
        """Sets the value of each key; of a key that comes twice the last one. Raises CodecError naming the column."""

    @abstractmethod
    def delete(self, keys: pa.Array | pa.ChunkedArray) -> None:
        """Removes each key that is there."""
