"""What is printed of pods that do not come, and of an API server that refuses: one line that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import WrongUse
from pipeline.spark.pods import FAILED, described, refusal, refuse_without_image
from pipeline.spark.running import no_slot
from pipeline.spark.session import _reason
from workers.commands.cluster import Cluster

pytestmark = pytest.mark.spark
URL = "https://10.0.0.1:6443"
MASTER = f"k8s://{URL}"
# As fabric8's client writes it into Spark's log.
FAILURE = (
    "io.fabric8.kubernetes.client.KubernetesClientException: Failure executing: POST at: {url}/api/v1/namespaces/jobs/{what}. "
    "Message: {message}. Received status: Status(apiVersion=v1, code={code}, details=null, kind=Status, message={message}, "
    "metadata=ListMeta(_continue=null), reason=x, status=Failure, additionalProperties={{}})."
)
FORBIDDEN = (
    'pods is forbidden: User "system:serviceaccount:jobs:default" cannot create resource "pods" in API group "" in the '
    'namespace "jobs"'
)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (FAILURE.format(url=URL, what="configmaps", message="Unauthorized", code=401),
         f"the API server {URL} does not know this user (401); name a kubeconfig in KUBECONFIG"),
        (FAILURE.format(url=URL, what="pods", message=FORBIDDEN, code=403),
         f"the API server {URL} refuses (403: {FORBIDDEN}); give this account a Role that allows it"),
        (FAILURE.format(url=URL, what="configmaps", message='namespaces "jobs" not found', code=404),
         f'namespaces "jobs" not found on the API server {URL}; make it, or name another with --conf spark.kubernetes.namespace'),
        (FAILURE.format(url=URL, what="pods", message="exceeded quota: small", code=422),
         f"the API server {URL} refuses (422: exceeded quota: small)"),
        ("Caused by: java.io.IOException: Connection refused: /10.0.0.1:6443",
         f"no API server of Kubernetes answers at {URL} (Connection refused); check the address behind k8s://"),
        ("Caused by: java.net.UnknownHostException: nowhere",
         f"no API server of Kubernetes answers at {URL} (UnknownHostException); check the address behind k8s://"),
        ("Caused by: sun.security.validator.ValidatorException: PKIX path building failed: ...",
         f"the certificate of the API server {URL} comes from an authority that is not known here"),
        ("WARN NativeCodeLoader: Unable to load native-hadoop library", ""),
    ],
)  # fmt: skip
def test_an_api_server_that_refuses_is_one_line(line: str, words: str) -> None:
    found = refusal(["WARN Utils: Kubernetes master URL uses HTTP instead of HTTPS.", line], MASTER)
    assert found.startswith(words) and bool(found) == bool(words) and "\n" not in found and "Status(" not in found


def test_it_is_the_reason_of_a_start_that_failed(tmp_path: Path) -> None:
    """Pods are asked for when the configuration is already there: Spark itself has no more to say than that it was stopped."""
    log = tmp_path / "spark.log"
    (tmp_path / "spark.start.log").write_text("")
    log.write_text(FAILURE.format(url=URL, what="pods", message=FORBIDDEN, code=403))
    stopped = Exception("java.lang.IllegalStateException: Spark context stopped while waiting for backend")
    assert _reason(log, stopped, MASTER).startswith(f"the API server {URL} refuses (403: pods is forbidden")
    assert _reason(log, stopped, "yarn") == "Spark context stopped while waiting for backend"


def pod(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": status}


def test_what_pods_wait_for_is_in_the_line() -> None:
    pulling = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling\nimage "x"'}}}
    ended = {"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    failed = {"state": {"terminated": {"reason": "Error", "exitCode": 1}}}
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "1 Insufficient cpu.",
    }
    known = {
        'ImagePullBackOff, Back-off pulling image "x"': {"phase": "Pending", "containerStatuses": [pulling]},
        "OOMKilled, exit code 137": {"phase": "Failed", "containerStatuses": [ended]},
        f"Error, {FAILED}": {"phase": "Failed", "containerStatuses": [failed]},
        "no node takes it (1 Insufficient cpu.)": {"phase": "Pending", "conditions": [unscheduled]},
        "Pending": {"phase": "Pending"},
        "it has no state yet": {},
    }
    for words, status in known.items():
        assert described([pod("a", **status)]) == f"pods of executors wait: a: {words}"
    three = [pod(name, phase="Pending") for name in "abc"]
    assert described(three) == "pods of executors wait: a and 2 more: Pending"
    assert described([]) == "there is no pod of an executor"
    line = no_slot(MASTER, described(three[:1]))
    assert line == (
        "Spark has run no task for 15 s: pods of executors wait: a: Pending; it waits for one, Ctrl-C ends it"
    )


def test_pods_that_run_are_named_as_long_as_their_executors_are_not_there() -> None:
    running, pending = pod("a", phase="Running"), pod("b", phase="Pending")
    assert "a: runs, and has not come to the driver; see --conf spark.driver.host" in described([running])
    assert described([running], registered=1) == ""
    assert described([running, pending], registered=1) == "pods of executors wait: b: Pending"


def test_an_image_has_to_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with pytest.raises(WrongUse, match=r"--conf spark\.kubernetes\.container\.image=IMAGE"):
        refuse_without_image(Cluster(MASTER))
    refuse_without_image(Cluster("yarn"))
    refuse_without_image(Cluster(MASTER, {"spark.kubernetes.executor.container.image": "x"}))
    (tmp_path / "spark-defaults.conf").write_text("spark.kubernetes.container.image x\n")
    refuse_without_image(Cluster(MASTER))
