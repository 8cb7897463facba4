# SPDX-License-Identifier: Apache-2.0
"""Replaces the agents' authority in three steps. Every API process must be restarted after each step.

`begin` creates another authority, which is accepted but does not issue certificates yet. `switch` makes the new
authority issue the certificates. `end` stops accepting the former authority. Each step replaces one file atomically, or
creates the key file of the next authority, and can be repeated after an interruption.
"""

import contextlib
import os
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from vgpumgr_api.auth.agent_ca import CaError, key_id_of, load, load_all, self_signed, write_new_key


def next_key(key: Path) -> Path:
    """Returns the path where the key of the next authority is kept until `switch`."""
    return key.with_name(f"{key.name}.next")


def begin(certificate: Path, key: Path, *, now: datetime) -> None:
    """Adds the certificate of another authority; its key is stored in a file beside `key`. Raises CaError."""
    ca = load(certificate, key)
    coming = next_key(key)
    if not coming.exists():
        if len(ca.believed) > 1:
            raise CaError(f"{certificate} still has a former authority; end that rotation first")
        write_new_key(coming)
    private = _private(coming)
    if any(each.public_key() == private.public_key() for each in ca.believed):
        raise CaError(f"a rotation has begun already, and {coming} exists: restart the APIs, then switch")
    _replace(certificate, [*ca.believed, self_signed(private, now=now)])


def switch(certificate: Path, key: Path, *, now: datetime) -> None:
    """Replaces the present key with the next key; the present key is lost. Raises CaError."""
    coming = next_key(key)
    if not coming.exists():
        raise CaError(f"{coming} does not exist: begin the rotation first, or copy it from where it was begun")
    load(certificate, coming)
    # `end` waits until the lifetime of a certificate has passed since this modification time.
    os.utime(coming, (now.timestamp(), now.timestamp()))
    coming.rename(key)
    _sync(key.parent)


def end(certificate: Path, key: Path, *, life_s: int, now: datetime, force: bool = False) -> None:
    """Removes the former authority. Raises CaError.

    Unless `force`, it also raises CaError while certificates of the former authority may be valid.
    """
    if next_key(key).exists():
        raise CaError(f"{next_key(key)} exists: the rotation has not been switched yet")
    ca = load(certificate, key)
    if len(ca.believed) == 1:
        raise CaError(f"{certificate} has no former authority; there is nothing to end")
    over = datetime.fromtimestamp(key.stat().st_mtime, now.tzinfo) + timedelta(seconds=life_s)
    if now < over and not force:
        raise CaError(
            f"agents may have certificates of the former authority until {over:%Y-%m-%d %H:%M:%S} UTC; wait for that,"
            " or give --force, and those that have not renewed will have to be re-enrolled"
        )
    _replace(certificate, [ca.certificate])


def describe(certificate: Path, key: Path) -> str:
    """Says which authorities are accepted, in the order of the file, and which one issues certificates."""
    ca = load(certificate, key)
    return "\n".join(
        f"{_name(each)} until {each.not_valid_after_utc:%Y-%m-%d}"
        + (", issues certificates" if each == ca.certificate else ", is accepted")
        for each in load_all(certificate)
    )


def _name(certificate: x509.Certificate) -> str:
    return f"authority {key_id_of(certificate).hex()[:16]}"


def _private(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        private = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise CaError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise CaError(f"{path}: not a key in PEM; move it away and begin again") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise CaError(f"{path}: not the key of an elliptic curve; move it away and begin again")
    return private


def _replace(path: Path, certificates: list[x509.Certificate]) -> None:
    """Replaces the file atomically, keeping its mode and owner."""
    made = path.with_name(f"{path.name}.new")
    try:
        had = path.stat()
        descriptor = os.open(made, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, had.st_mode & 0o777)
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, had.st_uid, had.st_gid)
            file.write(b"".join(each.public_bytes(Encoding.PEM) for each in certificates))
            file.flush()
            os.fsync(descriptor)
        made.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise CaError(f"{error.filename or path}: {error.strerror}") from None


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
