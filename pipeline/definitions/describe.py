"""An app as data, and whether a new version reads what an older one stored. One rule: the data is JSON-able and needs
no code: `query`, `status` and `consume` encode keys and decode values from it alone.

`describe()` of the version that came last is kept in the log beside the changelogs, with what only others had before
(`with_others`); `check_schema` compares a kept one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.definitions.declarations import Declarations
from pipeline.definitions.definition import Stored, TableDef, Topic
from pipeline.definitions.foreign_key_join import JoinState
from pipeline.definitions.join import JoinDef
from pipeline.definitions.stored_keys import key_form, keys_not_met, shown_key_schema, why_not_met
from pipeline.definitions.timed import WindowedDef
from pipeline.definitions.topology import Topology
from pipeline.errors import SchemaRefused
from pipeline.values.codecs import Codec, JsonCodec, codec_name
from pipeline.values.made_defaults import with_made_defaults
from pipeline.values.misread import misread
from pipeline.values.schemas import unreadable
from pipeline.values.stored_forms import MARKED, with_forms


def describe(app: Declarations, topology: Topology) -> dict[str, Any]:
    """Topics by their name in the log, tables and processors by name; `subtopologies` is the numbering with counts."""
    by_table = {table: sub for sub in topology.subtopologies for table in sub.tables}
    by_topic = {topic.topic: topic for topic in app.topics.values()}
    everywhere = {table.of.topic for table in app.globals.values()}
    return {
        "id": app.id,
        "guarantee": app.guarantee,
        "partitions": app.partitions,
        "topics": {
            name: {
                "partitions": found.partitions,
                "kind": found.kind,
                "written": found.written,
                "key_codec": codec_name(by_topic[name].key_codec),
                "value_codec": codec_name(by_topic[name].value_codec),
                **({} if (schema := _shown_schema(by_topic[name].value_codec)) is None else {"schema": schema}),
                **({} if (schema := _schema(by_topic[name].key_codec)) is None else {"key_schema": schema}),
                **({"is_global": True} if name in everywhere else {}),
            }
            for name, found in topology.topics.items()
            if name in by_topic
        },
        "tables": {
            name: {
                **_types(table),
                "routed": table.route is not None or _foreign_keys(app, topology, name),
                "local": table.local,
                "changelog_topic": table.changelog,
                "subtopology": by_table[name].number,
                "partitions": by_table[name].partitions,
                "expire_ms": table.spec.expire_ms,
                **({} if type(table) is TableDef else {"form": table.described()}),
                **({"of": list(table.sides)} if isinstance(table, JoinDef | JoinState) else {}),
                **(
                    {"types": [_types(side) for side in (table.left, table.right)]}
                    if isinstance(table, JoinDef)
                    else {}
                ),
                **({"grace_ms": table.grace_ms} if isinstance(table, WindowedDef) else {}),
            }
            for name, table in sorted(app.tables.items())
            if name in by_table
        },
        "processors": {
            name: {
                "sources": [topic.topic for topic in processor.sources],
                "tables": [table.name for table in processor.tables],
                "sinks": [topic.topic for topic in processor.sinks],
                "resources": [resource.name for resource in processor.resources],
                "batch": processor.batch,
                "async": processor.is_async,
                "on_error": str(app.error_policy(processor)),
                "concurrency": processor.concurrency,
                "retries": processor.retries,
            }
            for name, processor in app.processors.items()
        },
        "subtopologies": [
            {
                "number": sub.number,
                "partitions": sub.partitions,
                "sources": list(sub.sources),
                "tables": list(sub.tables),
            }
            for sub in topology.subtopologies
        ],
    }


def _types(of: Stored[Any] | Topic[Any, Any]) -> dict[str, Any]:
    """Of what is stored as keys and values."""
    return {
        "key_codec": codec_name(of.key_codec),
        "value_codec": codec_name(of.value_codec),
        "schema": _shown_schema(of.value_codec),
        "key_schema": shown_key_schema(of.key_codec),
        "marked": MARKED,  # its schemas are, by stored_forms.py
        "key_form": key_form(of.key_codec),
    }


def with_others(described: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """`described`, and what only other versions of the app have: a mixed group runs both, and what was stored under a
    name once stays stored in its type. Subtopologies that only those have are marked `earlier`."""
    numbers = {sub["number"] for sub in described["subtopologies"]}
    others = [{**sub, "earlier": True} for sub in kept.get("subtopologies", ()) if sub["number"] not in numbers]
    return {
        **described,
        "topics": {**kept.get("topics", {}), **described["topics"]},
        "tables": {**kept.get("tables", {}), **described["tables"]},
        "subtopologies": sorted([*described["subtopologies"], *others], key=lambda sub: int(sub["number"])),
    }


def beside(described: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """`described`, by what runs no task: the subtopologies that the version which ran last has (`kept`) stay as they are, and others
    are marked `planned`: nothing has run them."""
    ours = [{**sub, "planned": True} for sub in described["subtopologies"]]
    there = {int(sub["number"]): sub for sub in (*ours, *kept.get("subtopologies", ()))}
    return {**described, "subtopologies": [sub for _, sub in sorted(there.items())]}


def moved(topology: Topology, kept: Mapping[str, Any]) -> list[str]:
    """What is in another subtopology than in the version that ran last (`kept`), or than in one before where that does not have it, which
    may still run: a line of the topics and tables for each pair of numbers. What this one does not have is not compared."""
    earlier: dict[str, set[int]] = {}
    before: dict[str, set[int]] = {}
    for sub in kept.get("subtopologies", ()):
        for name in () if "planned" in sub else _names(sub["sources"], sub["tables"]):
            (earlier if "earlier" in sub else before).setdefault(name, set()).add(int(sub["number"]))
    before = {**earlier, **before}
    found: dict[tuple[int, int], list[str]] = {}
    for piece in topology.subtopologies:
        for name in _names(piece.sources, piece.tables):
            if name in before and piece.number not in before[name]:
                found.setdefault((min(before[name]), piece.number), []).append(name)
    return [
        f"{' and '.join(names)} {'moves' if len(names) == 1 else 'move'} from subtopology {old} to {new}"
        for (old, new), names in sorted(found.items())
    ]


def _names(sources: Iterable[str], tables: Iterable[str]) -> list[str]:
    return [*(f"topic {name}" for name in sources), *(f"table {name}" for name in tables)]


def check_schema(app: Declarations, kept: Mapping[str, Any]) -> None:
    """See `App.check_schema`. Tables that only one version has are not compared. Raises SchemaRefused."""
    for name, old in sorted(kept.get("tables", {}).items()):
        table = app.tables.get(name)
        if table is None:
            continue
        what = f"app {app.id!r}, table {name!r}"
        if (why := why_not_met(app, table, old)) is not None:
            raise SchemaRefused(f"{what}: {why}")
        if (table.spec.expire_ms is None) != (old.get("expire_ms") is None):
            raise SchemaRefused(
                f"{what}: expire= cannot be given or taken away later (the time of each write is stored with "
                "the value); change it back, or give the table another name"
            )
        form, kept_form = table.described(), old.get("form", {"kind": "table"})
        if form != kept_form:
            raise SchemaRefused(
                f"{what}: it is stored as {_shown_form(kept_form)}, not as {_shown_form(form)}; change it back, or give it "
                "another name"
            )
        if isinstance(table, WindowedDef) and (why := _other_grace(app, table, old.get("grace_ms"))) is not None:
            raise SchemaRefused(f"{what}: {why}; change grace= back, or give the table another name")
        if isinstance(table, JoinDef | JoinState) and (sides := old.get("of", [*table.sides])) != [*table.sides]:
            raise SchemaRefused(
                f"{what}: what it keeps is of a join of {' and '.join(sides)}, not of {' and '.join(table.sides)}; change it "
                "back, or give the function another name"
            )
        if isinstance(table, JoinDef):
            for side, types in zip((table.left, table.right), old.get("types", ()), strict=False):
                if (
                    why := keys_not_met(side.key_codec, types) or _values_not_read(side.value_codec, types)
                ) is not None:
                    raise SchemaRefused(
                        f"{what}: of the records of topic {side.name!r} that it keeps, {why}, or give the function another name"
                    )
        value = codec_name(table.value_codec)
        if value == old["value_codec"] == "json" and (
            why := misread(old.get("schema"), _shown_schema(table.value_codec))
        ):
            raise SchemaRefused(f"{what}: {why}, or give the table another name")
        if table.spec.upgrade is not None:
            if value != old["value_codec"] and _is_read_as(old["value_codec"], value):
                raise SchemaRefused(
                    f"{what}: its values are stored as {old['value_codec']}, of which {value} reads the bytes as values of its own, so that "
                    "upgrade= would not be asked; give the table another name, or a type that is written as JSON (a Struct, a dict)"
                )
            continue
        if (why := _values_not_read(table.value_codec, old)) is not None:
            raise SchemaRefused(f"{what}: {why}, or app.table(..., upgrade=function)")


def _values_not_read(codec: Codec[Any], old: Mapping[str, Any]) -> str | None:
    """Why values of the kept types cannot be read by a codec, or would be read as others; and what to do."""
    value = codec_name(codec)
    if value != old["value_codec"]:
        return f"its values are stored as {old['value_codec']}, not as {value}; change the value type back"
    if value != "json":
        return None
    why = misread(old.get("schema"), _shown_schema(codec))
    return why or unreadable(old.get("schema"), _compared(codec), is_marked=old.get("marked") == MARKED)


def _is_read_as(old: str, new: str) -> bool:
    """Whether bytes of the one codec may be a value of the other as well. Of JSON, and of text as an int, `TableSpec` knows them apart."""
    if new in ("int", "float"):
        return old not in (("json", "str") if new == "int" else ("json",))
    return new in ("str", "bytes")


def other_numbers(app: Declarations, kept: Mapping[str, Any]) -> dict[str, str]:
    """Topics of which a number is read as another one than an earlier version (its `describe()`) wrote or read, by their name in the log,
    each with what it says: the eight bytes of an int are a float, too. Any other change shows in the first record that does not
    fit, and may be the correction of what was declared."""
    found: dict[str, str] = {}
    for topic in app.topics.values():
        old = kept.get("topics", {}).get(topic.topic)
        if old is None:
            continue
        for what, name, codec in (("keys", "key_codec", topic.key_codec), ("values", "value_codec", topic.value_codec)):
            if {old[name], now := codec_name(codec)} == {"int", "float"}:
                found[topic.topic] = (
                    f"app {app.id!r}, topic {topic.topic!r}: its {what} were {old[name]} and are {now} now, and each that is there would "
                    "be read as another number; change the type back, or use another topic"
                )
    return found


def _other_grace(app: Declarations, table: WindowedDef[Any], was_ms: int | None) -> str | None:
    """What another grace does to windows that lie between the two; None where no function is called for what closes."""
    if was_ms is None or table.grace_ms == was_ms or not _is_announced(app, table.name):
        return None
    between = (
        "would close without a call of when_closed"
        if table.grace_ms < was_ms
        else "would open again, and when_closed be called twice"
    )
    return f"its windows waited for a grace of {was_ms} ms, and with {table.grace_ms} ms those that are between the two {between}"


def _is_announced(app: Declarations, table: str) -> bool:
    """Whether a function is called for what closes in it."""
    return any(one.due is not None and one.due.name == table for one in app.processors.values())


def _shown_form(form: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in form.items() if name != "kind" and value is not None)
    return f"{form['kind']} ({sizes})" if sizes else str(form["kind"])


def _schema(codec: Codec[Any]) -> dict[str, Any] | None:
    return codec.schema if isinstance(codec, JsonCodec) else None


def _shown_schema(codec: Codec[Any]) -> dict[str, Any] | None:
    """With what a field is that a value does not have, also where a function makes it: tools have no code to call."""
    if not isinstance(codec, JsonCodec):
        return None
    return with_forms(codec.type, with_made_defaults(codec.type, codec.schema))


def _compared(codec: Codec[Any]) -> dict[str, Any] | None:
    """With what a later version has to know, and this one of what is stored."""
    return with_forms(codec.type, codec.schema) if isinstance(codec, JsonCodec) else None


def _foreign_keys(app: Declarations, topology: Topology, table: str) -> bool:
    """Whether a source's keys have a codec of the user's: then only code can say where a key of the table is."""
    sub = next(sub for sub in topology.subtopologies if table in sub.tables)
    return routing_codec(app, sub.sources, table) is not None


def routing_codec(app: Declarations, sources: tuple[str, ...], table: str) -> Codec[Any] | None:
    """The user's codec that decided the partitions of the records, if it is not the table's own; else None."""
    for topic in app.topics.values():
        if topic.topic in sources and codec_name(topic.key_codec) == "custom":
            return None if topic.key_codec == app.tables[table].key_codec else topic.key_codec
    return None
