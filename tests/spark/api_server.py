"""An API server of Kubernetes on this machine: the real one with its etcd where both are on the PATH, else the one that Spark's
client is tested with (fabric8's, from Maven Central), which stores and watches objects and checks no rights.

One rule: what is seen of it is HTTP, as any client sees it. All of it lives in the network of the thread that starts it. For tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from state.log.kafka import broker
from tests.spark.jars import SPARK, fetched, version_beside

DEADLINE_S = 90.0
ADMIN = "admin"  # its token, of a server that lives for one test
MERGE = "application/merge-patch+json"
PORT = 16443
PROGRAMS = ("kube-apiserver", "etcd")


class Refused(Exception):
    """The server's answer to a request that it does not carry out."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Api:
    """A client: one identity at one server."""

    def __init__(self, url: str, token: str = "", certificate: Path | None = None) -> None:
        self.url = url
        self.token = token
        self.certificate = certificate
        self._tls = ssl.create_default_context(cafile=certificate) if certificate is not None else None

    def __call__(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Raises Refused, OSError."""
        headers = {"Content-Type": kind} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20, context=self._tls) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode(errors="replace")) from None

    def kubeconfig(self, path: Path) -> Path:
        """A file that lets other clients be this one."""
        cluster: dict[str, str] = {"server": self.url}
        if self.certificate is not None:
            cluster["certificate-authority"] = str(self.certificate)
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": self.token}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "user"}}],
            "current-context": "here",
        }
        path.write_text(json.dumps(found))  # which is YAML
        return path


def is_real() -> bool:
    """Whether rights and names are checked, as a cluster does."""
    return all(shutil.which(program) for program in PROGRAMS)


class ApiServer:
    """Started at an address; `admin` may do everything."""

    def __init__(self, home: Path, address: str) -> None:
        self.home = home
        self.address = address
        self.admin: Api
        self._started: list[subprocess.Popen[bytes]] = []
        home.mkdir(parents=True)

    def start(self) -> None:
        self._real() if is_real() else self._of_fabric8()
        deadline = time.monotonic() + DEADLINE_S
        while not self._answers():
            ended = [one.args for one in self._started if one.poll() is not None]
            assert not ended and time.monotonic() < deadline, f"{ended}: {self.log()}"
            time.sleep(0.1)  # between two looks: another program has no event

    def _answers(self) -> bool:
        with contextlib.suppress(Refused, OSError):
            return bool(self.admin("GET", "/api/v1/pods")["kind"])
        return False

    def _real(self) -> None:
        openssl = ["openssl", "genpkey", "-algorithm", "RSA", "-out", str(self.home / "sa.key")]
        subprocess.run(openssl, check=True, capture_output=True)
        (self.home / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n')
        self._run("etcd", "etcd", "--data-dir", str(self.home / "etcd"), "--unsafe-no-fsync")
        self._run(
            "api",
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={PORT}",
            f"--cert-dir={self.home}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.home / 'sa.key'}",
            f"--service-account-signing-key-file={self.home / 'sa.key'}",
            f"--token-auth-file={self.home / 'tokens.csv'}",
            "--authorization-mode=RBAC",
        )
        certificate = self.home / "apiserver.crt"  # it makes one, which is also its authority
        deadline = time.monotonic() + DEADLINE_S
        while not certificate.exists():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)
        self.admin = Api(f"https://{self.address}:{PORT}", ADMIN, certificate)

    def _of_fabric8(self) -> None:
        """Driven through py4j, which PySpark brings: no compiler is needed."""
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        path = os.pathsep.join([f"{jars()}/*", f"{SPARK}/jars/*"])
        [py4j] = (SPARK / "jars").glob("py4j-*.jar")
        with (self.home / "api.log").open("ab") as out:
            port = launch_gateway(
                classpath=path,
                jarpath=str(py4j),
                java_path=str(broker.java()),
                javaopts=["-Xmx128m"],
                die_on_exit=True,
                redirect_stdout=out,
                redirect_stderr=out,
            )
        java = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        mock = java.jvm.io.fabric8.mockwebserver
        crud = java.jvm.io.fabric8.kubernetes.client.server.mock.KubernetesCrudDispatcher()
        server = java.jvm.io.fabric8.kubernetes.client.server.mock.KubernetesMockServer(
            mock.Context(), mock.MockWebServer(), java.jvm.java.util.HashMap(), crud, False
        )
        server.init(java.jvm.java.net.InetAddress.getByName(self.address), PORT)
        self._java = java
        self.admin = Api(f"http://{self.address}:{PORT}")

    def _run(self, name: str, *command: str) -> None:
        with (self.home / f"{name}.log").open("ab") as out:
            self._started.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.home)
            )

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2_000:] for path in self.home.glob("*.log"))

    def token(self, namespace: str, account: str) -> Api:
        """A client that is a service account."""
        if not is_real():
            return self.admin
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        made = self.admin("POST", path, asked)["status"]["token"]
        return Api(self.admin.url, made, self.admin.certificate)

    def stop(self) -> None:
        if java := getattr(self, "_java", None):
            java.shutdown()
        for process in reversed(self._started):
            process.kill()  # what it keeps is of no use after it
            process.wait()


def jars() -> Path:
    """Fabric8's server, of the version of Spark's own client."""
    version = version_beside("kubernetes-client-api")
    return fetched(f"kubernetes-server-mock-{version}", ("io.fabric8", "kubernetes-server-mock", version, []))
