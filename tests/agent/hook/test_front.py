# SPDX-License-Identifier: Apache-2.0
"""The front's cheap test has no false negatives: it asks Python about every domain in which Python would find
something.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.hook.rig import HOOK, NAMESPACE, OTHER, SLICE, Host, domain, hostdev, load_client, metadata

CHUNK = 1 << 20


client = load_client()


@pytest.fixture(scope="module")
def asking() -> Iterator[Host]:
    """A front whose Python always exits with status 1, which shows that the front called it."""
    with tempfile.TemporaryDirectory(prefix="hook-") as directory:
        host = Host(Path(directory))
        answer = host.root / "no"
        answer.write_text("#!/bin/sh\nexit 1\n")
        answer.chmod(0o755)
        host.install(python=str(answer))
        yield host


def asked(host: Host, xml: str | bytes) -> bool:
    status, stderr = host.call("prepare", xml)
    assert stderr == ""
    return status == 1


def sealed(text: str, encoding: str) -> bytes:
    return f"<?xml version='1.0' encoding='{encoding}'?>{text}".encode(encoding)


HIDDEN = {
    "double quotes": domain(hostdev().replace("'", '"')),
    "newlines between attributes": domain(hostdev().replace(" ", "\n\t")),
    "spaces around the equals sign": domain(hostdev().replace("=", " = ")),
    "decimal reference": domain(hostdev().replace("mdev", "m&#100;ev")),
    "hexadecimal reference": domain(hostdev().replace("mdev", "&#x06D;dev")),
    "entity": "<!DOCTYPE domain [<!ENTITY a 'm'><!ENTITY b 'dev'>]>" + domain(hostdev().replace("mdev", "&a;&b;")),
    "attribute default": "<!DOCTYPE domain [<!ATTLIST hostdev type CDATA 'm&#x64;ev'>]>"
    + domain(hostdev().replace("type='mdev' ", "")),
    "UTF-16 with a declaration": sealed(domain(hostdev()), "utf-16"),
    "UTF-16 without": domain(hostdev()).encode("utf-16"),
    "UTF-16 without, other order": b"\xfe\xff" + domain(hostdev()).encode("utf-16-be"),
    "a declared encoding": sealed(domain(hostdev()), "cp1252"),
    "metadata under another prefix": domain(meta=metadata(SLICE).replace("vgpumgr:", "x:").replace(":vgpumgr", ":x")),
    "metadata's namespace as default": domain(meta=f"<slices xmlns='{NAMESPACE}'><slice id='{SLICE}'/></slices>"),
    "metadata with a reference": domain(
        meta=f"<slices xmlns='{NAMESPACE.replace('vgpumgr', 'v&#103;pum&#103;r')}'><slice id='{SLICE}'/></slices>"
    ),
    "after CDATA": domain(f"<x><![CDATA[</devices></domain>]]></x>{hostdev()}"),
    "behind the first piece": domain(hostdev(), meta="<x/>" * (CHUNK // 4)),
    "behind several pieces": domain(hostdev(), meta="<x/>" * CHUNK),
    "behind newlines": domain(hostdev(), meta="\n" * CHUNK),
    "behind the limit of parsing": domain(hostdev(), meta="<x/>" * (2 * CHUNK + CHUNK // 2)),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_no_way_of_writing_it_hides_a_device(asking: Host, name: str) -> None:
    assert asked(asking, HIDDEN[name])


@pytest.mark.parametrize("offset", range(-6, 3))
def test_a_name_across_the_end_of_what_the_front_reads_is_seen(asking: Host, offset: int) -> None:
    start, end = domain(hostdev(), meta="@").split("@")
    before = start + end[: end.index("mdev")]
    pad = "\n" * (CHUNK + offset - len(before))
    xml = start + pad + end
    assert xml.index("mdev") == CHUNK + offset
    assert asked(asking, xml)


def test_a_plain_domain_is_not_asked_about(asking: Host) -> None:
    assert not asked(asking, domain())
    assert not asked(asking, domain(meta="<x>&lt;&amp;</x>" * 1000))
    assert not asked(asking, domain(meta="n" * (CHUNK - len(domain()) - 1)))
    assert not asked(asking, "")


letter = st.sampled_from(["{}", "{}", "{}", "&#{:d};", "&#x{:x};"])


@st.composite
def spelled(draw: st.DrawFn, text: str) -> str:
    """The value of an attribute, with some of its characters written as references."""
    parts = []
    for character in text:
        form = draw(letter)
        parts.append(form.format(character if form == "{}" else ord(character)))
    return "".join(parts)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Domains in the different forms that XML allows."""
    quote = draw(st.sampled_from(["'", '"']))
    space = draw(st.sampled_from([" ", "\n", "\t ", "\r\n"]))
    kind = draw(st.sampled_from(["mdev", "pci", "scsi"]))
    device = draw(st.sampled_from([SLICE, OTHER]))
    prefix = draw(st.sampled_from(["vgpumgr", "x", "_"]))
    devices = (
        f"<hostdev{space}mode={quote}subsystem{quote}{space}type={quote}{draw(spelled(kind))}{quote}>"
        f"<source><address{space}uuid={quote}{draw(spelled(device))}{quote}/></source></hostdev>"
    )
    meta = (
        f"<{prefix}:slices{space}xmlns:{prefix}={quote}{draw(spelled(NAMESPACE))}{quote}>"
        f"<{prefix}:slice{space}id={quote}{device}{quote}/></{prefix}:slices>"
    )
    noise = draw(st.sampled_from(["", "<!-- -->", "<?pi?>", "<x><![CDATA[<]]></x>", "\N{SNOWMAN}"]))
    return domain(
        noise + draw(st.sampled_from(["", devices])),
        noise + draw(st.sampled_from(["", meta])),
    )


@settings(max_examples=150)
@given(xml=documents())
def test_the_front_asks_about_all_that_python_finds(asking: Host, xml: str) -> None:
    found = client.Reader().parse(xml.encode())
    if found.devices or found.marked:
        assert asked(asking, xml)


def test_the_front_and_the_client_look_for_the_same_words() -> None:
    """The client uses its own list of words when a document is too long to be parsed."""
    front = (HOOK / "vgpumgr").read_text()
    for marker in client.MARKERS:
        assert f"*{marker.decode()}*" in front or f"*'{marker.decode()}'*" in front
    assert front.count("case $xml in ") == len(client.MARKERS)
