"""Other machines: what listens to them has TLS, and a proof is good for the certificate that its client has seen only."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.coordinator.connection import ConnectionEnded
from orchestrator.coordinator.handshake import Credentials, NotTrusted
from orchestrator.coordinator.listener import Listener, Peer
from orchestrator.coordinator.tls import check_signed, make_tls
from orchestrator.coordinator.transport import connect
from orchestrator.errors import WrongUse
from tests.group.coordinators import CREDENTIALS
from workers.connection.credentials import in_renewal
from workers.spec import InstanceSpec

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
HOST = "127.1"  # this machine, in a form that is not taken for it: as the address of a network card


def certificate(folder: Path, name: str) -> tuple[str, str]:
    """A certificate that has signed itself, and its key."""
    paths = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*words, "-out", paths[0], "-keyout", paths[1], "-days", "2", "-subj", f"/CN={name}"],
        check=True,
        capture_output=True,
    )
    return paths


def with_tls(folder: Path, name: str, authority: str = "") -> Credentials:
    return replace(CREDENTIALS, tls=make_tls(*certificate(folder, name), authority))


class Echo:
    """A listener that says back what it gets."""

    def __init__(self, credentials: Credentials) -> None:
        self.listener = Listener(credentials, self.accept)

    async def accept(self, peer: Peer) -> None:
        peer.connection._transport.write(b"\0\0\0\4" + await peer.connection.receive())
        await peer.connection.receive()

    async def open(self) -> str:
        address = await self.listener.open(HOST)
        assert address.startswith("tls://")
        return address


async def test_with_the_secret_any_certificate_does(tmp_path: Path) -> None:
    echo = Echo(with_tls(tmp_path, "fleet"))
    async with asyncio.timeout(20):
        link = await connect(await echo.open(), CREDENTIALS)
        link._transport.write(b"\0\0\0\4text")
        assert await link.receive() == b"text"
        await link.close()
        await link.close()  # as whoever cleans up twice
    await echo.listener.close()


async def test_a_stranger_in_between_passes_nothing_on(tmp_path: Path) -> None:
    """It has a certificate of its own, and hands every byte of the handshake from one side to the other."""
    echo = Echo(with_tls(tmp_path, "fleet"))
    address = await echo.open()
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    stranger.load_cert_chain(*certificate(tmp_path, "stranger"))
    port = int(address.rpartition(":")[2])
    outward = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outward.check_hostname, outward.verify_mode = False, ssl.CERT_NONE

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port, ssl=outward)

        async def pass_on(one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
            while data := await one.read(1_000):
                other.write(data)
            other.close()

        await asyncio.gather(pass_on(reader, back), pass_on(there, writer))

    between = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=stranger)
    async with asyncio.timeout(20):
        with pytest.raises(NotTrusted, match="does not have this secret"):
            await connect(f"tls://127.0.0.1:{between.sockets[0].getsockname()[1]}", CREDENTIALS)
    between.close()
    await echo.listener.close()


async def test_with_an_authority_both_ends_show_its_certificates(tmp_path: Path) -> None:
    own, key = certificate(tmp_path, "own")
    mutual = replace(CREDENTIALS, tls=make_tls(own, key, own))
    echo = Echo(mutual)
    address = await echo.open()
    async with asyncio.timeout(20):
        await (await connect(address, mutual)).close()
        with pytest.raises(ConnectionEnded, match="--tls-cert"):
            await connect(address, CREDENTIALS)
        stranger, stranger_key = certificate(tmp_path, "stranger")
        with pytest.raises(WrongUse, match=r"stranger.pem is not taken by --tls-ca .*own.pem"):
            await connect(address, replace(CREDENTIALS, tls=make_tls(stranger, stranger_key, own)))
        both = tmp_path / "both.pem"
        both.write_text(Path(own).read_text() + Path(stranger).read_text())
        with pytest.raises(ConnectionEnded, match=r"or its --tls-ca has not signed --tls-cert .*stranger.pem"):
            await connect(address, replace(CREDENTIALS, tls=make_tls(stranger, stranger_key, str(both))))
        other = Echo(with_tls(tmp_path, "other"))
        with pytest.raises(NotTrusted, match="is not one of --tls-ca"):
            await connect(await other.open(), mutual)
        await other.listener.close()
    await echo.listener.close()


async def test_certificates_are_renewed_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At both ends, of all three files. Where they do not belong together yet, those before go on, and it is logged."""
    own, key = certificate(tmp_path, "own")
    server, client = [replace(CREDENTIALS, tls=make_tls(own, key, own)) for _ in range(2)]
    echo = Echo(server)
    address = await echo.open()
    async with asyncio.timeout(20):
        first = await connect(address, client)
        shown = first.binding()
        new, new_key = certificate(tmp_path, "new")
        Path(new).replace(own)
        between = await connect(address, client)  # the certificate is there, its key is not
        assert between.binding() == shown
        assert "renewed certificates are not used" in caplog.text
        Path(new_key).replace(key)
        after = await connect(address, client)
        assert after.binding() not in (b"", shown)
        first._transport.write(b"\0\0\0\4text")
        assert await first.receive() == b"text", "a connection that lasts goes on"
        for link in (first, between, after):
            await link.close()
    await echo.listener.close()


