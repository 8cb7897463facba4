# SPDX-License-Identifier: Apache-2.0
"""The agent's private key, which never leaves this host, and its certificate signing request."""

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


def new_key() -> tuple[str, str]:
    """Return a new private key and a signing request for it, both PEM. The API sets the subject."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private.decode(), request.public_bytes(Encoding.PEM).decode()
