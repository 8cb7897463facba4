# SPDX-License-Identifier: Apache-2.0
"""An OIDC issuer: a TLS server in a thread, and its signing keys, which the test controls.

It serves a directory, reads the file again for each request, and records each request in ``requests``. So a test
rotates keys with `publish` and counts the requests.
"""

import contextlib
import functools
import http.server
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "vgpumgr"


@functools.cache
def private_key(kind: str, number: int = 0) -> Any:
    """Returns the same key for the same arguments, because RSA keys take long to generate."""
    if kind.startswith("rsa"):
        return rsa.generate_private_key(public_exponent=65537, key_size=int(kind.removeprefix("rsa")))
    curves = {"p256": ec.SECP256R1(), "p384": ec.SECP384R1()}
    return ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(curves[kind])


def public_jwk(key: Any, **members: Any) -> dict[str, Any]:
    kinds = ((rsa.RSAPrivateKey, RSAAlgorithm), (ec.EllipticCurvePrivateKey, ECAlgorithm))
    algorithm: Any = next((each for kind, each in kinds if isinstance(key, kind)), OKPAlgorithm)
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), "use": "sig", **members}


@dataclass
class Issuer:
    """`keys`: the signing keys by id. They take effect once `publish` has been called."""

    directory: Path
    url: str
    keys: dict[str, Any] = field(default_factory=lambda: {"one": private_key("rsa2048")})

    @property
    def ca_file(self) -> Path:
        return self.directory / "issuer.crt"

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Returns the table ``[oidc]``."""
        roles = {
            "admin": ["cloud-admins"],
            "operator": ["cloud-operators"],
            "tenant-admin": ["owners"],
            "viewer": ["auditors"],
            "tenant-viewer": ["guests"],
        }
        made = {"issuer": self.url, "audience": AUDIENCE, "ca_file": str(self.ca_file), "roles": roles}
        return made | changes

    def publish(self, **members: Any) -> None:
        keys = [public_jwk(key, kid=name, **members) for name, key in self.keys.items()]
        self.put("jwks.json", {"keys": keys})

    def put(self, path: str, document: Any) -> None:
        file = self.directory / "www" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(document if isinstance(document, str) else json.dumps(document))

    def requests(self) -> list[str]:
        log = self.directory / "requests"
        return log.read_text().split() if log.exists() else []

    def token(self, *groups: str, key: str = "one", header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Returns a token with valid claims, except for `groups` and the changes in `claims`; None removes a claim."""
        now = int(time.time())
        said = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 300, "groups": groups}
        said = {name: value for name, value in (said | claims).items() if value is not None}
        signing = self.keys[key]
        algorithms = {rsa.RSAPrivateKey: "RS256", ec.EllipticCurvePrivateKey: "ES256"}
        default = next((each for kind, each in algorithms.items() if isinstance(signing, kind)), "EdDSA")
        header = {"kid": key, **(header or {})}
        algorithm = header.pop("alg", default)
        return jwt.encode(said, signing, algorithm=algorithm, headers=header)


@contextlib.contextmanager
def issuing(directory: Path) -> Iterator[Issuer]:
    """Runs an issuer until the block ends; its discovery document and keys are published."""
    directory.mkdir()
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", directory / "issuer.key"]
    subprocess.run([*make.split(), *files, "-out", directory / "issuer.crt"], check=True, capture_output=True)
    (directory / "www").mkdir()
    server = _server(directory)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        issuer = Issuer(directory, f"https://127.0.0.1:{server.server_address[1]}")
        issuer.put(".well-known/openid-configuration", {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/jwks.json"})
        issuer.publish()
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _server(directory: Path) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, *_: Any) -> None:
            with (directory / "requests").open("a") as log:
                log.write(f"{self.path}\n")

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(directory / "www"))
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "issuer.crt", directory / "issuer.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server
