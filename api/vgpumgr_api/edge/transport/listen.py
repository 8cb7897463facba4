# SPDX-License-Identifier: Apache-2.0
"""The addresses where the API listens. No traffic leaves this machine unencrypted.

`listen_host` is an address, a host name, or ``unix:/path/of/socket``. A name is resolved once, and the sockets are
bound to exactly the addresses that were checked.
"""

import contextlib
import ipaddress
import os
import socket
import stat
from pathlib import Path

from vgpumgr_api.config import Config
from vgpumgr_api.overload.connections import BUFFER_BYTES, Listener

UNIX = "unix:"
BACKLOG = 2048
SOCKET_MODE = 0o660


class ListenError(Exception):
    """The API cannot or may not listen as configured. The message is one line that says what to change."""


def open_sockets(config: Config) -> list[socket.socket]:
    """Returns bound sockets. If it raises ListenError, no socket stays open."""
    return _sockets("listen_host", config.listen_host, config.listen_port, encrypted=config.tls_certificate is not None)


def open_metrics_sockets(config: Config) -> list[socket.socket]:
    """Like `open_sockets`, for Prometheus. An address beyond loopback also requires a token."""
    if config.metrics_host is None:
        return []
    sockets = _sockets(
        "metrics_host", config.metrics_host, config.metrics_port, encrypted=config.tls_certificate is not None
    )
    for each in sockets:
        beyond = each.family != socket.AF_UNIX and not is_loopback(str(each.getsockname()[0]))
        if beyond and config.metrics_token_file is None:
            close(config.metrics_host, sockets)
            raise ListenError(
                f"metrics_host {config.metrics_host!r} is reachable from other machines and anybody could read the "
                "metrics; name metrics_token_file, or listen on 127.0.0.1 or unix:/PATH"
            )
    return sockets


def _sockets(setting: str, host: str, port: int, *, encrypted: bool) -> list[socket.socket]:
    if host.startswith(UNIX):
        return [_unix_socket(setting, Path(host.removeprefix(UNIX)))]
    addresses = _addresses(setting, host, port)
    if not encrypted:
        for _, address in addresses:
            if not is_loopback(str(address[0])):
                raise ListenError(
                    f"{setting} {host!r} is reachable from other machines ({address[0]}) and no TLS is "
                    "set; name tls_certificate and tls_key, or listen on 127.0.0.1 or unix:/PATH"
                )
    with contextlib.ExitStack() as opened:
        sockets = [_inet_socket(family, address, opened) for family, address in addresses]
        opened.pop_all()
    return sockets


def is_loopback(address: str) -> bool:
    """Whether an address is loopback. One with a zone (``fe80::1%eth0``) is link-local, hence not loopback."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def describe(host: str, sockets: list[socket.socket], *, encrypted: bool) -> str:
    """Returns the URLs for the log, with the port that the kernel chose if the port was 0."""
    if host.startswith(UNIX):
        return host
    scheme = "https" if encrypted else "http"
    names = [each.getsockname() for each in sockets]
    return ", ".join(
        f"{scheme}://[{name[0]}]:{name[1]}" if ":" in name[0] else f"{scheme}://{name[0]}:{name[1]}" for name in names
    )


def close(host: str, sockets: list[socket.socket]) -> None:
    """Closes the sockets that are still open and removes a Unix socket's file."""
    for each in sockets:
        each.close()
    if host.startswith(UNIX):
        Path(host.removeprefix(UNIX)).unlink(missing_ok=True)


def _addresses(setting: str, host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str | int, ...]]]:
    # None means every address of this machine, which is also the common meaning of an empty host.
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"{setting} {host!r}: {getattr(error, 'strerror', None) or 'not a host name'}") from None
    unique = dict.fromkeys((family, address) for family, _, _, _, address in found)
    return [(family, tuple(part for part in address if not isinstance(part, bytes))) for family, address in unique]


def _inet_socket(
    family: socket.AddressFamily, address: tuple[str | int, ...], opened: contextlib.ExitStack
) -> socket.socket:
    listener = opened.enter_context(Listener(family, socket.SOCK_STREAM))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit this option. asyncio sets it only on sockets created with IPPROTO_TCP. Without it, the second
    # write of an answer waits until the client acknowledges the first, 40 ms later.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        listener.setsockopt(socket.SOL_SOCKET, side, BUFFER_BYTES)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise ListenError(f"cannot listen on {address[0]} port {address[1]}: {error.strerror}") from None
    return listener


def _unix_socket(setting: str, path: Path) -> socket.socket:
    """Binds a socket for its owner and group. Replaces a socket file without a listener, but no other file."""
    if not path.is_absolute():
        raise ListenError(f"{setting}: {UNIX}{path} is not an absolute path")
    listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_abandoned(path):
            path.unlink(missing_ok=True)
        mask = os.umask(0o777 & ~SOCKET_MODE)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {UNIX}{path}: {error.strerror or error}") from None
    return listener


def _is_abandoned(path: Path) -> bool:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False
