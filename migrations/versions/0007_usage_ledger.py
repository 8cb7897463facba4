# SPDX-License-Identifier: Apache-2.0
"""The usage ledger. Each existing claim gets a grant that starts when the claim was made."""

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COUNT_MAX = 9 * 10**18
COUNTED = (("run_ns", 0), ("due_ns", -COUNT_MAX), ("assured_ns", 0), ("throttled_ns", 0), ("reserved_ns", 0))

KEY = ("hour", "booked", "tenant_id", "host", "gpu")
LIFE = (
    *("id", "slice_id", "account_id", "account", "tenant_id", "tenant", "host", "gpu", "share_permille", "mem_bytes"),
    "started_at",
)
CLOSED = "(SELECT closed_before FROM usage_books)"
KEPT = "(SELECT kept_from FROM usage_books)"


def _same(columns: tuple[str, ...]) -> str:
    return " AND ".join(f"NEW.{name} = OLD.{name}" for name in columns)


def _rewritten(name: str) -> str:
    return f"(OLD.{name} IS NOT NULL AND (NEW.{name} IS NULL OR NEW.{name} <> OLD.{name}))"


_BACKDATED = f"(OLD.deleted_at IS NULL AND NEW.deleted_at < {CLOSED})"

# Each entry: table, name, event, refused rows, error text. Without books a condition is NULL, which refuses nothing.
RULES = (
    ("usage_ledger", "update", "UPDATE", f"OLD.booked < {CLOSED} OR NOT ({_same(KEY)})", "this hour is closed"),
    ("usage_ledger", "delete", "DELETE", f"OLD.hour >= COALESCE({KEPT}, OLD.hour)", "usage is kept"),
    (
        "grants",
        "update",
        "UPDATE",
        f"NOT ({_same(LIFE)}) OR {_rewritten('deleted_at')} OR {_rewritten('ended_at')} OR {_BACKDATED}",
        "a grant is written once",
    ),
    (
        "grants",
        "delete",
        "DELETE",
        f"OLD.ended_at IS NULL OR OLD.ended_at >= COALESCE({KEPT}, OLD.ended_at)",
        "grants are kept",
    ),
    (
        "usage_books",
        "update",
        "UPDATE",
        "NEW.closed_before < OLD.closed_before OR NEW.kept_from < OLD.kept_from",
        "books are not opened again",
    ),
    ("usage_books", "delete", "DELETE", "1 = 1", "books are not opened again"),
)
# REPLACE deletes a conflicting row without firing a DELETE trigger.
SQLITE_RULES = (
    *RULES,
    (
        "usage_ledger",
        "replace",
        "INSERT",
        f"NEW.booked < {CLOSED} AND EXISTS (SELECT 1 FROM usage_ledger AS OLD WHERE {_same(KEY)})",
        "this hour is closed",
    ),
    ("grants", "replace", "INSERT", "EXISTS (SELECT 1 FROM grants WHERE id = NEW.id)", "a grant is written once"),
    ("usage_books", "replace", "INSERT", "EXISTS (SELECT 1 FROM usage_books)", "books are not opened again"),
)


