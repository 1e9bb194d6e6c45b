"""Jobs and live instances on Kubernetes, in pods that have nothing but Spark, Java, Python and the packed environment: a backfill
and its audit, pods that are killed, deleted, never come, and an API server that refuses."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.spark import machines
from tests.spark.api_server import Api, is_real
from tests.spark.kubernetes import NAMESPACE, Kubernetes, kubernetes, why_not
from tests.spark.node import GATEWAY, Pod
from tests.spark.paid import balances, driven, lines, paid
from tests.spark.place import Place, parent

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.processes]
REASON = why_not()
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEADLINE_S = 400
until = partial(machines.until, within_s=300.0)  # a job in pods starts two Javas and fetches what an executor needs


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    if REASON:
        pytest.skip(REASON)
    with kubernetes(tmp_path / "kubernetes") as found:
        (found.shared / "tmp").mkdir()
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig))
        monkeypatch.setenv("TMPDIR", str(found.shared / "tmp"))
        yield found


class Pods(Place):
    """The bank on the cluster."""

    def __init__(self, cluster: Kubernetes) -> None:
        super().__init__(cluster.home, cluster.shared, cluster.network, GATEWAY)
        self.cluster = cluster

    def job(self, command: str, *words: str, **conf: str) -> subprocess.Popen[str]:
        """A command on executors."""
        given = self.cluster.conf | self.archive | conf
        pairs = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
        history = f"payments={self.shared / 'history.jsonl'}"
        where = ("--log", self.log, "--snapshots", str(self.shared / "snapshots"), "--master", self.cluster.master)
        line = self.words("-m", "orchestrator", command, "bank:app", history, *where, *pairs, *words)
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def done(self, job: subprocess.Popen[str], code: int = 0) -> str:
        """What a job has printed."""
        out, errors = job.communicate(timeout=DEADLINE_S)
        assert job.returncode == code, f"{out}\n{errors}\n{self.cluster.logs()}"
        return out if code == 0 else errors

    def balances(self) -> dict[str, int]:
        found: dict[str, int] = self.cluster.here(balances, self.log)
        return found


@pytest.fixture
def place(cluster: Kubernetes) -> Pods:
    return Pods(cluster)


def test_a_backfill_and_its_audit_in_pods(place: Pods) -> None:
    rows = paid(5_000)
    (place.shared / "history.jsonl").write_text(lines(rows))
    place.done(place.job("backfill"))
    assert place.balances() == driven(rows)
    place.done(place.job("verify", "--json"))
    assert len(place.cluster.node.all) == 4, "two executors for each command"
    until("no pod is left", lambda: not place.cluster.api("GET", PODS)["items"])


def test_a_pod_that_is_killed_in_a_job_changes_no_answer(place: Pods) -> None:
    rows = paid(20_000)
    (place.shared / "history.jsonl").write_text(lines(rows))
    job = place.job("backfill", **{"spark.executor.cores": "1"})

    def busy() -> Pod | None:
        """One that has begun a task of the app's."""
        pods = place.cluster.pods().values()
        return next((pod for pod in pods if "Starting Python task" in pod.log() and pod.java), None)

    until("a pod computes", lambda: busy() is not None or job.poll() is not None)
    found = busy()
    assert found is not None and found.java is not None and job.poll() is None
    os.kill(found.java, signal.SIGKILL)
    place.done(job)
    assert found.reported == "Failed" and len(place.cluster.node.all) >= 3, "another pod came for it"
    assert place.balances() == driven(rows)


class Fleet:
    """Two instances in pods, with one to spare."""

    def __init__(self, place: Pods, **conf: str) -> None:
        self.place = place
        self.log = place.home / "fleet.log"
        given = place.cluster.conf | {"spark.executor.instances": "3"} | conf
        words = place.fleet(place.cluster.master, given, Path("/opt/spark/work-dir/state"))
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def until(self, what: str, is_so: Callable[[], object]) -> None:
        """Waits for what this fleet is to do."""
        until(f"{what} of {self.log}", lambda: is_so() or self.process.poll() is not None)
        assert self.process.poll() is None, f"{what}: {self.log.read_text()}"

    def pay_and_see(self, wanted: int) -> None:
        """500 more payments, ten an account."""
        self.place.pay(500)
        self.until(f"a balance of {wanted}", lambda: self.place.balance("a7") == wanted)

    def pod(self, host: str) -> Pod:
        """That of an instance, by the name of its host: a pod's is the end of its own name."""
        [found] = [pod for pod in self.place.cluster.pods().values() if pod.name.endswith(host)]
        return found

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(200) == 0, self.log.read_text()


@pytest.fixture
def fleets(place: Pods) -> Iterator[list[Fleet]]:
    """Those that are killed at the end."""
    found: list[Fleet] = []
    yield found
    for one in found:
        one.process.kill()
        one.process.wait()


