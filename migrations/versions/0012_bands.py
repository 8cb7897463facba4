# SPDX-License-Identifier: Apache-2.0
"""Bands of slices, and policies of GPUs."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def _checked(kind: str, name: str, condition: str) -> str:
    return f"{kind} CONSTRAINT {name} CHECK ({condition})"


BAND = "band IN ('fair', 'latency')"
PERIOD = "(band = 'latency') = (reserve_period_us IS NOT NULL)"
POLICY = "policy IN ('best_effort', 'equal_share', 'fixed_share')"
RESERVED = "reserved_permille BETWEEN 0 AND 1000"

COLUMNS = (
    ("profiles", "band", _checked("VARCHAR(16) DEFAULT 'fair' NOT NULL", "ck_profiles_band", BAND)),
    ("profiles", "reserve_period_us", _checked("BIGINT", "ck_profiles_reserve_period", PERIOD)),
    ("profiles", "policy", _checked("VARCHAR(16)", "ck_profiles_policy", f"policy IS NULL OR {POLICY}")),
    ("quotas", "band", _checked("VARCHAR(16)", "ck_quotas_band", f"band IS NULL OR {BAND}")),
    ("gpus", "policy", _checked("VARCHAR(16) DEFAULT 'best_effort' NOT NULL", "ck_gpus_policy", POLICY)),
    ("gpus", "places", _checked("BIGINT DEFAULT 0 NOT NULL", "ck_gpus_places", "places >= 0")),
    ("gpus", "reserve_limit_permille", "BIGINT DEFAULT 0 NOT NULL"),
    (
        "gpus",
        "reserved_permille",
        _checked(
            "BIGINT DEFAULT 0 NOT NULL",
            "ck_gpus_reserved",
            "reserved_permille >= 0 AND reserved_permille <= reserve_limit_permille",
        ),
    ),
    ("slices", "band", _checked("VARCHAR(16) DEFAULT 'fair' NOT NULL", "ck_slices_band", BAND)),
    ("slices", "reserve_period_us", _checked("BIGINT", "ck_slices_reserve_period", PERIOD)),
    ("slices", "reserved_permille", _checked("BIGINT DEFAULT 0 NOT NULL", "ck_slices_reserved", RESERVED)),
    ("holds", "reserved_permille", _checked("BIGINT DEFAULT 0 NOT NULL", "ck_holds_reserved", RESERVED)),
)


def upgrade() -> None:
    for table, column, kind in COLUMNS:
        op.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")


def downgrade() -> None:
    """The downgrade is refused while a profile or a quota uses bands or policies.

    The previous release schedules all slices by weight, on any GPU. Slices and held places need no check: each has the
    band of its profile, and the profile exists as long as they do.
    """
    database = op.get_bind()
    if database.scalar(sa.text("SELECT 1 FROM profiles WHERE band <> 'fair' OR policy IS NOT NULL LIMIT 1")):
        raise RuntimeError(
            "there are profiles of the latency band or of one policy; delete their claims and"
            " reservations first, then the profiles"
        )
    if database.scalar(sa.text("SELECT 1 FROM quotas WHERE band IS NOT NULL LIMIT 1")):
        raise RuntimeError("some quotas are limited to one band; remove that limit first")
    for table, column, _ in reversed(COLUMNS):
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
