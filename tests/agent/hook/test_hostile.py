# SPDX-License-Identifier: Apache-2.0
"""Hostile domain XML is refused or passed by the rules, in bounded time and memory, with one line of output."""

import subprocess

import pytest
from vgpumgr_agent.hook.server import HookServer

from tests.agent.hook.rig import SLICE, VETO, Host, domain, hostdev, metadata

MEMORY_BYTES = 300 << 20
LIMIT_S = 60
MIB = 1 << 20

ELEMENTS = "".join(f"<!ENTITY e{n} '{f'&e{n - 1};' * 10}'>" for n in range(1, 10))
LAUGHS = f"<!DOCTYPE domain [<!ENTITY e0 'mdev'>{ELEMENTS}]>" + domain(hostdev(), "&e9;")
QUADRATIC = f"<!DOCTYPE domain [<!ENTITY a '{'x' * MIB}'>]>" + domain(hostdev(), "&a;" * 100_000)
OUTSIDE = "<!DOCTYPE domain [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>" + domain(hostdev(), "&a;")

REFUSED = {
    "billion laughs": (LAUGHS, "document type declaration"),
    "quadratic blow-up": (QUADRATIC, "document type declaration"),
    "external entity": (OUTSIDE, "document type declaration"),
    "an undeclared entity": (domain(hostdev(), "&a;"), "cannot be read"),
    "deep": (domain(hostdev(), "<a>" * 100_000 + "</a>" * 100_000), "nested deeper than"),
    "deep and never closed": ("<domain>" + "<mdev>" * 1_000_000, "nested deeper than"),
    "not closed": (domain(hostdev())[:-12], "cannot be read"),
    "two roots": (domain(hostdev()) + domain(hostdev()), "cannot be read"),
    "no domain": ("<network><hostdev/></network>", "not domain XML"),
    "no XML": ("hostdev", "cannot be read"),
    "not UTF-8": (domain(hostdev()).encode() + b"\xff\xff", "cannot be read"),
    "an unknown encoding": ("<?xml version='1.0' encoding='klingon'?>" + domain(hostdev()), "cannot be read"),
    "an encoding that is no encoding": ("<?xml version='1.0' encoding='hex'?>" + domain(hostdev()), "cannot be read"),
    "bytes of a control character": (domain(hostdev(), "\x01"), "cannot be read"),
    "one attribute of 4 MiB": (domain(hostdev("a" * 4 * MIB)), "uuid of an mdev hostdev is not a UUID"),
    "a device without UUID": (domain("<hostdev type='mdev'><source><address/></source></hostdev>"), "not a UUID"),
    "a path as UUID": (domain(hostdev("../../../../etc/passwd-------------")), "not a UUID"),
    "digits that only look so": (domain(hostdev("\N{ARABIC-INDIC DIGIT ONE}" + SLICE[1:])), "not a UUID"),
    "a slice without UUID": (domain(meta=metadata("all")), "id of a slice in metadata is not a UUID"),
    "a VM without UUID": (domain(hostdev(), uuid=""), "domain/uuid is not a UUID"),
    "many devices": (domain("".join(hostdev(f"{SLICE[:-3]}{n:03}") for n in range(65))), "more than 64 slices"),
    "many slices": (domain(meta=metadata(*(f"{SLICE[:-3]}{n:03}" for n in range(65)))), "more than 64 slices"),
    "long, marked at the end": (domain(hostdev(), "n" * 100 * MIB), "longer than 8 MiB"),
    "long, marked at the beginning": (domain(hostdev()) + " " * 100 * MIB, "longer than 8 MiB"),
}


def call(host: Host, operation: str, xml: str | bytes) -> tuple[int, str]:
    """Call the hook once with bounded memory and time."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'ulimit -v {MEMORY_BYTES >> 10}; exec "$0" guest {operation} begin -', str(host.front)],
        input=xml.encode() if isinstance(xml, str) else xml,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout == b""
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("name", REFUSED)
def test_what_libvirt_cannot_have_written_is_refused(host: Host, agent: HookServer, name: str) -> None:
    xml, reason = REFUSED[name]
    status, stderr = call(host, "prepare", xml)
    assert (status, stderr.count("\n")) == (1, 1)
    assert reason in stderr
    assert len(stderr) < 400
    assert "(vgpumgr: xml." in stderr
    assert agent.counters().connections == 0
    assert call(host, "reconnect", xml) == (0, "")


@pytest.mark.parametrize("operation", VETO)
def test_a_huge_domain_without_our_words_passes(host: Host, operation: str) -> None:
    assert call(host, operation, domain(meta="n" * 100 * MIB)) == (0, "")


@pytest.mark.parametrize("size", [8 * MIB, 8 * MIB + 1])
def test_the_limit_of_length_is_exact(host: Host, agent: HookServer, size: int) -> None:
    xml = domain(hostdev(), "@").replace("@", "n" * (size - len(domain(hostdev()))))
    assert len(xml) == size
    assert call(host, "prepare", xml)[0] == (size > 8 * MIB)


def test_a_long_domain_of_many_elements_is_read_in_time(host: Host, agent: HookServer) -> None:
    """A document of that length with as much work as possible is handled within the time that a start may take."""
    assert call(host, "prepare", domain(hostdev(), "<a/>" * (2 * MIB - 200))) == (0, "")
    assert agent.counters().connections == 1


def test_reading_ends_with_the_time_for_it(host: Host, agent: HookServer) -> None:
    host.install(VETO_S=0.1)
    status, stderr = call(host, "prepare", domain(hostdev(), "<a/>" * (2 * MIB - 200)))
    assert status == 1
    assert "takes too long to read" in stderr
