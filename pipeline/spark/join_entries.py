"""What joins of streams keep behind a re-key, as an audit compares it.

One rule: an entry ends with the offset of its record, which is another one with each run where tasks have sent the record on. So those that
are alike but for it are compared together: one key, and all their values, sorted. In the flow: `comparing` has tables -> here ->
`differences`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OFFSET_BYTES = 8  # the last ones of both forms (`pipeline.time.join_view`)
BY = ("subject", "partition", "copy")


def together(rows: DataFrame, value: str, joins: Collection[str]) -> DataFrame:
    """Rows of BY, `key` and a value, null where it is deleted; the entries of these tables together."""
    from pyspark.sql import functions as F

    if not joins:
        return rows
    chosen = F.col("subject").isin(sorted(joins))
    values = F.sort_array(F.collect_list(value)).alias("values")
    found = rows.where(chosen).groupBy(*BY, _head().alias("key")).agg(values)
    several = F.array_join(F.transform("values", lambda one: F.hex(one)), ",").cast("binary")
    one = F.when(F.size("values") == 1, F.col("values")[0]).when(F.size("values") > 1, several)
    return rows.where(~chosen).select(*BY, "key", value).unionByName(found.select(*BY, "key", one.alias(value)))


def heads(rows: DataFrame, joins: Collection[str]) -> DataFrame:
    """Rows with a `key`: that under which `together` has it."""
    from pyspark.sql import functions as F

    if not joins:
        return rows
    is_join = F.col("subject").isin(sorted(joins))
    return rows.withColumn("key", F.when(is_join, _head()).otherwise(F.col("key")))


def _head() -> Column:
    from pyspark.sql import functions as F

    return F.expr(f"substring(key, 1, length(key) - {OFFSET_BYTES})")
