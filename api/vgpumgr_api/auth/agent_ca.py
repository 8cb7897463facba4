# SPDX-License-Identifier: Apache-2.0
"""The certificate authority of hosts' agents: its files, the certificates that it issues, and their content.

A certificate names its host and a credential. That credential's row in the database decides whether the certificate is
still valid, so no revocation list is needed. A restored database also accepts the certificates issued since the backup.
"""

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from uuid import UUID

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE_S = 72 * 3600
"""The default lifetime of a host's certificate."""

CA_LIFE = timedelta(days=10 * 365)
SKEW = timedelta(minutes=5)
"""How far the clock that checks a new certificate may be behind this machine's clock."""

RSA_MIN_BITS = 2048
_HOST, _CREDENTIAL = "urn:vgpumgr:host:", "urn:vgpumgr:credential:"


class CaError(Exception):
    """The files of the authority cannot be used or created. The message is one line."""


class RequestError(Exception):
    """A certificate signing request that is refused. The message is one line."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The content of a client's certificate. `authority`: the key id of our authority that signed the certificate."""

    host_id: UUID
    credential: UUID
    expires_at: datetime
    authority: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class AgentCa:
    """An authority with its `certificate` and `key`. `life_s`: the lifetime of the certificates that it issues.

    `believed`: the authorities whose certificates are accepted: this one, its predecessor and its successor.
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    life_s: int = LIFE_S
    believed: tuple[x509.Certificate, ...] = ()

    @property
    def renew_within_s(self) -> int:
        """The time over which renewals are spread when hosts are asked to renew: 18 minutes for a life of 72 hours."""
        return max(self.life_s // 240, 1)

    @cached_property
    def key_id(self) -> bytes:
        """The id by which issued certificates name the authority's key."""
        return key_id_of(self.certificate)

    def is_former(self, peer: Peer) -> bool:
        """Whether another authority issued this certificate, so that the agent should renew it."""
        return peer.authority != self.key_id

    def sign(self, request: str, *, host_id: UUID, credential: UUID, now: datetime) -> tuple[str, datetime]:
        """Returns a PEM certificate and when it expires. Of the request, only the key is used. Raises RequestError."""
        csr = _parsed(request)
        ends = now + timedelta(seconds=self.life_s)
        names = [x509.UniformResourceIdentifier(f"{_HOST}{host_id}")]
        names.append(x509.UniformResourceIdentifier(f"{_CREDENTIAL}{credential}"))
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(host_id))]))
            .issuer_name(self.certificate.subject)
            .public_key(csr.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(ends)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(csr.public_key()), critical=False)
            .add_extension(_issuer(self.key), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return made.public_bytes(Encoding.PEM).decode(), ends


def load(certificate: Path, key: Path, *, life_s: int = LIFE_S) -> AgentCa:
    """Reads the authority's files. One of the certificates must belong to the key. Raises CaError."""
    try:
        believed = load_all(certificate)
        private = load_pem_private_key(key.read_bytes(), password=None)
    except OSError as error:
        raise CaError(f"{error.filename}: {error.strerror}; create both with: vgpumgr-api create-agent-ca") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CaError(
            f"agent_ca_certificate {certificate}, agent_ca_key {key}: not PEM, or with a passphrase"
        ) from None
    found = [each for each in believed if each.public_key() == private.public_key()]
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not found:
        raise CaError(f"agent_ca_key {key}: not the elliptic-curve key of agent_ca_certificate {certificate}")
    return AgentCa(certificate=found[0], key=private, life_s=life_s, believed=tuple(believed))


def load_all(certificate: Path) -> list[x509.Certificate]:
    """Reads the certificates of authorities. Raises OSError or ValueError."""
    return x509.load_pem_x509_certificates(certificate.read_bytes())


def create(certificate: Path, key: Path, *, now: datetime) -> None:
    """Creates an authority in two new files; only the owner can read the key. Creates no file if it raises CaError."""
    private = write_new_key(key)
    try:
        _write(certificate, self_signed(private, now=now).public_bytes(Encoding.PEM), 0o644)
    except CaError:
        key.unlink()
        raise


def write_new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Writes a new key to a new file that only its owner can read. Raises CaError."""
    private = ec.generate_private_key(ec.SECP256R1())
    _write(path, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    return private


def self_signed(private: ec.EllipticCurvePrivateKey, *, now: datetime) -> x509.Certificate:
    """Returns the certificate of a new authority."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "vgpumgr agents")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .add_extension(_issuer(private), critical=False)
        .sign(private, hashes.SHA256())
    )


def key_id_of(authority: x509.Certificate) -> bytes:
    """Returns the key id by which certificates name this authority."""
    return x509.SubjectKeyIdentifier.from_public_key(authority.public_key()).digest


def peer(der: bytes) -> Peer | None:
    """Returns the content of a certificate that TLS has verified against our authorities; None if not a host's."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        said = names.get_values_for_type(x509.UniformResourceIdentifier)
        [host] = [UUID(each.removeprefix(_HOST)) for each in said if each.startswith(_HOST)]
        [credential] = [UUID(each.removeprefix(_CREDENTIAL)) for each in said if each.startswith(_CREDENTIAL)]
    except (ValueError, x509.ExtensionNotFound):
        return None
    try:
        authority = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except x509.ExtensionNotFound:
        authority = None
    return Peer(host_id=host, credential=credential, expires_at=certificate.not_valid_after_utc, authority=authority)


def _parsed(request: str) -> x509.CertificateSigningRequest:
    try:
        csr = x509.load_pem_x509_csr(request.encode())
        public = csr.public_key()
        signed = csr.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        raise RequestError("not a certificate signing request in PEM") from None
    if not signed:
        raise RequestError("not signed with the key that it is for")
    if isinstance(public, ed25519.Ed25519PublicKey):
        return csr
    if isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name in ("secp256r1", "secp384r1", "secp521r1"):
        return csr
    if isinstance(public, rsa.RSAPublicKey) and public.key_size >= RSA_MIN_BITS:
        return csr
    raise RequestError(f"its key is not one of NIST's curves, Ed25519, or RSA of {RSA_MIN_BITS} bits or more")


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issuer(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise CaError(f"{path} exists; move the files of that authority away first") from None
    except OSError as error:
        raise CaError(f"{path}: {error.strerror}") from None
