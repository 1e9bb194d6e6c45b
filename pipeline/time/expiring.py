"""What expires together, by bucket, while all of it is at hand: so it is forgotten without a look into the store.

One rule: what is not known whole is not known at all. From bucket `whole_from` on every entry that the store may have was added
here; of what lies before, the store is asked. It takes memory by what is kept, so beyond `MOST` entries all is given up.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST = 50_000


class Expiring:
    """Keys of entries by the bucket in which they expire. `whole_from`: the first bucket of which the store has nothing yet."""

    def __init__(self, whole_from: int) -> None:
        self.whole_from = whole_from
        self._by_bucket: dict[int, list[bytes]] = {}
        self._count = 0

    def add(self, bucket: int, key: bytes) -> None:
        """A new entry is written; its key begins with the bucket."""
        if bucket < self.whole_from:
            return
        found = self._by_bucket.get(bucket)
        if found is None:
            self._by_bucket[bucket] = [key]
        else:
            found.append(key)
        self._count += 1
        if self._count > MOST:
            self.lose(self.whole_from)

    def add_all(self, bucket: int, keys: Iterable[bytes]) -> None:
        """The same for many."""
        if bucket < self.whole_from:
            return
        found = self._by_bucket.setdefault(bucket, [])
        before = len(found)
        found.extend(keys)
        self._count += len(found) - before
        if self._count > MOST:
            self.lose(self.whole_from)

    def lose(self, whole_from: int) -> None:
        """Nothing is known any more of what lies before a bucket, and behind it there is nothing yet but what was added: of
        the buckets of that nothing is known either, for what was added once may be written without being added again."""
        self.whole_from = max(self.whole_from, whole_from, max(self._by_bucket, default=-1) + 1)
        self._by_bucket.clear()
        self._count = 0

    def take(self, first: int, stop: int, most: int | None) -> tuple[list[bytes], bool] | None:
        """The keys of the buckets before `stop`, in order and at most so many, which are not asked for again; and whether some
        are left. None where not all buckets from `first` on are known whole."""
        gone = sorted(bucket for bucket in self._by_bucket if bucket < stop)
        keys = [key for bucket in gone for key in sorted(self._by_bucket.pop(bucket))]
        self._count -= len(keys)
        if first < self.whole_from:
            self.whole_from = max(self.whole_from, stop)  # what the store is asked for may be a part of it
            return None
        rest = [] if most is None else keys[most:]
        if rest:
            self._by_bucket[gone[0]] = rest
            self._count += len(rest)
        return keys[: len(keys) - len(rest)], bool(rest)
