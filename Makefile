# The project's commands. `make demo` and `make test` set everything up by themselves; only Python >= 3.11 is needed.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test test-kafka chaos stalls test-long check docs kill bench bench-assignors bench-group bench-rebalance bench-yardstick bench-stream bench-time bench-expiry bench-log bench-handover bench-failover bench-restore bench-backfill bench-large bench-kafka bench-streaming bench-guard bench-idle simulate simulate-process one-answer clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt Makefile
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.11 found; set PYTHON=/path/to/python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[spark,demo,dev,docs,java,kafka,faust,otel]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/orchestrator demo $(DEMO)

# Those that wait for processes leave a core to others, those on Spark and the simulations take one: three at a time keep two
# cores busy. A file is one process's, or all that share a session or a broker (tests/units.py), in the order of tests/conftest.py.
JOBS ?= 3
test: $(READY)
	$(BIN)/python -m pytest -m "not long and (not kafka or short)" -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=25 --durations-min=5 $(TESTS)

# The log's contract on a real broker, leases and fences under SIGSTOP, members of aiokafka and of Java in one group. The
# broker's jars are fetched once into the user's cache. ROUNDS makes the campaigns longer, KAFKA names another version.
ROUNDS ?= 5
KAFKA ?= 4.3.0
test-kafka: $(READY)
	ROUNDS=$(ROUNDS) KAFKA=$(KAFKA) $(BIN)/python -m pytest -m kafka --ignore tests/spark/test_speculation.py

# Instances on real brokers while processes, connections and brokers fail, drawn from SEED; ids are judged at the end of
# each life. `make test` runs a short form.
EVENTS ?= 300
SEED ?= 1
chaos: $(READY)
	$(BIN)/python -m tests.chaos --events $(EVENTS) --seed $(SEED) --kafka $(KAFKA)

# How long a group stands still when one of three brokers goes and comes back, aimed at what each does for it, beside plain
# producers. SETTINGS=default has Kafka's own; HOW=stop ends it in order, HOW=freeze as a machine that loses its network.
KILLS ?= 10
SETTINGS ?= fast
HOW ?= kill
stalls: $(READY)
	$(BIN)/python -m tests.kafka.stalls --kills $(KILLS) --settings $(SETTINGS) --how $(HOW) --kafka $(KAFKA)

# What earns no place in every run: the tour in short (CI runs `make demo`), an oracle judged by faults, and the like.
test-long: $(READY)
	$(BIN)/python -m pytest -m long --ignore tests/spark/test_speculation.py
	$(BIN)/python -m pytest -m long tests/spark/test_speculation.py  # on a cluster, which a process that has a session does not meet

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	MYPYPATH=. $(BIN)/mypy --explicit-package-bases benchmarks
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_tidy.py tests/test_docstrings.py

# The documentation as a site in build/site. Nothing is fetched; a link or an anchor that leads nowhere fails.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf .venv .orchestrator build dist

# Longer campaigns. `make test` runs a short form of each.
MOMENTS ?= 20
kill: $(READY)
	$(BIN)/python -m tests.kills --moments $(MOMENTS)

SEEDS ?= 300
simulate: $(READY)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

# Random apps with windows, timers and joins, and records out of order: the Driver, live instances with a kill and a scale-up, and
# history on Spark give one answer.
APPS ?= 20
ONE_SEED ?= 1
one-answer: $(READY)
	$(BIN)/python -m tests.time.one_answer --apps $(APPS) --seed $(ONE_SEED)

# Whole processes: the real shell on a loop of virtual time, with the log, disks and connections in memory. Some more for
# apps at least once, and for snapshots that are taken, damaged, forged and restored from.
START ?= 0
simulate-process: $(READY)
	$(BIN)/python -m tests.process_simulation --seeds $(SEEDS) --start $(START)
	$(BIN)/python -m tests.process_simulation --seeds $$(($(SEEDS) / 10 + 1)) --start $(START) --app repeating
	$(BIN)/python -m tests.process_simulation --seeds $$(($(SEEDS) / 10 + 1)) --start $(START) --app saving

