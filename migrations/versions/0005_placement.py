# SPDX-License-Identifier: Apache-2.0
"""Labels, over-commitment of fair shares, affinity.

Columns are added and dropped instead of rebuilding tables, because on SQLite dropping the old table would delete the
rows that refer to it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

RATIO = "fair_ratio_permille BETWEEN 1000 AND 10000"
LEVEL = "({0} IS NULL) = ({0}_level IS NULL) AND ({0}_level IS NULL OR {0}_level IN ('host', 'gpu'))"
TIES = ("affinity", "anti_affinity")


def _checked(kind: str, name: str, condition: str) -> str:
    return f"{kind} CONSTRAINT {name} CHECK ({condition})"


COLUMNS = (
    ("gpus", "generation", "BIGINT DEFAULT 1 NOT NULL"),
    ("gpus", "fair_ratio_permille", _checked("BIGINT DEFAULT 1000 NOT NULL", "ck_gpus_fair_ratio", RATIO)),
    (
        "slices",
        "fair_ratio_permille",
        _checked(
            "BIGINT DEFAULT 1000 NOT NULL",
            "ck_slices_fair_ratio",
            f"fair_ratio_permille = 1000 OR (mode = 'fair' AND {RATIO})",
        ),
    ),
    *(
        column
        for tie in TIES
        for column in (
            ("slices", tie, "VARCHAR(63)"),
            ("slices", f"{tie}_level", _checked("VARCHAR(8)", f"ck_slices_{tie}", LEVEL.format(tie))),
        )
    ),
)


def upgrade() -> None:
    for table, column, kind in COLUMNS:
        op.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
    over_committed = sa.text("fair_ratio_permille > 1000")
    op.create_index(
        "ix_gpus_over_committed",
        "gpus",
        ["fair_ratio_permille"],
        postgresql_where=over_committed,
        sqlite_where=over_committed,
    )
    for tie in TIES:
        tied = sa.text(f"{tie} IS NOT NULL")
        op.create_index(f"ix_slices_{tie}", "slices", ["tenant_id", tie], postgresql_where=tied, sqlite_where=tied)
    for owner in ("host", "gpu"):
        op.create_table(
            f"{owner}_labels",
            sa.Column(f"{owner}_id", sa.Uuid(), nullable=False),
            sa.Column("key", sa.String(length=63), nullable=False),
            sa.Column("value", sa.String(length=63), nullable=False),
            sa.ForeignKeyConstraint(
                [f"{owner}_id"], [f"{owner}s.id"], name=op.f(f"fk_{owner}_labels_{owner}_id"), ondelete="CASCADE"
            ),
            sa.PrimaryKeyConstraint(f"{owner}_id", "key", name=op.f(f"pk_{owner}_labels")),
        )


def downgrade() -> None:
    """The downgrade is refused while a fair slice counts less than its share, or a slice has ties.

    The previous release would give back more for such a share than was taken, and would forget the ties. Labels and the
    ratios of GPUs are dropped, because they matter only for future claims.
    """
    if op.get_bind().scalar(sa.text("SELECT 1 FROM slices WHERE fair_ratio_permille > 1000 LIMIT 1")):
        raise RuntimeError("there are slices on over-committed GPUs; delete those first and wait until they are gone")
    tied = " OR ".join(f"{tie} IS NOT NULL" for tie in TIES)
    if op.get_bind().scalar(sa.text(f"SELECT 1 FROM slices WHERE {tied} LIMIT 1")):
        raise RuntimeError("there are slices with affinity; delete those first and wait until they are gone")
    op.drop_table("gpu_labels")
    op.drop_table("host_labels")
    for index in ("ix_slices_anti_affinity", "ix_slices_affinity"):
        op.drop_index(index, table_name="slices")
    op.drop_index("ix_gpus_over_committed", table_name="gpus")
    for table, column, _ in reversed(COLUMNS):
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
