"""Executors on Kubernetes, as the driver sees them: why the API server refuses, and what the pods of executors wait for.

One rule: a line for people, from what the server and the pods themselves report; Spark waits for pods without end and without
a word. In the flow: `pipeline.spark.session` (a start that fails), `pipeline.spark.running` and `hosting` (no task runs).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.errors import WrongUse
from pipeline.spark.properties import users_defaults
from workers.commands.cluster import Cluster

MASTER = "k8s://"
IMAGES = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")
EXECUTORS = "spark-app-selector"  # the label that Spark gives to pods, with the id of its application
RUNS = "runs, and has not come to the driver; see --conf spark.driver.host, and kubectl logs"
FAILED = "exit code 1; if it could not reach the driver, see --conf spark.driver.host; kubectl logs has its reason"
ENDED = "its pods ended as they began; if they could not reach the driver, see --conf spark.driver.host; kubectl logs has their reason"
GIVEN_UP = "Max number of executor failures"  # as Spark has it in its log, before it ends itself without a reason
REFUSED = re.compile(r"Failure executing: \w+ at: (\S+?)/api\S*?\. Message: (.*?)\.? Received status: .*?\bcode=(\d+)")
UNREACHED = re.compile(
    r"(Connection refused|UnknownHostException|NoRouteToHostException|Network is unreachable|[Cc]onnect(?:ion)? timed out)"
)
STRANGE = re.compile(r"PKIX path building failed|unable to find valid certification path|SSLHandshakeException")
NO_NAMESPACE = re.compile(r"namespaces? \\?\"[^\"]*\" not found")


def is_kubernetes(master: str) -> bool:
    """Whether executors are pods."""
    return master.startswith(MASTER)


def refuse_without_image(cluster: Cluster) -> None:
    """Raises WrongUse: without one Spark would ask for pods for ever, and make none."""
    known = {**users_defaults(), **cluster.conf}
    if is_kubernetes(cluster.master) and not any(known.get(name) for name in IMAGES):
        raise WrongUse(
            f"--master {cluster.master}: name the image of the executors with --conf {IMAGES[0]}=IMAGE, one with Spark, Java and "
            "Python of this minor version"
        )


def refusal(lines: Iterable[str], master: str) -> str:
    """Why Spark on Kubernetes did not start, from the lines of its log: what the API server would not do, or how its pods ended; ""
    where they do not name it."""
    url = master.removeprefix(MASTER)
    for line in lines:
        if found := REFUSED.search(line):
            return _refused(found[1], found[2], int(found[3]))
        if STRANGE.search(line):
            return (
                f"the certificate of the API server {url} comes from an authority that is not known here; name that in the "
                "kubeconfig, or with --conf spark.kubernetes.authenticate.caCertFile=FILE"
            )
        if found := UNREACHED.search(line):
            return f"no API server of Kubernetes answers at {url} ({found[1]}); check the address behind {MASTER}"
        if GIVEN_UP in line:
            return ENDED
    return ""


def _refused(url: str, message: str, code: int) -> str:
    if code == 401:
        return (
            f"the API server {url} does not know this user (401); name a kubeconfig in KUBECONFIG, or a token with "
            "--conf spark.kubernetes.authenticate.oauthTokenFile=FILE"
        )
    if code == 403:
        return f"the API server {url} refuses (403: {message}); give this account a Role that allows it"
    if code == 404 and NO_NAMESPACE.search(message):
        return (
            f"{message} on the API server {url}; make it, or name another with --conf spark.kubernetes.namespace=NAME"
        )
    return f"the API server {url} refuses ({code}: {message})"


def waiting(context: Any) -> str:
    """What the pods of a context's executors wait for; "" where that cannot be seen, and on other clusters. Asks the API
    server."""
    from py4j.protocol import Py4JError

    if not is_kubernetes(context.master):
        return ""
    try:
        scala = context._jsc.sc()
        found = scala.schedulerBackend().kubernetesClient().pods().withLabel(EXECUTORS, context.applicationId).list()
        text = context._jvm.io.fabric8.kubernetes.client.utils.Serialization.asJson(found)
        registered = scala.getExecutorMemoryStatus().size() - 1  # the driver is in it
    except (Py4JError, OSError):
        return ""
    return described(json.loads(text).get("items", []), registered)


def described(pods: list[Mapping[str, Any]], registered: int = 0) -> str:
    """Pods, as the API has them, in words. "" where as many run as executors have come to the driver, and no other waits."""
    why: dict[str, list[str]] = {}
    running = 0
    for pod in pods:
        running += pod.get("status", {}).get("phase") == "Running"
        why.setdefault(_why(pod), []).append(pod["metadata"]["name"])
    if running <= registered:
        why.pop(RUNS, None)
        if not why and running:
            return ""
    parts = [f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {words}" for words, names in why.items()]
    return f"pods of executors wait: {'; '.join(parts)}" if parts else "there is no pod of an executor"


def _why(pod: Mapping[str, Any]) -> str:
    status = pod.get("status", {})
    for container in status.get("containerStatuses", []):
        state = container.get("state", {})
        for kind in ("waiting", "terminated"):
            if found := state.get(kind):
                words = [found.get("reason", kind), found.get("message", "")]
                code = found.get("exitCode", "")
                ended = "" if kind == "waiting" else FAILED if code == 1 else f"exit code {code}"
                return ", ".join(" ".join(word.split()) for word in (*words, ended) if word)
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node takes it ({condition.get('message') or condition.get('reason')})"
    if status.get("phase") == "Running":
        return RUNS
    return str(status.get("phase", "it has no state yet"))
