"""`orchestrator topics list|describe|create|reset` on both logs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from state.log.protocol import TopicSpec
from state.log.sqlite import open_sqlite
from tests.cli.console import ROOT, Console

KAFKA = pytest.mark.kafka


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=KAFKA)])
def console(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path / "place").bank()
    if request.param == "kafka":
        from tests.kafka.place import Place

        place = Place()
        made.write("orchestrator.toml", f'log = "kafka://127.0.0.1:{place.port}?prefix={place.prefix}"\n')
    yield made
    made.close()


def test_a_table_that_is_renamed_is_named_where_its_changelog_is_created(console: Console) -> None:
    """The start behind it finds the new table described, and has no line."""
    assert console.here("topics", "create", "bank:app").code == 0
    console.write("bank.py", (console.folder / "bank.py").read_text().replace("balances", "totals"))
    done = console("topics", "create", "bank:app")
    assert (done.code, done.out) == (0, "bank-totals-changelog: 8 partitions\n"), done
    assert "warning: table totals is new and begins empty; balances, of the same types, is not in this" in done.err


def test_created_then_listed_then_described(console: Console) -> None:
    done = console.here("topics", "create", "bank:app")
    assert (done.code, done.out.splitlines()) == (
        0,
        ["alerts: 8 partitions", "bank-balances-changelog: 8 partitions", "payments: 8 partitions"],
    ), done
    assert console.here("topics", "create", "bank:app").out == "nothing to do: all topics are there\n"
    console.pay(("a", 1), ("b", 2), ("a", 3))
    rows = {row["topic"]: row for row in console.here("topics", "list", "bank", "--json").json["topics"]}
    assert {name: row["role"] for name, row in rows.items()} == {
        "alerts": "output",
        "bank-balances-changelog": "changelog",
        "payments": "input",
    }
    assert (rows["payments"]["partitions"], rows["alerts"]["records"]) == (8, 0)
    assert rows["payments"]["records"] >= 3  # markers count on Kafka
    shown = console.here("topics", "list", "bank").out.splitlines()
    assert shown[0].split() == ["topic", "role", "partitions", "records", "retention"] and len(shown) == 4
    facts = console.here("topics", "describe", "bank", "payments", "--json").json
    assert sum(row["end"] - row["start"] for row in facts["partitions"]) == rows["payments"]["records"]
    assert [row["position"] for row in facts["partitions"]] == [None] * 8
    assert console.here("topics", "describe", "bank", "payments").out.startswith("payments: input, plain, id ")
    first = console.here("topics", "describe", "bank", "bank-balances-changelog").out.splitlines()[0]
    assert re.fullmatch(r"bank-balances-changelog: changelog, id [^,]+, compacted", first), first


def test_positions_are_shown_and_wrong_names_are_refused(console: Console) -> None:
    console.pay(("a", 1))
    console.run(instances=1)
    console.until("the payment", lambda: "1" in console.here("query", "bank", "balances", "a").out)
    facts = console.here("topics", "describe", "bank", "payments", "--json").json
    assert any(row["position"] for row in facts["partitions"])
    done = console.here("topics", "describe", "bank", "nothing")
    assert done.code == 2 and "it has alerts, bank-balances-changelog, payments" in done.err
    console.close()


def test_an_input_that_a_new_version_mistypes(tmp_path: Path) -> None:
    """On an embedded log too: it was made, and the app waited there for records that went to the one that is meant."""
    console = Console(tmp_path / "place").bank()
    console.pay(("a", 1))
    text = (console.folder / "bank.py").read_text()
    assert text.count('"payments"') == 1
    console.write("bank.py", text.replace('"payments"', '"paymets"'))
    record = '{"key": "a", "value": {"account": "a", "amount": 1}}'
    for words in (("run", "bank:app"), ("produce", "bank:app", "paymets")):
        done = console(*words, stdin=record)
        assert (done.code, done.err.count("\n"), done.out) == (2, 1, ""), done
        assert "reads topic paymets, which is not there; did you mean payments?" in done.err, done
    assert "paymets" not in console.here("topics", "list", "bank").out
    more = 'charges = app.topic("charges", key=str, value=int)\n\n\n@app.processor(charges)\ndef charge(one) -> None:\n    pass\n'
    console.write("bank.py", f"{text}\n\n{more}")
    done = console("produce", "bank:app", "payments", stdin=record)
    said = "topic charges is made now, as nobody has written to it; is the name right?\n"
    assert (done.code, done.err) == (0, said), done
    assert console("produce", "bank:app", "payments", stdin=record).err == ""
    console.write("bank.py", text.replace('"payments"', '"paymets"'))
    assert console("topics", "create", "bank:app").code == 0
    assert console("produce", "bank:app", "paymets", stdin=record).code == 0
    console.close()


def test_an_app_is_reset_among_its_topics_too(console: Console) -> None:
    """Those who create an app's topics there look for it there: it was no verb of `topics`."""
    console.pay(("a", 1))
    fleet = console.run(instances=1)
    fleet.terminate()
    assert console.end(fleet) == 0
    plan = console.here("topics", "reset", "bank", "--plan")
    assert plan.code == 0 and plan.out == console.here("reset", "bank", "--plan").out
    assert "bank-balances-changelog" in plan.out
    assert console.here("topics", "reset", "bank").code == 0
    assert "bank-balances-changelog" not in console.here("topics", "list", "bank").out


