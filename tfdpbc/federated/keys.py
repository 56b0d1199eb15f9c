"""Certificates and keys: a certificate authority of the server's own, and a key pair for each client.

`cryptography` comes with Flower (extra `federated`).
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tfdpbc import _validate
from tfdpbc.errors import FederatedError
from tfdpbc.federated import files
from tfdpbc.federated.flower_missing import explain
from tfdpbc.federated.messages import is_client_name

CA, CERTIFICATE, PRIVATE = "ca.pem", "server.pem", "server.key"
DAYS = 365
_RENEW = "where the server runs, remove its folder `certificates` for new ones, and give ca.pem to the clients again"


def make_certificates(folder: Any, hosts: Iterable[str]) -> None:
    """Writes `ca.pem` (for all clients), `server.pem` and `server.key` (0600). The authority's own key is not kept.

    Args:
      folder: where; nothing in it is replaced.
      hosts: names and addresses under which clients reach the server.

    Raises:
      FileExistsError: there is a server key already.
      FederatedError: Flower is not installed.
    """
    with explain():
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(name: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def certificate(subject: str, key: Any) -> Any:
        begin = _now() - datetime.timedelta(minutes=5)  # clocks differ
        made = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named("tfdpbc federation"))
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return made.not_valid_before(begin).not_valid_after(begin + datetime.timedelta(days=DAYS))

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    own = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    usage = dict.fromkeys(
        ("content_commitment", "data_encipherment", "encipher_only", "decipher_only", "key_agreement"), False
    ) | {"key_encipherment": False}
    root = (
        certificate("tfdpbc federation", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(**usage, digital_signature=False, key_cert_sign=True, crl_sign=True), critical=True
        )
        .add_extension(own, critical=False)
        .sign(authority, hashes.SHA384())
    )
    leaf = (
        certificate("tfdpbc server", server)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(x509, host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(server.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
        .sign(authority, hashes.SHA384())
    )
    files.write_secret(folder / PRIVATE, _pem(serialization, server))
    (folder / CA).write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / CERTIFICATE).write_bytes(leaf.public_bytes(serialization.Encoding.PEM))


def make_node_key(folder: Any, client: str) -> tuple[Path, Path]:
    """A client's key pair: ``CLIENT.key`` (0600, stays with the client) and ``CLIENT.pub`` (for the server).

    Raises:
      ValueError: `client` cannot name a client.
      FileExistsError: there is one already.
      FederatedError: Flower is not installed.
    """
    if not is_client_name(client):
        _validate.fail("client", "1 to 64 letters, digits and ._-, beginning with a letter or digit", client)
    with explain():
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / f"{client}.key", folder / f"{client}.pub"
    files.write_secret(
        private,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return private, public


def read_private(path: Any) -> Any:
    """A client's private key, as `make_node_key` wrote it.

    Raises:
      FederatedError: it is none, or others than its owner may read it.
    """
    with explain():
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    path = Path(path)
    if path.stat().st_mode & 0o077:
        raise FederatedError(
            f"--key: others than its owner may read {path}; chmod 600 it, and make a new one if they did"
        )
    return _curve_key("--key", path, load_ssh_private_key, None)


def read_public(path: Any) -> Any:
    """A client's public key, as `make_node_key` wrote it.

    Raises:
      FederatedError: it is none.
    """
    with explain():
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    return _curve_key("--keys", Path(path), load_ssh_public_key)


def _curve_key(option: str, path: Path, load: Callable[..., Any], *more: Any) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = load(path.read_bytes(), *more)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        raise FederatedError(f"{option}: {path} is not what `tfdpbc federate key` makes")
    return key


def check_certificate(path: Any, hosts: Iterable[str] = ()) -> None:
    """That a certificate can be used now, and is for these hosts.

    Raises:
      FederatedError: it cannot, or is not.
    """
    with explain():
        from cryptography import x509
    path = Path(path)
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise FederatedError(f"{path} is no certificate") from error
    if found.not_valid_after_utc < _now():
        raise FederatedError(f"{path} ended on {found.not_valid_after_utc:%Y-%m-%d}; {_RENEW}")
    if hosts := set(hosts):
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if missing := sorted(hosts - {str(one.value) for one in names}):
            raise FederatedError(f"{path} is not for {', '.join(missing)}; {_RENEW}")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _host(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(serialization: Any, key: Any) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
