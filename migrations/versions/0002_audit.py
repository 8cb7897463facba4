# SPDX-License-Identifier: Apache-2.0
"""The audit: an append-only table of who did what, kept for ever. And admins, who read it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SUBJECT = (
    "(role IN ('admin', 'operator') AND tenant_id IS NULL AND host_id IS NULL)"
    " OR (role = 'tenant' AND tenant_id IS NOT NULL AND host_id IS NULL)"
    " OR (role = 'host' AND tenant_id IS NULL AND host_id IS NOT NULL)"
)
SUBJECT_BEFORE = SUBJECT.replace("role IN ('admin', 'operator')", "role = 'operator'")

POSTGRESQL = (
    """
    CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'audit is append-only' USING ERRCODE = 'restrict_violation';
    END
    $$
    """,
    "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_refuse()",
    "CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()",
)
# REPLACE deletes a conflicting row without firing a DELETE trigger.
SQLITE = (
    "CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END",
    "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END",
    """
    CREATE TRIGGER audit_no_replace BEFORE INSERT ON audit WHEN EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)
    BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END
    """,
)


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("credential", sa.Uuid(), nullable=True),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=63), nullable=True),
        sa.Column("object", sa.String(length=128), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_index("ix_audit_object_id", "audit", ["object", "id"], unique=False)
    for statement in POSTGRESQL if op.get_bind().dialect.name == "postgresql" else SQLITE:
        op.execute(statement)
    _replace_subject(SUBJECT)


def downgrade() -> None:
    """The downgrade is refused once the audit has an entry, because nothing deletes entries.

    The downgrade deletes admins' tokens.
    """
    if op.get_bind().scalar(sa.text("SELECT 1 FROM audit LIMIT 1")):
        raise RuntimeError(
            "there is an audit, which is kept for ever; restore a backup from before this upgrade instead"
        )
    op.execute("DELETE FROM tokens WHERE role = 'admin'")
    _replace_subject(SUBJECT_BEFORE)
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_refuse()")


def _replace_subject(condition: str) -> None:
    with op.batch_alter_table("tokens") as tokens:
        tokens.drop_constraint(op.f("ck_tokens_subject"), type_="check")
        tokens.create_check_constraint(op.f("ck_tokens_subject"), condition)