def test_a_topic_that_is_accepted_twice(console: Console) -> None:
    """A script that is run again was refused: the app "has not run" on the topic."""
    console.pay(("a", 1))
    fleet = console.run(instances=1)
    fleet.terminate()
    assert console.end(fleet) == 0
    outcomes = [
        console.here("topics", "accept", "bank", topic, "--json").json["outcome"]
        for topic in ("payments", "payments", "bank-balances-changelog", "bank-balances-changelog")
    ]
    assert outcomes == ["done", "nothing to do"] * 2
    assert console.here("topics", "accept", "bank", "payments").out.endswith("'bank' already: nothing to do\n")
    refused = console.here("topics", "accept", "bank", "nothing")
    assert refused.code == 2 and "has not run on a topic 'nothing'" in refused.err


def test_rights_of_a_principal_without_a_type_are_refused(console: Console) -> None:
    """kafka-acls takes no other name, so its commands would all fail."""
    words = ("topics", "acls", "bank:app", "--log", "kafka://h", "--principal")
    for name in ("bank", ":bank", "User:"):
        refused = console.here(*words, name)
        assert (refused.code, refused.out) == (2, "") and "such as User:" in refused.err, refused
    assert "--allow-principal Group:bank" in console.here(*words, "Group:bank").out


def test_rights_of_what_deletes_and_grows(console: Console) -> None:
    def lines(purpose: str) -> set[str]:
        words = ("topics", "acls", "bank:app", "--log", "kafka://h", "--principal", "User:x", "--for", purpose)
        given = "kafka-acls --bootstrap-server h:9092 --add --allow-principal User:x "
        return {line.removeprefix(given) for line in console.here(*words).out.splitlines()}

    assert lines("reset") - lines("run") == {
        "--operation Create --operation Delete --operation DescribeConfigs --operation Read --operation Write"
        " --topic bank-balances-changelog",
        "--operation Delete --operation Read --group bank",
    }
    assert lines("repartition") - lines("run") == {
        "--operation Alter --operation Create --operation DescribeConfigs --operation Read --operation Write"
        " --topic bank-balances-changelog",
        "--operation Alter --operation DescribeConfigs --operation Read --topic payments",
        "--operation DescribeConfigs --cluster",
    }


