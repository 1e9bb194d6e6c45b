"""Whether a new version meets the keys of a table that are stored: it reads them, writes equal ones the same, and looks for them where
they lie.

One rule: what cannot be met again is refused; its row would begin anew beside it, without an error. What the log keeps of the version before
(`describe.py`) says how keys were; `check_schema` asks this first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.definitions.declarations import Declarations
from pipeline.definitions.definition import Stored
from pipeline.values.codecs import Codec, JsonCodec, codec_name
from pipeline.values.key_changes import rewritten
from pipeline.values.key_schemas import key_schema
from pipeline.values.key_times import with_times
from pipeline.values.misread import misread
from pipeline.values.schemas import unreadable
from pipeline.values.stored_forms import MARKED, with_forms

_NAME = "or give the table another name"
_PLACES = {
    "local": "each task kept what keys it liked (local=True)",
    "routed": "they lie by a part of the key (route=)",
    "own": "they lie by the whole key",
}


def why_not_met(app: Declarations, table: Stored[Any], old: Mapping[str, Any]) -> str | None:
    """What of a table's keys is other than in its kept description, and what to do; None where all of them are met again."""
    if (why := keys_not_met(table.key_codec, old)) is not None:
        return f"{why}, {_NAME}"
    was, place = _place(old.get("local", False), old.get("routed", False)), _place(table.local, table.route is not None)
    if place in (was, "local") or (was == "routed" and _may_be_routed(app)):
        return None
    return f"of its keys {_PLACES[was]}, and {_PLACES[place]} now: those that are stored would not be found; change it back, {_NAME}"


def keys_not_met(codec: Codec[Any], old: Mapping[str, Any]) -> str | None:
    """The same of their type alone, of a table or of a side of a join."""
    key = codec_name(codec)
    if key != old["key_codec"]:
        return f"its keys are stored as {old['key_codec']}, not as {key}; change the key type back"
    if not isinstance(codec, JsonCodec) or key_form(codec) == old.get("key_form"):
        return None
    schema = with_forms(codec.type, codec.schema)
    problem = unreadable(old.get("key_schema"), schema, is_marked=old.get("marked") == MARKED)
    problem = problem or rewritten(key_schema(old), schema, is_ordered=old.get("key_form") is not None)
    problem = problem or misread(old.get("key_schema"), shown_key_schema(codec))
    return None if problem is None else f"of its keys {problem}"


def shown_key_schema(codec: Codec[Any]) -> dict[str, Any] | None:
    """With which texts are times, so that a key that is typed gets the form that the app's keys have."""
    return with_forms(codec.type, with_times(codec.type, codec.schema)) if isinstance(codec, JsonCodec) else None


def key_form(codec: Codec[Any]) -> str | None:
    """The same as text, with the fields in the order in which they are written: descriptions are sorted by name, by whichever version of
    this project wrote them."""
    schema = shown_key_schema(codec)
    return None if schema is None else json.dumps(schema)


def _place(is_local: bool, is_routed: bool) -> str:
    return "local" if is_local else "routed" if is_routed else "own"


def _may_be_routed(app: Declarations) -> bool:
    """Whether records may come by a codec of the user's, which counts as a route as well."""
    return any(codec_name(topic.key_codec) == "custom" for topic in app.topics.values())
