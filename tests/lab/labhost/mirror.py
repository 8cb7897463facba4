# SPDX-License-Identifier: Apache-2.0
"""Finds the Debian mirror that this machine already uses, so that the sources name no mirror."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from labhost.errors import LabError

VARIABLE = "VGPUMGR_DEBIAN_MIRROR"


def debian_mirror(environ: Mapping[str, str] = os.environ, apt_dir: Path = Path("/etc/apt")) -> str:
    """Return the URI of a Debian archive.

    Raises LabError when neither the environment nor the configuration of apt names one, as on Ubuntu.
    """
    if environ.get(VARIABLE):
        return environ[VARIABLE]
    for uri in _configured_uris(apt_dir):
        if _is_debian_archive(uri):
            return uri
    raise LabError(
        f"found no Debian archive in {apt_dir}: set {VARIABLE} to the URI of one that has trixie and bookworm"
    )


def _is_debian_archive(uri: str) -> bool:
    """Security and third-party archives have another last path component."""
    return urlsplit(uri).path.rstrip("/").rsplit("/", 1)[-1] == "debian"


def _configured_uris(apt_dir: Path) -> Iterator[str]:
    parts = apt_dir / "sources.list.d"
    for file in [*sorted(parts.glob("*.sources")), apt_dir / "sources.list", *sorted(parts.glob("*.list"))]:
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        found = _deb822_uris(text) if file.suffix == ".sources" else _one_line_uris(text)
        for uri in found:
            yield from _resolve(uri)


def _deb822_uris(text: str) -> Iterator[str]:
    """URIs of enabled binary entries in the format of sources.list(5), "DEB822-STYLE FORMAT"."""
    without_comments = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*\n", without_comments):
        unfolded = re.sub(r"\n[ \t]+", " ", stanza)
        fields = {
            key.strip().lower(): value.strip()
            for key, separator, value in (line.partition(":") for line in unfolded.splitlines())
            if separator
        }
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() != "no":
            yield from fields.get("uris", "").split()


def _one_line_uris(text: str) -> Iterator[str]:
    """URIs of binary entries in the one-line format of sources.list(5)."""
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[[^\]]*\]\s*)?(\S+)", line)
        if match:
            yield match.group(1)


def _resolve(uri: str) -> Iterator[str]:
    """Replace `mirror+file:` (cloud images) by the mirrors that the file lists."""
    if not uri.startswith("mirror+file:"):
        yield uri
        return
    listing = Path(uri.removeprefix("mirror+file:"))
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words and not words[0].startswith("#"):
                yield words[0]
