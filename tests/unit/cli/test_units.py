# SPDX-License-Identifier: Apache-2.0
"""Sizes and durations, parsed and formatted."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpumgr.cli.units import format_us, parse_instant, parse_uuid
from vgpumgr.durations import parse_duration
from vgpumgr.errors import ArgumentError
from vgpumgr.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64K", 65536),
        ("64k", 65536),
        ("64M", 64 << 20),
        ("16MiB", 16 << 20),
        ("1G", 1 << 30),
        ("1gib", 1 << 30),
        ("2T", 2 << 40),
        ("1P", 1 << 50),
    ],
)
def test_sizes_are_binary(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5G", "1 G", "0x10", "64Mi", "1E", "9" * 20, "٣M", "1\n"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="like 64M"):
        parse_size(text)


def test_decimal_units_are_refused_as_ambiguous() -> None:
    with pytest.raises(ArgumentError, match="write 64M or 64MiB"):
        parse_size("64mb")


@given(st.integers(0, 1023), st.sampled_from(["", "K", "M", "G", "T", "P"]))
def test_a_size_is_shown_as_it_was_written(number: int, unit: str) -> None:
    text = f"{number}{unit}" if number else "0"
    assert format_size(parse_size(text)) == text


def test_odd_sizes_get_one_decimal() -> None:
    assert [format_size(size) for size in (1000, 1536, (1 << 30) + (1 << 29))] == ["1000", "1.5K", "1.5G"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43200), ("30d", 2592000), ("2w", 1209600), ("0s", 0)]
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "1.5h", "-1d", "1y", "1M", "d", "1d2h", "1" * 13 + "s", "1d\n"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="like 90s or 30d"):
        parse_duration(text)


NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "hour"), [("2h", 10), ("0s", 12), ("2026-11-21T09:00:00Z", 9), ("2026-11-21T09:00:00+02:00", 7)]
)
def test_instants(text: str, hour: int) -> None:
    assert parse_instant(text, "--since", NOON) == NOON.replace(hour=hour)


@pytest.mark.parametrize("text", ["", "2", "yesterday", "2026-11-21T09:00:00", "2026-11-21", "9" * 12 + "w"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"--since .* like 2h, or an instant"):
        parse_instant(text, "--since", NOON)


@pytest.mark.parametrize(
    ("time_us", "text"),
    [(0, "0us"), (999, "999us"), (1000, "1ms"), (1500, "1.5ms"), (2_000_000, "2s"), (2100.4, "2.1ms")],
)
def test_times(time_us: float, text: str) -> None:
    assert format_us(time_us) == text


@pytest.mark.parametrize("text", ["", "x", "51ce", "../51ce0000-0000-4000-8000-000000000001", "a" * 200])
def test_what_is_no_uuid_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not a UUID; `vgpumgr get slices` lists them"):
        parse_uuid(text, "slice")
