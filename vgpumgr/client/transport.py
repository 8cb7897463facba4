# SPDX-License-Identifier: Apache-2.0
"""One request and its answer: the bearer token, idempotency keys, bounded retries, and errors in words.

After a lost connection the request is sent again, with the same Idempotency-Key, but only if sending it twice has the
same effect as sending it once. A request that was not carried out is always sent again: no connection was made, or the
API answered that it is busy (408, 429, 503). The token appears in no message and in no repr.
"""

import contextlib
import ipaddress
import re
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ValidationError

from vgpumgr.errors import ApiAnswerError, ApiError, ApiUnreachableError, ArgumentError, SettingsError
from vgpumgr.wire.common import Answer as Tagged
from vgpumgr.wire.problem import Problem

if TYPE_CHECKING:
    import httpx2

PAUSES_S = (0.1, 0.3, 0.9)
"""Waits between attempts; one attempt more than there are waits."""

RETRY_AFTER_MAX_S = 10.0
"""The longest wait before another attempt that a busy API may request."""

Answer = Iterator[bytes]
Model = TypeVar("Model", bound=BaseModel)
Params = Mapping[str, str | int | None]
Match = str | int
"""The version that a change is based on: the ETag of an answer, or the generation of an object in a list."""

_TOKEN = re.compile(r"[\x21-\x7e]+")
_KEY = re.compile(r"[!-~]{1,255}")
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""OpenSSL's reasons when it receives plain text instead of TLS."""
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def segment(value: object) -> str:
    """Return a name or UUID as one segment of a path. ArgumentError for a text that is no object's name."""
    text = str(value)
    if not _SEGMENT.fullmatch(text) or len(text) > 255:
        raise ArgumentError(
            f"{text[:80]!r} is not a name: letters, digits, '-', '.', ':' and '_', a letter or digit first"
        )
    return quote(text, safe="")


