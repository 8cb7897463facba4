# SPDX-License-Identifier: Apache-2.0
"""The public keys of an OIDC issuer (RFC 7517), fetched when they are needed and cached.

A key id that is not cached causes a fetch at once, because issuers rotate keys. Within `MIN_INTERVAL_S` of the last
fetch it causes none; otherwise tokens with invented key ids would make this API call the issuer for each request. If
the issuer is slow, only the request that began the fetch waits for it. Other requests wait until `WAIT_S` after the
fetch began. A key that the issuer no longer lists is used for at most `MAX_AGE_S`, or for `KEEP_S` while the issuer is
unreachable.
"""

import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import jwt

from vgpumgr_api.auth.oidc_settings import checked_url

MAX_AGE_S = 300.0
MIN_INTERVAL_S = 10.0
KEEP_S = 3600.0
WAIT_S = 1.0
TIMEOUT_S = 5.0
"""The timeout for each part of an answer."""

FETCH_S = 10.0
"""How long a request waits for the fetch that it began. A fetch may take longer; until it ends, no other begins."""

DOCUMENT_MAX = 1 << 20
"""The maximum size of an issuer's answer, in bytes."""

RSA_MIN_BITS = 2048
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519"}

log = logging.getLogger("vgpumgr_api.auth.jwks")

Fetch = Callable[[], Mapping[str, Any]]


class IssuerUnreachableError(Exception):
    """The issuer's keys cannot be fetched and the cached ones are too old."""


class UnknownKeyError(Exception):
    """The issuer has no such key for this algorithm. The text is one line."""


class _Try:
    """One fetch from the issuer."""

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.over = threading.Event()


class KeySet:
    """The key cache of one issuer, shared by threads. `clock` counts seconds.

    `fetch` returns the issuer's key set, or raises IssuerUnreachableError.
    """

    def __init__(self, fetch: Fetch, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._guard = threading.Lock()
        self._under_way: _Try | None = None
        self._keys: dict[str, Mapping[str, Any]] = {}
        self._fetched_at: float | None = None
        self._ended_at: float | None = None

    def key(self, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        """Returns the key to check a signature with. Raises IssuerUnreachableError or UnknownKeyError."""
        found = self._find(key_id)
        if found is None or self._age_s() > MAX_AGE_S:
            self._refresh(wait=found is None or self._age_s() > KEEP_S)
            found = self._find(key_id)
        if self._age_s() > KEEP_S:
            raise IssuerUnreachableError
        if found is None:
            raise UnknownKeyError("its key is not one of the issuer's")
        return _usable(found, algorithm)

    def _find(self, key_id: str | None) -> Mapping[str, Any] | None:
        keys = self._keys
        if key_id is None:
            return next(iter(keys.values())) if len(keys) == 1 else None
        return keys.get(key_id)

    def _age_s(self) -> float:
        return float("inf") if self._fetched_at is None else self._clock() - self._fetched_at

    def _refresh(self, *, wait: bool) -> None:
        """Fetches the keys, unless a fetch is running or ended less than `MIN_INTERVAL_S` ago.

        With `wait`, waits for the fetch, and raises IssuerUnreachableError if it takes too long.
        """
        with self._guard:
            trying, patience_s = self._under_way, FETCH_S
            if trying is not None:
                patience_s = trying.began_at + WAIT_S - self._clock() if wait else 0.0
            elif self._ended_at is None or self._clock() - self._ended_at >= MIN_INTERVAL_S:
                trying = self._under_way = _Try(self._clock())
                threading.Thread(target=self._try, args=(trying,), name="jwks", daemon=True).start()
        if trying is not None and not trying.over.wait(max(patience_s, 0.0)) and wait:
            raise IssuerUnreachableError

    def _try(self, trying: _Try) -> None:
        try:
            self._keys = _by_id(self._fetch())
            self._fetched_at = self._clock()
        except IssuerUnreachableError as error:
            log.warning("the keys of the OIDC issuer cannot be fetched: %s", error)
        except Exception:
            log.exception("the keys of the OIDC issuer cannot be fetched: unexpected")
        finally:
            with self._guard:
                self._under_way, self._ended_at = None, self._clock()
            trying.over.set()


def http_fetch(issuer: str, jwks_url: str | None, ca_file: Path | None) -> Fetch:
    """Returns a function that fetches an issuer's keys, through its discovery document if `jwks_url` is None.

    Raises ssl.SSLError or OSError for a CA file that cannot be used.
    """
    context = ssl.create_default_context(cafile=ca_file)

    def fetch() -> Mapping[str, Any]:
        with httpx2.Client(verify=context, timeout=TIMEOUT_S, trust_env=False, follow_redirects=False) as http:
            url = jwks_url
            if url is None:
                found = _document(http, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
                if found.get("issuer") != issuer:
                    raise IssuerUnreachableError("its discovery document names another issuer")
                try:
                    url = checked_url(str(found.get("jwks_uri")))
                except ValueError as error:
                    raise IssuerUnreachableError(f"jwks_uri: {error}") from None
            return _document(http, url)

    return fetch


def _document(http: httpx2.Client, url: str) -> Mapping[str, Any]:
    content = b""
    try:
        with http.stream("GET", url, headers={"Accept": "application/json"}) as response:
            if response.status_code != 200:
                raise IssuerUnreachableError(f"{url} answers {response.status_code}")
            for part in response.iter_bytes():
                content += part
                if len(content) > DOCUMENT_MAX:
                    raise IssuerUnreachableError(f"{url} answers more than {DOCUMENT_MAX} bytes")
        found = json.loads(content)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise IssuerUnreachableError(f"{url}: {str(error) or type(error).__name__}") from None
    except (ValueError, RecursionError):
        raise IssuerUnreachableError(f"{url} does not answer with JSON") from None
    if not isinstance(found, dict):
        raise IssuerUnreachableError(f"{url} does not answer with a JSON object")
    return found


def _by_id(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the public signature keys by id; other keys and malformed entries are left out."""
    listed = document.get("keys")
    found: dict[str, Mapping[str, Any]] = {}
    for number, key in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(key, dict) and key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig":
            found[str(key.get("kid", f"#{number}"))] = key
    return found


def _usable(key: Mapping[str, Any], algorithm: str) -> jwt.PyJWK:
    """Returns the key for exactly this algorithm. Raises UnknownKeyError for a key of another one."""
    if key.get("alg", algorithm) != algorithm or key.get("crv") != _CURVES.get(algorithm):
        raise UnknownKeyError(f"the issuer's key is not for {algorithm}")
    try:
        usable = jwt.PyJWK(dict(key), algorithm=algorithm)
    except (jwt.PyJWTError, ValueError) as error:
        raise UnknownKeyError(f"the issuer's key cannot be used for {algorithm}: {error}") from None
    if getattr(usable.key, "key_size", RSA_MIN_BITS) < RSA_MIN_BITS and key["kty"] == "RSA":
        raise UnknownKeyError(f"the issuer's key has less than {RSA_MIN_BITS} bits")
    return usable
