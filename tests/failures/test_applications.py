"""An app that is wrong, fails, or does not fit what is there."""

from __future__ import annotations

import json

import pytest

from tests.cli.console import Console

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms")
BROKEN = """
from orchestrator import App, Record, Table

app = App("bank", partitions=2{on_error})
payments = app.topic("payments", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances)
def settle(payment: Record[str, int], balances: Table[str, int]) -> None:
    balances[payment.key] += share(payment.value)


def share(value: int) -> int:
    return 12 // value
"""


def one_line(err: str) -> bool:
    return err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err and "defect" not in err


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("bnak:app", "did you mean 'bank'?"),
        ("bank:ap", "did you mean 'app'?"),
        ("bank:payments", "not an App"),
        ("empty:app", "no processors"),
        ("raises:app", "raises cannot be imported: ZeroDivisionError"),
    ],
)
def test_no_such_app(console: Console, target: str, said: str) -> None:
    console.write("empty.py", 'from orchestrator import App\napp = App("empty")\n')
    console.write("raises.py", "app = 1 // 0\n")
    for words in (["run", target], ["produce", target, "payments"]):
        done = console.here(*words)
        assert done.code == 2 and said in done.err and done.out == "", done
        assert done.err.startswith("error: ") and "defect" not in done.err
        assert target.startswith("raises") or one_line(done.err)
        assert ("raises.py" in done.err) is target.startswith("raises"), "the user's frames, and only theirs"
    assert not (console.folder / ".orchestrator").exists(), "no log and no state for an app that does not exist"


def broken(console: Console, on_error: str = "") -> None:
    console.write("bank.py", BROKEN.format(on_error=f", on_error={on_error}" if on_error else ""))


def give(console: Console, *records: tuple[str, int]) -> None:
    lines = "\n".join(json.dumps({"key": key, "value": value}) for key, value in records)
    assert console.here("produce", "bank:app", "payments", stdin=lines).code == 0


def test_a_processor_that_raises(console: Console) -> None:
    """It ends with 1 and says which record; nothing is lost; corrected, it goes on from there."""
    broken(console)
    give(console, ("ann", 4), ("ann", 0), ("ann", 6))
    fleet = console.run(*FAST, wait=False)
    assert console.end(fleet) == 1
    said = console.said("run")
    assert "settle failed at payments-" in said and "@1 in task 0_" in said and "ZeroDivisionError" in said
    assert 'on_error="skip"' in said, "what to do"
    assert "return 12 // value" in said and "in share" in said, "the user's own frames"
    assert "pipeline/" not in said and "workers/" not in said, said
    console.nothing_left()
    console.write("bank.py", BROKEN.format(on_error="").replace("12 // value", "12 // (value or 12)"))
    console.run(*FAST)
    assert console.balance("ann") == "6\n"


@pytest.mark.parametrize("on_error", ['"skip"', '"bank-letters"'])
def test_a_processor_that_raises_and_may_go_on(console: Console, on_error: str) -> None:
    broken(console)
    give(console, ("ann", 4))
    console.write("bank.py", BROKEN.format(on_error=""))
    letters = "letters" in on_error
    made = 'letters = app.topic("bank-letters", key=str, value=int)\n'
    text = BROKEN.format(on_error=f", on_error={on_error}")
    console.write(
        "bank.py", text.replace("balances = app.table", f"{made}balances = app.table", 1) if letters else text
    )
    give(console, ("ann", 0), ("ann", 6))
    console.run(*FAST)
    assert console.balance("ann") == "5\n"
    if letters:
        [letter] = [json.loads(row) for row in console.here("consume", "bank", "bank-letters").out.splitlines()]
        assert (letter["key"], letter["value"], letter["headers"]["error-type"]) == ("ann", 0, "ZeroDivisionError")


def test_input_that_does_not_decode(console: Console) -> None:
    """Bytes that another program wrote: told as such, without frames, since no code of the user's is to blame."""
    other = (
        BROKEN.format(on_error="").replace("value=int)\nbal", "value=str)\nbal").replace("share(payment.value)", "1")
    )
    console.write("bank.py", other.replace("Record[str, int]", "Record[str, str]"))
    lines = json.dumps({"key": "ann", "value": "not an int"})
    assert console.here("produce", "bank:app", "payments", stdin=lines).code == 0
    broken(console)
    fleet = console.run(*FAST, wait=False)
    assert console.end(fleet) == 1
    said = console.said("run")
    assert "settle cannot read payments-" in said and "@0 in task 0_" in said and "is not an int" in said
    assert "Traceback" not in said
    console.nothing_left()


def test_two_apps_with_one_id(console: Console) -> None:
    console.pay(("ann", 1))
    other = (
        "from orchestrator import App\n"
        'app = App("bank", partitions=8)\n'
        'ships = app.topic("ships", key=str, value=str)\n'
        'ports = app.table("ports", key=str, value=str)\n'
        "@app.processor(ships, ports)\n"
        "def dock(ship, ports): ports[ship.key] = ship.value\n"
    )
    console.write("harbour.py", other)
    for words in (["run", "harbour:app"], ["produce", "harbour:app", "ships"]):
        done = console.here(*words)
        assert done.code == 3 and one_line(done.err) and "app 'bank'" in done.err, done
    assert console.here("consume", "bank", "payments").out.count("\n") == 1


def test_a_value_type_that_cannot_read_what_is_stored(console: Console) -> None:
    console.pay(("ann", 1))
    changed = (console.folder / "bank.py").read_text().replace("value=int, default=int", "value=str, default=str")
    console.write("bank.py", changed.replace("+= payment.value.amount", '+= "x"').replace("] < 0", '] < ""'))
    done = console("run", "bank:app")
    assert done.code == 3 and one_line(done.err) and "'balances'" in done.err, done


def test_the_partition_count_that_exists_wins(console: Console) -> None:
    console.pay(("ann", 1), ("bob", 2))
    text = (console.folder / "bank.py").read_text()
    console.write("bank.py", text.replace("partitions=8", "partitions=12"))
    console.run(*FAST)
    assert console.said("run").startswith("1 instance, 8 tasks")
    console.pay(("ann", 1))
    assert console.balance("ann") == "2\n"
    assert console.balance("bob") == "2\n"