def upgrade() -> None:
    op.create_table(
        "grants",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("slice_id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("account", sa.String(length=63), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("host", sa.String(length=63), nullable=False),
        sa.Column("gpu", sa.String(length=16), nullable=False),
        sa.Column("share_permille", sa.BigInteger(), nullable=False),
        sa.Column("mem_bytes", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("share_permille BETWEEN 1 AND 1000", name=op.f("ck_grants_share")),
        sa.CheckConstraint("mem_bytes > 0", name=op.f("ck_grants_mem")),
        sa.CheckConstraint("deleted_at >= started_at AND ended_at >= deleted_at", name=op.f("ck_grants_order")),
        sa.CheckConstraint("ended_at IS NULL OR deleted_at IS NOT NULL", name=op.f("ck_grants_ended")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grants")),
    )
    is_open = sa.text("ended_at IS NULL")
    op.create_index(
        "ix_grants_open", "grants", ["slice_id"], unique=True, postgresql_where=is_open, sqlite_where=is_open
    )
    op.create_index("ix_grants_host_tenant", "grants", ["host", "tenant"])
    op.create_index("ix_grants_tenant_id_ended_at", "grants", ["tenant_id", "ended_at"])
    op.create_index("ix_grants_ended_at", "grants", ["ended_at"])
    op.create_table(
        "meters",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("host_id", sa.Uuid(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("complete_hour", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("revision >= 0", name=op.f("ck_meters_revision")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_meters")),
    )
    op.create_table(
        "meter_counts",
        sa.Column("meter_id", sa.Uuid(), nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("gpu", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=63), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name, _ in COUNTED),
        sa.PrimaryKeyConstraint("meter_id", "hour", "gpu", "tenant", name=op.f("pk_meter_counts")),
    )
    op.create_table(
        "usage_ledger",
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("booked", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("host", sa.String(length=63), nullable=False),
        sa.Column("gpu", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("account", sa.String(length=63), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name, _ in COUNTED),
        sa.CheckConstraint("booked >= hour", name=op.f("ck_usage_ledger_booked")),
        *(
            sa.CheckConstraint(f"{name} BETWEEN {least} AND {COUNT_MAX}", name=op.f(f"ck_usage_ledger_{name}"))
            for name, least in COUNTED
        ),
        sa.PrimaryKeyConstraint(*KEY, name=op.f("pk_usage_ledger")),
    )
    op.create_index("ix_usage_ledger_tenant_id_hour", "usage_ledger", ["tenant_id", "hour"])
    op.create_index("ix_usage_ledger_account_id_hour", "usage_ledger", ["account_id", "hour"])
    op.create_table(
        "usage_books",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("closed_before", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kept_from", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_usage_books_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_books")),
    )
    _grant_what_is_claimed()
    _make_rules()


def downgrade() -> None:
    """The downgrade is refused once there is billable usage that claims do not show.

    The previous release cannot store such usage.

    This includes a slice in state `releasing`: its grant has the time of its deletion, and that usage is billed.
    Waiting for its host does not help, because the grant then outlives the claim. If a slice was already being deleted,
    the upgrade takes the time of the upgrade as the time of its deletion. So with such a slice even an immediate
    downgrade is refused.
    """
    told = (
        "SELECT 1 FROM usage_ledger UNION ALL SELECT 1 FROM grants LEFT JOIN slices ON slices.id = grants.slice_id"
        " WHERE slices.id IS NULL OR grants.started_at <> slices.created_at OR grants.deleted_at IS NOT NULL LIMIT 1"
    )
    if op.get_bind().scalar(sa.text(told)):
        raise RuntimeError("there is usage that is billed; restore a backup from before this upgrade instead")
    for table in ("grants", "meters", "meter_counts", "usage_ledger", "usage_books"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        for table, name, *_ in RULES:
            op.execute(f"DROP FUNCTION {table}_{name}_refuse()")
        op.execute("DROP FUNCTION usage_truncate_refuse()")


def _grant_what_is_claimed() -> None:
    """Create the grants of existing claims.

    The time of a deletion is unknown, so claims that are being deleted count as deleted now. Lost claims have ended.
    """
    database = op.get_bind()
    slices = database.execute(
        sa.text(
            "SELECT s.id, COALESCE(a.id, t.id), COALESCE(a.name, t.name), t.id, t.name, h.name, g.address,"
            " s.share_permille, s.mem_bytes, s.created_at, s.state FROM slices s JOIN tenants t ON t.id = s.tenant_id"
            " LEFT JOIN tenants a ON a.id = t.account_id JOIN gpus g ON g.id = s.gpu_id"
            " JOIN hosts h ON h.id = g.host_id WHERE s.state <> 'lost'"
        )
    ).all()
    moment = database.scalar(sa.text("SELECT CURRENT_TIMESTAMP"))
    columns = (*LIFE, "deleted_at")
    values = ", ".join(f":{name}" for name in columns)
    statement = sa.text(f"INSERT INTO grants ({', '.join(columns)}) VALUES ({values})")
    is_postgresql = database.dialect.name == "postgresql"
    for row in slices:
        made = uuid4()
        deleted_at = None if row[10] == "claimed" else max(moment, row[9])
        members = (made if is_postgresql else made.hex, *row[:10], deleted_at)
        database.execute(statement, dict(zip(columns, members, strict=True)))


def _make_rules() -> None:
    if op.get_bind().dialect.name != "postgresql":
        for table, name, event, refused, said in SQLITE_RULES:
            op.execute(
                f"CREATE TRIGGER {table}_no_{name} BEFORE {event} ON {table} WHEN {refused}"
                f" BEGIN SELECT RAISE(ABORT, '{said}'); END"
            )
        return
    for table, name, event, refused, said in RULES:
        op.execute(
            f"CREATE FUNCTION {table}_{name}_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF {refused} THEN"
            f" RAISE EXCEPTION '{said}' USING ERRCODE = 'restrict_violation'; END IF;"
            f" RETURN {'OLD' if event == 'DELETE' else 'NEW'}; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {table}_no_{name} BEFORE {event} ON {table} FOR EACH ROW"
            f" EXECUTE FUNCTION {table}_{name}_refuse()"
        )
    op.execute(
        "CREATE FUNCTION usage_truncate_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'usage is kept' USING ERRCODE = 'restrict_violation'; END $$"
    )
    for table in ("usage_ledger", "grants", "usage_books"):
        op.execute(
            f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT"
            " EXECUTE FUNCTION usage_truncate_refuse()"
        )