def test_how_long_a_topic_is_kept_is_set_and_shown(console: Console) -> None:
    assert console.here("topics", "create", "bank:app").code == 0
    done = console.here("topics", "set", "bank", "payments", "--retention", "7d", "--retention-bytes", "1GiB", "--json")
    assert done.code == 0, done
    assert (done.json["retention_ms"], done.json["retention_bytes"]) == (604_800_000, 1 << 30)
    done = console.here("topics", "set", "bank", "payments", "--retention-bytes", "forever")
    assert (done.code, done.out) == (0, "payments is kept for 7 d\n"), done
    rows = {row["topic"]: row for row in console.here("topics", "list", "bank", "--json").json["topics"]}
    assert (rows["payments"]["retention_ms"], rows["payments"]["retention_bytes"]) == (604_800_000, None)
    if console.here("topics", "set", "bank", "payments", "--retention", "6d", "--force", "--json").json["forced"]:
        done = console.here("topics", "set", "bank", "payments", "--retention-bytes", "1GiB", "--force")
        assert (
            done.out
            == "payments is kept for 6 d or 1073741824 bytes a partition, also where an application has yet to read it\n"
        )
        done = console.here("topics", "set", "bank", "payments", "--retention-bytes", "forever")
        assert done.out == "payments is kept for 6 d\n" and done.err.startswith("warning: it was set with --force"), (
            done
        )
        assert console.here("topics", "set", "bank", "payments", "--retention", "7d").err == ""
    for words, why in (
        (("payments",), "nothing to set"),
        (("payments", "--retention", "0s"), "keeps nothing"),
        (("payments", "--retention", "soon"), "is not a duration"),
        (("nowhere", "--retention", "1d"), "has no topic 'nowhere'"),
        (("bank-balances-changelog", "--retention", "1d"), "is a topic of bank's own (changelog)"),
    ):
        refused = console.here("topics", "set", "bank", *words)
        assert refused.code == 2 and refused.err.count("\n") == 1 and why in refused.err, refused


def test_the_topic_of_a_global_table_is_an_input(tmp_path: Path) -> None:
    """It was taken for an output: an app with the rights of `topics acls` could not read it."""
    console = Console(tmp_path / "place", app="desk")
    console.write("desk.py", (ROOT / "tests/time/desk.py").read_text())
    assert console.here("topics", "create", "desk:app").code == 0
    rows = {row["topic"]: row["role"] for row in console.here("topics", "list", "desk", "--json").json["topics"]}
    assert rows["rates"] == "input", rows
    lines = console.here("topics", "acls", "desk:app", "--log", "kafka://h", "--principal", "User:x").out.splitlines()
    (rates,) = [line for line in lines if line.endswith("--topic rates")]
    assert "--operation Read" in rates and "--operation Write" not in rates


def test_a_rekey_that_was_made_by_hand_gets_no_retention(tmp_path: Path) -> None:
    """Its records were removed before the app had counted them."""
    console = Console(tmp_path / "place", app="shop")
    console.write(
        "shop.py",
        "from orchestrator import App\n"
        "app = App('shop', partitions=2)\n"
        "sales = app.topic('sales', key=str, value=int)\n"
        "by_kind = sales.rekey('by-kind', key=str, by=lambda sale: sale.key[:1])\n"
        "sums = app.table('sums', key=str, value=int, default=int)\n"
        "@app.processor(by_kind, sums)\n"
        "def add(sale, sums):\n"
        "    sums[sale.key] += sale.value\n",
    )
    log = tmp_path / "place" / "log.db"
    made = asyncio.run(_made(log, TopicSpec("shop-by-kind-repartition", 2)))
    assert made == "plain"
    assert console.here("topics", "create", "shop:app", "--log", f"sqlite:{log}").code == 0
    refused = console.here(
        "topics", "set", "shop", "shop-by-kind-repartition", "--retention", "1d", "--log", f"sqlite:{log}"
    )
    assert refused.code == 2 and "is a topic of shop's own (re-key)" in refused.err, refused


async def _made(path: Path, spec: TopicSpec) -> str:
    log = await open_sqlite(path, create=True)
    await log.create_topic(spec)
    kind = (await log.topics([spec.name]))[spec.name].kind
    await log.close()
    return kind
