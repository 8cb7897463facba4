# SPDX-License-Identifier: Apache-2.0
"""Quotas can limit profiles, mode and timeslices of claims."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COLUMNS = (
    ("timeslice_min_us", "BIGINT DEFAULT 100 NOT NULL"),
    (
        "timeslice_max_us",
        "BIGINT DEFAULT 1000000 NOT NULL CONSTRAINT ck_quotas_timeslice_range {}".format(
            "CHECK (timeslice_us BETWEEN timeslice_min_us AND timeslice_max_us)"
        ),
    ),
    ("mode", "VARCHAR(16) CONSTRAINT ck_quotas_mode CHECK (mode IS NULL OR mode IN ('strict', 'fair'))"),
    ("profiles_limited", "BOOLEAN DEFAULT false NOT NULL"),
)


def upgrade() -> None:
    for column, kind in COLUMNS:
        op.execute(f"ALTER TABLE quotas ADD COLUMN {column} {kind}")
    op.create_table(
        "quota_profiles",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("profile_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["profiles.id"], name=op.f("fk_quota_profiles_profile_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["quotas.tenant_id"], name=op.f("fk_quota_profiles_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "profile_id", name=op.f("pk_quota_profiles")),
    )
    op.create_index(op.f("ix_quota_profiles_profile_id"), "quota_profiles", ["profile_id"], unique=False)


BOUND = "profiles_limited OR mode IS NOT NULL OR timeslice_min_us <> 100 OR timeslice_max_us <> 1000000"


def downgrade() -> None:
    """The downgrade is refused while a quota has such a limit: the previous release would ignore it."""
    if op.get_bind().scalar(sa.text(f"SELECT 1 FROM quotas WHERE {BOUND} LIMIT 1")):
        raise RuntimeError("some quotas limit profiles, mode or timeslices; set these to their defaults first")
    op.drop_table("quota_profiles")
    for column, _ in reversed(COLUMNS):
        op.execute(f"ALTER TABLE quotas DROP COLUMN {column}")