# Benchmarks: ratios to rivals in the same run; tables and plots in docs/.
bench: bench-assignors bench-group bench-rebalance bench-yardstick bench-stream bench-time bench-idle

bench-assignors: $(READY)
	$(BIN)/python -m benchmarks.assignors

bench-group: $(READY)
	$(BIN)/python -m benchmarks.group

# What a record costs a worker, beside a bare loop over the same bytes.
bench-stream: $(READY)
	$(BIN)/python -m benchmarks.stream

# Windows, sessions and joins of streams, beside a plain count.
bench-time: $(READY)
	$(BIN)/python -m benchmarks.time

# Ten million windows that expire at once, a million timers that are pending, windows that close. Some minutes.
bench-expiry: $(READY)
	$(BIN)/python -m benchmarks.expiry

# Whether a record costs a fifth more than it did, in about a minute.
bench-guard: $(READY)
	$(BIN)/python -m benchmarks.guard

# What a log costs when it has grown, beside a young one. RECORDS=100000000 takes half an hour and 14 GB.
RECORDS ?= 10000000
bench-log: $(READY)
	$(BIN)/python -m benchmarks.log_growth --records $(RECORDS)

# What rest costs, and how soon a record is processed that comes then. Linux.
bench-idle: $(READY)
	$(BIN)/python -m benchmarks.idle

# LOG=kafka for both: a broker of their own.
LOG ?= embedded

# How long a task that moves on purpose is away, and what the others feel. Ten minutes or so.
bench-handover: $(READY)
	$(BIN)/python -m benchmarks.handover --log $(LOG)

# How long tasks are away when an instance dies or freezes, and what a start and a restart take.
bench-failover: $(READY)
	$(BIN)/python -m benchmarks.failover --log $(LOG)

# What a restore takes, from a changelog and from a snapshot (Java), and what tasks beside it feel.
bench-restore: $(READY)
	$(BIN)/python -m benchmarks.restore --log $(LOG)

# Backfills on Spark beside one plain process over the same file, with a profile by stage (Java, Linux). Some minutes.
ROWS ?= 1000000,5000000
bench-backfill: $(READY)
	$(BIN)/python -m benchmarks.backfill --rows $(ROWS)

# What a backfill of a large history takes of memory and disk, its answer checked. HISTORY=10000000,100000000 takes a quarter of an hour and
# 20 GB (Java, Linux).
HISTORY ?= 1000000,10000000
bench-large: $(READY)
	$(BIN)/python -m benchmarks.large_history --rows $(HISTORY)

# On a real broker, beside the embedded log: a record, a commit at least and exactly once, restores, planned moves, failures.
bench-kafka: $(READY)
	$(BIN)/python -m benchmarks.kafka
	$(BIN)/python -m benchmarks.guarantees
	$(BIN)/python -m benchmarks.restore --log kafka
	$(BIN)/python -m benchmarks.handover --log kafka
	$(BIN)/python -m benchmarks.failover --log kafka

# A count by key from Kafka to Kafka, beside Spark's Structured Streaming where STREAMING_PYTHON names a Python whose pyspark has a
# Kafka connector (docs/structured-streaming.md). A quarter of an hour.
STREAMING_PYTHON ?=
bench-streaming: $(READY)
	STREAMING_PYTHON=$(STREAMING_PYTHON) $(BIN)/python -m benchmarks.structured_streaming

# One workload under every protocol, in virtual time, with a timeline of tasks by instance.
bench-rebalance: $(READY)
	$(BIN)/python -m benchmarks.rebalance

# Kafka's own yardstick for learners, and the moves that a change costs.
bench-yardstick: $(READY)
	$(BIN)/python -m benchmarks.yardstick
