# SPDX-License-Identifier: Apache-2.0
"""The addresses and sockets on which the API listens."""

import socket
import stat
from pathlib import Path

import pytest
from vgpumgr_api.config import Config
from vgpumgr_api.edge.transport import listen
from vgpumgr_api.edge.transport.listen import ListenError, is_loopback, open_sockets


def config(host: str, port: int = 0) -> Config:
    return Config(database="sqlite://", listen_host=host, listen_port=port)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"])
def test_refuses_to_be_reachable_from_elsewhere_without_tls(host: str) -> None:
    with pytest.raises(ListenError, match=r"no TLS is set.*tls_certificate"):
        open_sockets(config(host))


def test_refuses_a_name_of_which_one_address_is_not_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> list[object]:
        found = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "192.0.2.1")]
        return [(family, socket.SOCK_STREAM, 6, "", (address, 0)) for family, address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ListenError, match=r"192\.0\.2\.1"):
        open_sockets(config("api.example.org"))


def test_listens_beyond_loopback_with_tls(tmp_path: Path) -> None:
    settings = Config(
        database="sqlite://",
        listen_host="0.0.0.0",
        listen_port=0,
        tls_certificate=tmp_path / "crt",
        tls_key=tmp_path / "key",
    )
    sockets = open_sockets(settings)
    try:
        assert [each.getsockname()[0] for each in sockets] == ["0.0.0.0"]
        assert listen.describe(settings.listen_host, sockets, encrypted=True).startswith("https://0.0.0.0:")
    finally:
        listen.close(settings.listen_host, sockets)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_answers_are_sent_at_once_however_short(host: str) -> None:
    sockets = open_sockets(config(host))
    try:
        for listener in sockets:
            with socket.create_connection(listener.getsockname()[:2]):
                connection, _ = listener.accept()
                with connection:
                    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    finally:
        listen.close(host, sockets)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost"])
def test_listens_on_loopback_without_tls(host: str) -> None:
    sockets = open_sockets(config(host))
    try:
        assert all(is_loopback(each.getsockname()[0]) for each in sockets)
    finally:
        listen.close(host, sockets)


def test_a_name_that_does_not_resolve_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ListenError, match=r"'no\.such\.host': Name or service not known"):
        open_sockets(config("no.such.host"))


def test_a_port_that_is_taken_is_said() -> None:
    said = r"cannot listen on 127\.0\.0\.1 port \d+: Address already in use"
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ListenError, match=said):
        open_sockets(config("127.0.0.1", taken.getsockname()[1]))


def test_a_unix_socket_needs_no_tls_and_is_not_for_others(tmp_path: Path) -> None:
    settings = config(f"unix:{tmp_path}/api.sock")
    sockets = open_sockets(settings)
    mode = (tmp_path / "api.sock").stat().st_mode
    listen.close(settings.listen_host, sockets)
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o660
    assert not (tmp_path / "api.sock").exists()


def test_an_abandoned_unix_socket_is_replaced_and_a_used_one_is_not(tmp_path: Path) -> None:
    settings = config(f"unix:{tmp_path}/api.sock")
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(tmp_path / "api.sock"))
    sockets = open_sockets(settings)
    try:
        with pytest.raises(ListenError, match="Address already in use"):
            open_sockets(settings)
    finally:
        listen.close(settings.listen_host, sockets)


def test_a_file_in_the_way_of_a_unix_socket_stays(tmp_path: Path) -> None:
    (tmp_path / "api.sock").write_text("precious")
    with pytest.raises(ListenError, match="Address already in use"):
        open_sockets(config(f"unix:{tmp_path}/api.sock"))
    assert (tmp_path / "api.sock").read_text() == "precious"


def test_a_relative_unix_socket_is_refused() -> None:
    with pytest.raises(ListenError, match="not an absolute path"):
        open_sockets(config("unix:api.sock"))
