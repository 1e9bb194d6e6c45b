"""Where an instance listens, and what others are given."""

from __future__ import annotations

import pytest

from orchestrator.errors import WrongUse
from orchestrator.instance_settings import InstanceSettings
from workers.connection.listening import place_of, place_of_instance, places_in_fleet, reached_at


@pytest.mark.parametrize(
    ("advertised", "bound", "given"),
    [
        ("", "127.0.0.1:7000", "127.0.0.1:7000"),
        ("", "tls://10.0.0.5:7000", "tls://10.0.0.5:7000"),
        ("gate.example:17000", "tls://0.0.0.0:7000", "tls://gate.example:17000"),
        ("gate.example", "tls://0.0.0.0:7000", "tls://gate.example:7000"),
        ("[2001:db8::1]:17000", "tls://[::]:7000", "tls://[2001:db8::1]:17000"),
        ("[2001:db8::1]", "tls://[::]:7000", "tls://[2001:db8::1]:7000"),
    ],
)
def test_what_others_are_given(advertised: str, bound: str, given: str) -> None:
    assert reached_at(advertised, bound) == given


def test_a_wildcard_is_listened_on_only_where_another_address_is_given() -> None:
    with pytest.raises(WrongUse, match="or give it with --advertise"):
        place_of("0.0.0.0:7000")
    assert place_of("0.0.0.0:7000", advertised="gate:1") == ("0.0.0.0", 7000)
    for wrong, said in (("0.0.0.0:7000", "name the address"), ("gate:port", "is no port")):
        with pytest.raises(WrongUse, match=f"--advertise {wrong}.*{said}"):
            place_of(wrong, "--advertise")


def test_each_instance_of_a_fleet_has_the_next_port_of_both() -> None:
    assert place_of_instance("0.0.0.0:7000", 3, "gate:17000") == "0.0.0.0:7002"
    assert place_of_instance("gate:17000", 3) == "gate:17002"
    assert place_of_instance("", 3) == ""
    first = InstanceSettings(listen="0.0.0.0:7000", advertise="gate:17000")
    third = {"listen": "0.0.0.0:7002", "advertise": "gate:17002", "metrics_port": 0}
    assert places_in_fleet(first, 3) == third, "an instance that others reach has a place of its own"
