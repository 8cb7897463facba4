# SPDX-License-Identifier: Apache-2.0
"""Viewers of everything or of one tenant, and admins of tenants."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SUBJECT = (
    "(role IN ('admin', 'operator') AND tenant_id IS NULL AND host_id IS NULL)"
    " OR (role IN ('tenant', 'tenant-admin') AND tenant_id IS NOT NULL AND host_id IS NULL)"
    " OR (role = 'viewer' AND host_id IS NULL)"
    " OR (role = 'host' AND tenant_id IS NULL AND host_id IS NOT NULL)"
)
SUBJECT_BEFORE = (
    "(role IN ('admin', 'operator') AND tenant_id IS NULL AND host_id IS NULL)"
    " OR (role = 'tenant' AND tenant_id IS NOT NULL AND host_id IS NULL)"
    " OR (role = 'host' AND tenant_id IS NULL AND host_id IS NOT NULL)"
)


def upgrade() -> None:
    _replace_subject(SUBJECT)


def downgrade() -> None:
    """Delete tokens of the roles that the previous release does not know."""
    op.execute("DELETE FROM tokens WHERE role IN ('tenant-admin', 'viewer')")
    _replace_subject(SUBJECT_BEFORE)


def _replace_subject(condition: str) -> None:
    with op.batch_alter_table("tokens") as tokens:
        tokens.drop_constraint(op.f("ck_tokens_subject"), type_="check")
        tokens.create_check_constraint(op.f("ck_tokens_subject"), condition)
