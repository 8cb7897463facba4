# SPDX-License-Identifier: Apache-2.0
"""An index for the audit entries of a request."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_audit_request_id", "audit", ["request_id"])


def downgrade() -> None:
    op.drop_index("ix_audit_request_id", table_name="audit")
