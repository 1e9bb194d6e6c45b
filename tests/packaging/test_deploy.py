"""What lies in deploy/ is what its readers take: fields that must be there, and commands that our own parsers read."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli.arguments import described
from orchestrator.cli.settings import TABLE, Sources
from orchestrator.durations import parse_duration_ms
from tests.docs.snippets import blocks
from workers.commands import drain, run

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "orchestrator@.service"


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes/bank.yaml").read_text()))
    assert all({"apiVersion", "kind", "metadata", "spec"} <= one.keys() for one in found)
    return {one["kind"]: one for one in found}


def options_of(words: list[str], environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `orchestrator WORDS` parses, in that environment alone."""
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    parser = described({"run": run.run, "drain": drain.run}[words[0]])
    return parser.parse_args(words[1:])


def container(manifests: dict[str, Any]) -> Any:
    return manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]


def test_the_fields_that_kubernetes_requires(manifests: dict[str, Any]) -> None:
    versions = {"Service": "v1", "PodDisruptionBudget": "policy/v1", "StatefulSet": "apps/v1"}
    assert {kind: one["apiVersion"] for kind, one in manifests.items()} == versions
    spec, service = manifests["StatefulSet"]["spec"], manifests["Service"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items() and service["selector"].items() <= labels.items()
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert spec["serviceName"] == manifests["Service"]["metadata"]["name"] and service["clusterIP"] == "None"
    pod = spec["template"]["spec"]
    volumes = {one["name"] for one in pod["volumes"]} | {c["metadata"]["name"] for c in spec["volumeClaimTemplates"]}
    for one in (*pod["containers"], *pod["initContainers"]):
        assert {"name", "image"} <= one.keys() and not one["image"].endswith(":latest")
        assert {mount["name"] for mount in one["volumeMounts"]} <= volumes
    ports = {port["name"] for port in container(manifests)["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= ports
    for probe in ("readinessProbe", "livenessProbe"):
        assert container(manifests)[probe]["httpGet"] == {"path": "/metrics", "port": "metrics"}
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_what_a_pod_runs_is_what_we_take(
    manifests: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = container(manifests)
    values = {"POD_NAME": "bank-0", "POD_IP": "10.0.0.9"}
    given = {e["name"]: e["value"] for e in one["env"] if "value" in e}
    assert {e["name"] for e in one["env"]} == {*given, *values}
    assert set(given) <= {setting.variable for setting in TABLE.values()}
    assert not Sources(tmp_path, given).strange()
    words = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in one["args"]]
    args = options_of(words, given, tmp_path, monkeypatch)
    assert (args.app, args.name, args.listen) == ("bank:app", "bank-0", "10.0.0.9:7000")
    assert args.log == "kafka://kafka:9092" and args.metrics_port == 9100
    mounts = {mount["mountPath"] for mount in one["volumeMounts"]}
    assert {args.state_dir, str(Path(args.secret_file).parent), str(Path(args.tls_key).parent)} <= mounts
    assert [port["containerPort"] for port in one["ports"]] == [7000, 9100]

    shell, flag, script = one["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, flag) == ("sh", "-c") and script.startswith("exec orchestrator drain ")
    drained = shlex.split(script.replace("$POD_NAME", "bank-0"))[2:]
    asked = options_of(drained, given, tmp_path, monkeypatch)
    assert (asked.app, asked.instance, asked.wait) == ("bank", args.name, True)
    grace_s = manifests["StatefulSet"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert asked.timeout < grace_s * 1000 and asked.timeout == parse_duration_ms("600s")


def test_the_unit_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"].replace("%i", "bank").replace("%l", "host1"))
    assert program == "/opt/bank/venv/bin/orchestrator"
    args = options_of(words, {}, tmp_path, monkeypatch)
    assert (args.app, args.name) == ("bank:app", "host1")
    assert service["RestartPreventExitStatus"].split() == ["2", "3"] and service["KillMode"] == "mixed"
    variables = re.findall(r"^Environment=(\w+)=", UNIT.read_text(), re.MULTILINE)
    assert variables and set(variables) <= {setting.variable for setting in TABLE.values()}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    """Its own check, with a program and a user that are there."""
    text = re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()).replace("User=orchestrator", "User=root")
    path = tmp_path / "orchestrator@bank.service"
    path.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert str(path) not in done.stderr and "orchestrator@bank" not in done.stderr, done.stderr


def tool(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """A program of the environment, beside its Python. Skips where its wheel is none of this machine."""
    program = shutil.which(name, path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip(f"no {name} here")
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)


def test_kubernetes_schemas_take_the_manifests(tmp_path: Path) -> None:
    """Strict: an unknown field is refused as well."""
    manifests_ = DEPLOY / "kubernetes/bank.yaml"
    done = tool("kubernetes-validate", "--strict", manifests_)
    assert done.returncode == 0 and (done.stdout + done.stderr).count("passed") == 3, done
    done = tool("kubernetes-validate", "--strict", DEPLOY / "kubernetes/spark.yaml")
    assert done.returncode == 0 and (done.stdout + done.stderr).count("passed") == 3, done
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(manifests_.read_text().replace("terminationGracePeriodSeconds", "terminationGraceSeconds"))
    assert tool("kubernetes-validate", "--strict", wrong).returncode != 0


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def test_the_schema_of_compose_takes_the_file(tmp_path: Path) -> None:
    words = ("--builtin-schema", "vendor.compose-spec")
    done = tool("check-jsonschema", *words, DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((DEPLOY / "compose.yaml").read_text().replace("stop_grace_period", "stop_grace"))
    assert tool("check-jsonschema", *words, wrong).returncode != 0


def test_what_compose_runs_is_what_we_take(
    compose: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = compose["services"]["kafka"]["environment"]
    instances = {name: one for name, one in compose["services"].items() if name != "kafka"}
    assert len(instances) == 3
    for name, one in instances.items():
        given = one["environment"]
        assert set(given) <= {setting.variable for setting in TABLE.values()}
        assert not Sources(tmp_path, given).strange()
        monkeypatch.setattr("socket.gethostname", lambda host=one["hostname"]: host)
        args = options_of(one["command"], given, tmp_path, monkeypatch)
        assert (args.app, args.name, args.listen) == ("bank:app", name, f"{name}:7000")
        assert f"PLAINTEXT://{args.log.removeprefix('kafka://')}" == broker["KAFKA_ADVERTISED_LISTENERS"]
        mounts = {volume.split(":")[0]: volume.split(":")[1] for volume in one["volumes"]}
        assert mounts[name] == args.state_dir and name in compose["volumes"]
        assert mounts["../secrets"] == str(Path(args.secret_file).parent) == str(Path(args.tls_key).parent)
        assert one["stop_signal"] == "SIGTERM" and one["depends_on"] == {"kafka": {"condition": "service_healthy"}}
        assert (DEPLOY / one["build"]["context"] / one["build"]["dockerfile"]).exists()
        assert (ROOT / one["build"]["args"]["APP"]).exists()


def test_hadolint_takes_the_dockerfiles(tmp_path: Path) -> None:
    page = next(block for block in blocks(ROOT / "docs/howto/docker.md") if block.language == "dockerfile")
    (tmp_path / "Dockerfile").write_text(page.text)
    for path in (DEPLOY / "Dockerfile", tmp_path / "Dockerfile"):
        done = tool("hadolint", path)
        assert done.returncode == 0, done.stdout
    (tmp_path / "Dockerfile").write_text(page.text.replace("FROM python:3.12-slim", "FROM python"))
    assert tool("hadolint", tmp_path / "Dockerfile").returncode != 0


def test_the_dockerfile() -> None:
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    words = [line.split() for line in lines]
    assert {word[0] for word in words} <= {
        *("FROM", "WORKDIR", "COPY", "RUN", "ARG", "ENV", "USER", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD")
    }
    assert all(re.fullmatch(r"python:3\.\d+-slim", word[1]) for word in words if word[0] == "FROM")
    users = [word[1] for word in words if word[0] == "USER"]
    assert users == ["10001"] and json.loads(lines[-2].partition(" ")[2]) == ["orchestrator"]
    copied = [part for word in words if word[0] == "COPY" and not word[1].startswith("--") for part in word[1:-1]]
    assert copied and [part for part in copied if not (ROOT / part).exists()] == []
    packages = re.search(r"^packages = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert packages is not None and set(json.loads(packages[1])) <= set(copied), "a package that the image lacks"
    assert "ORCHESTRATOR_STATE_DIR=/state" in (DEPLOY / "Dockerfile").read_text()