async def test_a_renewed_pair_that_the_authority_does_not_take_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No peer came to an instance that took it: not its own workers, and it said nothing. A start refuses the same files."""
    own, key = certificate(tmp_path, "own")
    authority = shutil.copy(own, tmp_path / "ca.pem")
    server, client = [replace(CREDENTIALS, tls=make_tls(own, key, str(authority))) for _ in range(2)]
    echo = Echo(server)
    address = await echo.open()
    async with asyncio.timeout(20):
        first = await connect(address, client)
        shown = first.binding()
        for file, new in zip((own, key), certificate(tmp_path, "stranger"), strict=True):
            Path(new).replace(file)
        for _ in range(2):
            between = await connect(address, client)
            assert between.binding() == shown
            await between.close()
        assert [r.getMessage().count("is not taken by --tls-ca") for r in caplog.records] == [1, 1], caplog.text
        authority.write_text(authority.read_text() + Path(own).read_text())
        after = await connect(address, client)
        assert after.binding() not in (b"", shown)
        await after.close()
        await first.close()
    await echo.listener.close()


def test_an_expired_certificate_is_to_be_renewed(tmp_path: Path) -> None:
    """It was blamed on the authority."""
    authority, signer = certificate(tmp_path, "ca")
    own, key, asked = (str(tmp_path / name) for name in ("own.pem", "own.key", "own.csr"))
    for words in (
        ["req", "-new", "-key", signer, "-subj", "/CN=own", "-out", asked],
        [
            "x509",
            "-req",
            "-in",
            asked,
            "-CA",
            authority,
            "-CAkey",
            signer,
            "-set_serial",
            "7",
            "-days",
            "-1",
            "-out",
            own,
        ],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    shutil.copy(signer, key)
    tls = make_tls(own, key, authority)
    assert tls is not None
    with pytest.raises(WrongUse, match=r"own.pem is not taken by --tls-ca .*has expired.*; renew it"):
        check_signed(tls)


def test_a_certificate_that_its_own_authority_has_not_signed(tmp_path: Path) -> None:
    """`run` refuses it: it listened, and no one of its fleet, its own workers among them, ever came to it."""
    (own, key), (other, _) = certificate(tmp_path, "own"), certificate(tmp_path, "other")
    for authority in ("", own):
        tls = make_tls(own, key, authority)
        assert tls is not None
        check_signed(tls)
    tls = make_tls(own, key, other)
    assert tls is not None
    with pytest.raises(WrongUse, match=r"own.pem is not taken by --tls-ca .*other.pem"):
        check_signed(tls)


async def test_a_process_that_starts_between_a_new_certificate_and_its_key_waits_for_it(tmp_path: Path) -> None:
    """What is wrong otherwise is reported at once, and a pair that never fits in the end."""
    own, key = certificate(tmp_path, "own")
    new, new_key = certificate(tmp_path, "new")
    Path(new).replace(own)
    spec = InstanceSpec("bank:app", "bank", "i1", "memory:", "state")
    tries = []

    def make(_: InstanceSpec) -> Credentials:
        tries.append(1)
        if len(tries) == 2:
            Path(new_key).replace(key)
        return replace(CREDENTIALS, tls=make_tls(own, key, ""))

    assert (await in_renewal(make, spec)).tls is not None and len(tries) == 2
    with pytest.raises(WrongUse, match="go together"):
        await in_renewal(lambda _: replace(CREDENTIALS, tls=make_tls(own, "", "")), spec)


async def test_an_open_address_without_tls_is_neither_listened_on_nor_connected_to() -> None:
    async def nobody(_: Peer) -> None: ...

    with pytest.raises(WrongUse, match="needs TLS; give --tls-cert and --tls-key"):
        await Listener(CREDENTIALS, nobody).open(HOST)
    with pytest.raises(WrongUse, match="without TLS; it is not used"):
        await connect("192.0.2.1:9", CREDENTIALS)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("a.pem", "", ""), "go together"),
        (("", "a.key", ""), "go together"),
        (("no.pem", "no.key", ""), "cannot be used"),
        (("", "", "no.pem"), "cannot be read"),
    ],
)
def test_files_that_are_not_there(words: tuple[str, str, str], problem: str) -> None:
    with pytest.raises(WrongUse, match=problem):
        make_tls(*words)