def test_instances_that_get_no_pod(place: Pods, fleets: list[Fleet]) -> None:
    fleet = Fleet(place, **{"spark.kubernetes.container.image": "not-there"})
    fleets.append(fleet)
    line = "i2 has not begun for 15 s: pods of executors wait: "
    fleet.until("it is explained", lambda: line in fleet.log.read_text())
    assert 'ImagePullBackOff, Back-off pulling image "not-there"' in fleet.log.read_text()
    fleet.stop()
    until("no pod is left", lambda: not place.cluster.api("GET", PODS)["items"])


def test_instances_in_pods(place: Pods, fleets: list[Fleet]) -> None:
    fleet = Fleet(place)
    fleets.append(fleet)
    fleet.until("two instances", lambda: len(place.hosts()) == 2)
    hosts = place.hosts()
    assert len(set(hosts.values())) == 2, "an instance a pod"
    fleet.pay_and_see(10)

    # A process that hosts an instance is killed: Spark starts the task again.
    killed = fleet.pod(hosts["i1"])
    [worker] = killed.running("workers.worker.worker_main")
    os.kill(parent(worker), signal.SIGKILL)
    fleet.pay_and_see(20)
    fleet.until("two instances", lambda: len(place.hosts()) == 2)

    # A pod is killed: Spark asks for another, and the instance goes on in the one that is free.
    lost = fleet.pod(place.hosts()["i2"])
    assert lost.java is not None
    os.kill(lost.java, signal.SIGKILL)
    fleet.pay_and_see(30)
    fleet.until("it is in another pod", lambda: fleet_host(place, "i2") not in ("", lost.hostname))

    # A pod is deleted, as when its node is drained: what runs there hands over first.
    drained = fleet.pod(place.hosts()["i1"])
    place.cluster.api("DELETE", f"{PODS}/{drained.name}")
    fleet.until("its instance hands over", lambda: "i1 ended because its host goes" in fleet.log.read_text())
    fleet.pay_and_see(40)
    fleet.until("it is in another pod", lambda: fleet_host(place, "i1") not in ("", drained.hostname))

    # A scale-down lets the task return; a scale-up finds its slot free.
    place.group("scale-down", "bank", "--to", "1", "--wait")
    fleet.until("one instance", lambda: len(place.hosts()) == 1)
    place.group("scale-up", "bank", "--to", "2")
    fleet.until("two instances", lambda: len(place.hosts()) == 2)
    fleet.pay_and_see(50)

    # A driver that is killed leaves pods that end by themselves.
    held = list(place.cluster.pods().values())
    fleet.process.kill()
    until(
        "the pods have ended or are gone",
        lambda: all(pod.reported or pod.name not in place.cluster.pods() for pod in held),
    )
    assert {pod["status"]["phase"] for pod in place.cluster.api("GET", PODS)["items"]} <= {"Succeeded", "Failed"}


def fleet_host(place: Pods, instance: str) -> str:
    """The host of an instance, as the group has it; "" where it is no member."""
    return place.hosts().get(instance, "")


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"spark.kubernetes.container.image": "not-there"}, 'ImagePullBackOff, Back-off pulling image "not-there"'),
        ({"spark.executor.cores": "16"}, "no node takes it (0/1 nodes are available: 1 Insufficient cpu.)"),
        ({"spark.driver.host": "127.0.0.1"}, "see --conf spark.driver.host"),
        (
            {"spark.driver.host": "127.0.0.1", "spark.executor.maxNumFailures": "1"},
            "its pods ended as they began; if they could not reach the driver, see --conf spark.driver.host",
        ),
    ],
    ids=["image", "cores", "driver", "driver, given up"],
)
def test_pods_that_do_not_come_are_explained(place: Pods, conf: dict[str, str], words: str) -> None:
    (place.shared / "history.jsonl").write_text(lines(paid(10)))
    job = place.job("backfill", **conf)
    assert job.stderr is not None
    seen = ""
    for line in job.stderr:
        seen += line
        if "Spark has run no task" in line or "error:" in line:
            break
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=DEADLINE_S)
    assert words in seen.splitlines()[-1], f"{seen}\n{place.cluster.logs()}"


@pytest.mark.skipif(not is_real(), reason="rights are checked by the real API server alone")
def test_an_api_server_that_refuses(place: Pods) -> None:
    (place.shared / "history.jsonl").write_text(lines(paid(10)))
    cluster = place.cluster
    url = cluster.server.admin.url

    def refused(client: Api, **conf: str) -> str:
        client.kubeconfig(cluster.kubeconfig)
        errors = place.done(place.job("backfill", **conf), code=1)
        return errors.splitlines()[-1]

    assert f"the API server {url} does not know this user (401)" in refused(
        Api(url, "unknown", cluster.client.certificate)
    )
    weak = cluster.here(cluster.server.token, NAMESPACE, "default")
    assert f"the API server {url} refuses (403: configmaps is forbidden" in refused(weak)
    elsewhere = refused(cluster.server.admin, **{"spark.kubernetes.namespace": "nowhere"})
    assert 'namespaces "nowhere" not found' in elsewhere
    strange = refused(Api(url, cluster.client.token, Path(place.certificate)))
    assert "comes from an authority that is not known here" in strange