class Transport:
    """A connection to one API. Threads may share it. `certificate_file`: PEM, key and certificate to show in TLS.

    SettingsError for an unusable URL, token or file, and for a token over http:// to another machine. `transport`:
    httpx2's, for tests.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        ca_file: str | None = None,
        certificate_file: str | None = None,
        timeout_s: float = 30.0,
        transport: "httpx2.BaseTransport | None" = None,
        sleep: Callable[[float], None] = time.sleep,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        import httpx2

        self.url = _checked_url(url)
        if token is not None and not _TOKEN.fullmatch(token):
            raise SettingsError("the token is empty, or has characters that a token cannot have; check the token file")
        headers = {"Accept": "application/json", "User-Agent": "vgpumgr"}
        if token is not None:
            refuse_clear_text(self.url)
            headers["Authorization"] = f"Bearer {token}"
        self._sleep = sleep
        self._pauses_s = tuple(pauses_s)
        self._timeout_s = timeout_s
        # trust_env is off, because a proxy of the environment must not see the token.
        self._http = httpx2.Client(
            base_url=self.url,
            headers=headers,
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
            verify=_verify(self.url, ca_file, certificate_file),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        kind: type[Model],
        *,
        body: BaseModel | None = None,
        params: Params | None = None,
        if_match: Match | None = None,
        idempotency_key: str | None = None,
        repeatable: bool = True,
        timeout_s: float | None = None,
    ) -> Model | None:
        """Return the answer, None for an empty one. ApiError, ApiUnreachableError, ApiAnswerError.

        `repeatable` False: a second request would not have the same effect, so it is not sent again after a lost
        connection. `idempotency_key`: the key of a POST; by default this call makes a new key.
        """
        response, repeated = self._attempts(
            method,
            path,
            content=None if body is None else body.model_dump_json(exclude_unset=method == "PATCH").encode(),
            params={name: value for name, value in (params or {}).items() if value is not None},
            headers=_headers(method, if_match, idempotency_key, has_body=body is not None),
            repeatable=repeatable,
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
        )
        if response.status_code == 204 or (response.is_success and not response.content):
            return None
        if response.is_success:
            return self._parsed(response, kind)
        raise self._refusal(response, repeated=repeated)

    @contextlib.contextmanager
    def stream(self, path: str, *, params: Params, headers: Mapping[str, str], silence_s: float) -> "Iterator[Answer]":
        """Make one attempt at an endless answer, and yield its pieces. ApiError, ApiUnreachableError, ApiAnswerError.

        Raises ApiUnreachableError also if nothing arrives for `silence_s`, or if the connection ends in the middle.
        """
        import httpx2

        timeout = httpx2.Timeout(self._timeout_s, read=silence_s)
        given = {name: value for name, value in params.items() if value is not None}
        try:
            with self._http.stream("GET", path, params=given, headers=dict(headers), timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise self._refusal(response)
                yield response.iter_bytes()
        except httpx2.TransportError as error:
            raise self._unreachable(error) from None
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise ApiAnswerError(f"{self.url}: the answer is not valid HTTP: {_words(error)}") from None

    def pause(self, pause_s: float) -> None:
        """Wait, in the same way as between the attempts of a request."""
        self._sleep(pause_s)

    def demand(self, method: str, path: str, kind: type[Model], **options: Any) -> Model:
        """Like `call`, for routes that never answer with an empty body."""
        answer = self.call(method, path, kind, **options)
        if answer is None:
            raise ApiAnswerError(f"{self.url}{path}: the answer is empty; check that this is the URL of a vgpumgr API")
        return answer

    def _attempts(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None,
        params: Mapping[str, str | int],
        headers: Mapping[str, str],
        repeatable: bool,
        timeout_s: float,
    ) -> "tuple[httpx2.Response, bool]":
        """Return the answer, and whether the answer to an earlier attempt was lost."""
        import httpx2

        repeated = False
        for pause_s in (*self._pauses_s, None):
            try:
                response = self._http.request(
                    method, path, content=content, params=params, headers=dict(headers), timeout=timeout_s
                )
            except httpx2.ConnectError as error:
                # Nothing was sent. After a TLS failure there is no other attempt, which would fail in the same way.
                if pause_s is None or _tls(error):
                    raise self._unreachable(error) from None
            except httpx2.TimeoutException as error:
                sent = not isinstance(error, (httpx2.ConnectTimeout, httpx2.PoolTimeout))
                raise self._unreachable(error, sent=sent and method != "GET") from None
            except httpx2.TransportError as error:
                if pause_s is None or not repeatable:
                    raise self._unreachable(error, sent=method != "GET") from None
                repeated = True
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise ApiAnswerError(f"{self.url}: the answer is not valid HTTP: {_words(error)}") from None
            else:
                if response.status_code not in (408, 429, 503) or pause_s is None:
                    return response, repeated
                wanted_s = retry_after_s(response.headers.get("retry-after", ""))
                if wanted_s > RETRY_AFTER_MAX_S:
                    return response, repeated
                self._sleep(max(wanted_s, pause_s))
                continue
            self._sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")  # pragma: no cover

    def _unreachable(self, error: Exception, *, sent: bool = False) -> ApiUnreachableError:
        """`sent`: the request may have been carried out."""
        import httpx2

        if reason := _tls(error):
            what, todo = f"TLS failed: {reason}", "check the URL's host name and the CA file"
            if reason in _NO_TLS:
                what, todo = "the server does not speak TLS", "check host and port; an API without TLS is reachable"
                todo += " only on its own machine, with a URL that begins with http://"
        elif isinstance(error, httpx2.TimeoutException):
            what, todo = "no answer in time", "check the network, and whether the API is overloaded"
            if sent:
                todo += "; check with `get` whether the request was carried out before you repeat it"
        elif isinstance(error, httpx2.ConnectError):
            what, todo = _words(error), "check that the API runs there, the URL and the network"
        else:
            what, todo = "the connection was lost", "check that the API runs there, and try again"
            if sent:
                todo = "check with `get` whether the request was carried out, then try again"
            if self.url.startswith("http:"):
                todo = f"if the API there speaks TLS, give https:// instead of http://; otherwise {todo}"
        return ApiUnreachableError(f"{self.url}: {what}; {todo}")

    def _parsed(self, response: "httpx2.Response", kind: type[Model]) -> Model:
        try:
            answer = kind.model_validate_json(response.content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ApiAnswerError(
                f"{self.url} answered {response.status_code} with something other than a {kind.__name__}"
                f" ({where + ': ' if where else ''}{first['msg']}); check the URL, and that CLI and API are of"
                " the same version"
            ) from None
        if isinstance(answer, Tagged):
            answer.tagged(response.headers.get("etag", ""))
        return answer

    def _refusal(
        self, response: "httpx2.Response", *, repeated: bool = False
    ) -> ApiError | ApiUnreachableError | ApiAnswerError:
        try:
            problem = Problem.model_validate_json(response.content)
            wanted_s = retry_after_s(response.headers.get("retry-after", ""))
            return ApiError(problem, retry_after_s=wanted_s, repeated=repeated)
        except ValidationError:
            pass
        if response.status_code in (502, 503, 504):
            return ApiUnreachableError(
                f"{self.url}: a proxy before the API answered {response.status_code}; check that the API runs"
            )
        return ApiAnswerError(
            f"{self.url} answered {response.status_code} without a vgpumgr problem document;"
            " check that this is the URL of a vgpumgr API"
        )


def retry_after_s(value: str) -> float:
    """Return the seconds of a Retry-After header, 0 if it has another form."""
    return float(value) if re.fullmatch(r"[0-9]{1,9}", value) else 0.0


def refuse_clear_text(url: str) -> None:
    """Refuse a URL that would send a token in clear text to another machine. SettingsError."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise SettingsError(f"{url} would carry the token in clear text; use https:// for another machine")


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or 0 < parts.port < 65536
    except ValueError:
        parts, port_ok = urlsplit(""), False
    if parts.scheme == "unix":
        raise SettingsError(
            f"{url[:200]!r}: the Unix socket of an API is for a proxy on its machine; give the proxy's URL, like"
            " https://vgpumgr.example"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok or not url.isprintable():
        raise SettingsError(f"{url[:200]!r} is not the URL of an API; give one like https://vgpumgr.example:8470")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise SettingsError("an API's URL has no user, password, query or fragment; give the token in a file")
    if parts.path.strip("/"):
        raise SettingsError(
            f"{url[:200]!r} has a path; give the URL without a path, like {parts.scheme}://{parts.netloc}"
        )
    return url.rstrip("/")


def _verify(url: str, ca_file: str | None, certificate_file: str | None) -> ssl.SSLContext | bool:
    if not url.startswith("https:"):
        return False
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"CA file {ca_file}: {_words(error)}; give a readable file of PEM certificates") from None
    if certificate_file is not None:
        try:
            context.load_cert_chain(certificate_file)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"{certificate_file}: {_words(error)}; enrol this host again") from None
    return context


def _headers(method: str, if_match: Match | None, idempotency_key: str | None, *, has_body: bool) -> dict[str, str]:
    if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        raise ArgumentError("an Idempotency-Key has 1 to 255 visible ASCII characters; give a UUID, for instance")
    headers = {}
    if has_body:
        headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
    if method == "POST":
        headers["Idempotency-Key"] = idempotency_key or str(uuid.uuid4())
    if if_match is not None:
        headers["If-Match"] = f'"{if_match}"' if isinstance(if_match, int) else if_match
    return headers


def _tls(error: BaseException | None) -> str:
    """Return why TLS failed, "" for another error."""
    seen = 0
    while error is not None and seen < 10:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        if isinstance(error, ssl.SSLError):
            return error.reason or "handshake"
        error, seen = error.__cause__ or error.__context__, seen + 1
    return ""


def _words(error: BaseException) -> str:
    """Return the text of the innermost system error, or else the exception's own text."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror.lower()
        inner = inner.__cause__ or inner.__context__
    return str(error) or type(error).__name__
