"""For each setting, and each command that takes it: the test that sees what it does. A setting that no test sees fails here.

Which command takes what is read from its `--help`, so that a new row, or a row that another command takes, is missed.
`path::test` names a test, `path.txt` a scenario that sets the key. Where a flag can do nothing it is refused:
test_idle_settings.py. What gives the flag, the variable and the file the same meaning: test_settings.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.cli.commands import COMMANDS
from orchestrator.cli.settings import TABLE
from tests.cli.console import Console

ROOT = Path(__file__).resolve().parent.parent.parent
HERE, NAMED = "tests/cli/test_effects.py::", "tests/cli/test_named.py::"
EVERY = f"{HERE}test_one_place_and_one_access_for_every_command"
SCENARIOS = "tests/scenarios/"
ASKING = ("table", "status", "explain", "query", "scale-up", "scale-down", "drain", "resume", "wait", "settings")
METRICS = "tests/cli/test_metrics.py::"
RESET = "tests/cli/test_reset.py::"
TIMES = f"{HERE}test_times_of_the_group"
LEARNERS = f"{HERE}test_learners_of_a_slow_restore"
FLEET = f"{HERE}test_a_fleet"
TLS = f"{HERE}test_tls_between_machines"
KAFKA = "tests/kafka/test_group.py::test_instances_by_name_form_a_group"
SECURITY = "tests/kafka/test_security.py::test_commands_take_the_file_and_show_no_secret"
SPARK_READS = "tests/kafka/test_security.py::test_spark_reads_with_the_file"
SPARK = "tests/spark/test_commands.py::"
BACKFILL, PRINTED = f"{SPARK}test_a_backfill_with_java_from_the_wheel", f"{SPARK}test_what_verify_and_audit_print"
MASTER = f"{SPARK}test_the_master_that_was_named"
SNAPSHOTS = "tests/spark/test_snapshot_only.py::"
AUDIT = "tests/spark/test_audit.py::test_the_stores_of_running_instances"

RUN: dict[str, tuple[str, ...]] = {
    "log": (KAFKA,),
    "kafka-config": (SECURITY,),
    "state-dir": (FLEET,),
    "name": (f"{NAMED}test_they_begin_a_group_and_a_bounce_keeps_tasks", f"{NAMED}test_the_name_of_the_host"),
    "on": ("tests/spark/test_fleet_on_spark.py::test_spark_is_killed",),
    "master": (
        MASTER,
        "tests/spark/test_source.py::test_executors_that_are_processes_of_their_own_need_no_folder_of_ours",
    ),
    "protocol": (FLEET, f"{SCENARIOS}cooperative_move.txt"),
    "ready": (
        f"{SCENARIOS}conservative_readiness.txt",
        "tests/kills/test_kills.py::test_scaling_under_load_loses_and_doubles_nothing",
    ),
    "standbys": (FLEET, f"{SCENARIOS}explain_standbys.txt"),
    "weights": (f"{SCENARIOS}weights_by_rate.txt", f"{SCENARIOS}weights_by_bytes.txt"),
    "balancing-factor": (f"{HERE}test_a_balance_that_is_good_enough", f"{SCENARIOS}balancing_factor_two.txt"),
    "heartbeat": (f"{HERE}test_a_heartbeat_a_minute",),
    "session-timeout": (f"{HERE}test_a_member_that_stands_still_without_a_standby",),
    "disconnect-grace": (TIMES,),
    "rejoin-grace": (TIMES,),
    "release-timeout": (TIMES,),
    "learner-timeout": (LEARNERS,),
    "initial-delay": (f"{HERE}test_a_new_group_waits_for_others",),
    "max-learners": (LEARNERS, f"{SCENARIOS}explain_budget.txt"),
    "acceptable-recovery-lag": (LEARNERS,),
    "acceptable-recovery-time": ("tests/group/test_recovery.py::test_ready_by_time",),
    "workers": (FLEET,),
    "zone": (f"{NAMED}test_zones_and_capacities_of_their_own",),
    "capacity": (f"{NAMED}test_zones_and_capacities_of_their_own",),
    "commit-interval": (FLEET,),
    "log-timeout": (
        "tests/failures/test_log_away.py::test_a_log_that_stays_locked_ends_the_fleet_with_a_code_of_its_own",
    ),
    "max-call": ("tests/failures/test_lost_calls.py::test_where_it_stops_the_fleet_ends_and_names_the_record",),
    "synchronous": (f"{HERE}test_a_log_that_is_flushed_with_each_commit",),
    "snapshots": (f"{SNAPSHOTS}test_instances_restore_from_it_and_go_on_and_so_do_their_standbys",),
    "on-stop": (f"{NAMED}test_with_on_stop_leave_it_hands_over_and_the_last_one_just_goes",),
    "on-halt": ("tests/failures/test_halts.py::test_no_next_owner_tries_the_record_and_resume_skips_it",),
    "after-leave": ("tests/cli/test_signals.py::test_an_instance_that_left_is_parked",),
    "task-weights": (FLEET,),
    "restore-rate-limit": (
        LEARNERS,
        "tests/workers/test_restore_budget.py::test_copies_keep_to_the_budget_and_actives_do_not",
    ),
    "secret-file": (KAFKA, "tests/cli/test_group_commands.py::test_a_secret_to_read_reads_and_nothing_more"),
    "listen": (TLS,),
    "advertise": (f"{HERE}test_an_address_that_others_are_given",),
    "tls-cert": (TLS,),
    "tls-key": (TLS,),
    "tls-ca": (TLS,),
    "log-level": (FLEET,),
    "log-format": ("tests/cli/test_log_lines.py::test_every_line_of_a_fleet_is_an_object",),
    "metrics-port": (f"{METRICS}test_what_was_processed_is_counted_wherever_it_was",),
    "metrics-host": (f"{METRICS}test_metrics_are_of_the_address_that_was_named",),
    "failpoint": (f"{HERE}test_a_death_in_a_commit",),
}
OTHERS: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {
    ("log", (*ASKING, "consume", "topics", "produce", "secret")): (EVERY,),
    ("kafka-config", ("history",)): (),  # part of the place; it opens no log
    ("kafka-config", (*ASKING, "consume", "topics", "produce", "secret")): (SECURITY,),
    ("kafka-config", ("backfill", "verify", "audit")): (SPARK_READS,),
    ("log", ("backfill", "verify")): (BACKFILL, PRINTED),
    ("secret-file", (*ASKING, "secret")): (EVERY,),
    **{(name, ASKING): (EVERY, TLS) for name in ("tls-cert", "tls-key", "tls-ca")},
    # The secret of a Kafka log lies there; the three that need no secret take it as part of the place.
    ("state-dir", (*ASKING, "secret")): (KAFKA,),
    ("log", ("config",)): ("tests/upgrades/test_rolling_settings.py::test_an_app_is_looked_for_in_its_log",),
    **{(name, ("config",)): () for name in ("kafka-config", "state-dir")},  # part of the place
    ("log", ("reset",)): (f"{RESET}test_what_another_app_reads_is_not_deleted",),
    ("kafka-config", ("reset",)): (SECURITY,),
    ("state-dir", ("reset",)): (f"{RESET}test_state_that_was_named_goes",),
    ("log", ("history",)): ("tests/cli/test_history.py::test_where_the_state_was_found_above",),
    ("state-dir", ("history",)): ("tests/cli/test_history.py::test_a_state_folder_that_was_named",),
    ("state-dir", ("consume", "produce", "topics")): (),
    ("state-dir", ("demo",)): ("tests/demo/test_demo.py::test_the_tour",),
    ("log", ("log",)): ("tests/failures/test_backups.py::test_tables_are_those_of_the_restored_log",),
    ("snapshots", ("snapshot",)): ("tests/cli/test_snapshot_command.py::test_listed_verified_and_pruned",),
    ("snapshots", ("backfill",)): (BACKFILL,),
    ("snapshots", ("verify",)): (f"{SNAPSHOTS}test_verify_compares_with_the_snapshot_and_what_came_after",),
    ("master", ("backfill", "verify", "audit")): (MASTER,),
    ("task-memory", ("backfill", "verify", "audit")): (BACKFILL, PRINTED),
    ("master", ("repartition",)): (MASTER,),
    ("log", ("repartition",)): (MASTER,),
    ("kafka-config", ("repartition",)): (SPARK_READS,),
    ("state-dir", ("repartition",)): ("tests/spark/test_repartition.py::test_wrong_use",),
    ("snapshots", ("audit",)): (PRINTED,),
    ("state-dir", ("audit",)): (PRINTED,),
    **{(name, ("audit",)): (AUDIT,) for name in ("secret-file", "tls-cert", "tls-key", "tls-ca", "log")},
}
SEEN = {
    **{(setting, "run"): tests for setting, tests in RUN.items()},
    **{(setting, command): tests for (setting, commands), tests in OTHERS.items() for command in commands},
}


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    """(setting, command) for each command that takes the setting; what help hides is of `run`."""
    console = Console(tmp_path_factory.mktemp("taken"))
    console.environment["COLUMNS"] = "1000"
    found = {(name, "run") for name, setting in TABLE.items() if setting.hidden}
    for command in COMMANDS:
        shown = console.here(command, "--help").out
        found |= {(name, command) for name, row in TABLE.items() if re.search(rf"\[env: {row.variable}\b", shown)}
    return found


def test_every_setting_is_seen_acting_in_every_command_that_takes_it(taken: set[tuple[str, str]]) -> None:
    assert {name for name, _ in taken} == set(TABLE), "a setting that no command takes"
    assert not taken - SEEN.keys(), "no test sees what it does"
    assert not SEEN.keys() - taken, "named, and not taken"


@pytest.mark.parametrize("where", sorted({test for tests in SEEN.values() for test in tests}))
def test_what_is_named_is_there(where: str) -> None:
    path, _, name = where.partition("::")
    text = (ROOT / path).read_text()
    if name:
        assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"no {name} in {path}"
        return
    keys = [TABLE[setting].key for (setting, _), tests in SEEN.items() if where in tests]
    assert all(re.search(rf"^config .*\b{key}=", text, re.MULTILINE) for key in keys), f"{path} sets no {keys}"


@pytest.mark.parametrize("name", sorted(TABLE))
def test_what_is_named_uses_the_setting(name: str) -> None:
    """The flag, or what an instance or the group has of it, stands in a file that is named."""
    setting = TABLE[name]
    files = {test.partition("::")[0] for (one, _), tests in SEEN.items() if one == name for test in tests}
    words = [f"--{name}", setting.variable, *([setting.field, setting.key] if setting.field else [])]
    texts = [(ROOT / path).read_text() for path in files]
    assert any(re.search(rf"{re.escape(word)}\b", text) for word in words for text in texts), (name, sorted(files))
