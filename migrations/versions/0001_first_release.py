# SPDX-License-Identifier: Apache-2.0
"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=True),
        sa.Column("account_id", sa.Uuid(), nullable=True),
        sa.Column("tenant", sa.String(length=63), nullable=True),
        sa.Column("object", sa.String(length=128), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sa.UniqueConstraint("seq", name=op.f("uq_events_seq")),
    )
    op.create_index("ix_events_account_id_seq", "events", ["account_id", "seq"], unique=False)
    op.create_index("ix_events_tenant_id_seq", "events", ["tenant_id", "seq"], unique=False)
    op.create_index(
        "ix_events_unnumbered",
        "events",
        ["id"],
        unique=False,
        postgresql_where=sa.text("seq IS NULL"),
        sqlite_where=sa.text("seq IS NULL"),
    )

    op.create_table(
        "hosts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("enroll_hash", sa.String(length=64), nullable=True),
        sa.Column("enroll_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("enrolled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("epoch_confirmed", sa.Boolean(), nullable=False),
        sa.Column("fenced_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("desired_generation", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("state IN ('ready', 'cordoned')", name=op.f("ck_hosts_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hosts")),
        sa.UniqueConstraint("enroll_hash", name=op.f("uq_hosts_enroll_hash")),
        sa.UniqueConstraint("name", name=op.f("uq_hosts_name")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"], unique=False)

    op.create_table(
        "installation",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_installation_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_installation")),
    )
    op.create_table(
        "profiles",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("share_permille", sa.BigInteger(), nullable=False),
        sa.Column("mem_bytes", sa.BigInteger(), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("mode IN ('strict', 'fair')", name=op.f("ck_profiles_mode")),
        sa.CheckConstraint("mem_bytes > 0", name=op.f("ck_profiles_mem")),
        sa.CheckConstraint("share_permille BETWEEN 1 AND 1000", name=op.f("ck_profiles_share")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profiles")),
        sa.UniqueConstraint("name", name=op.f("uq_profiles_name")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("account_id <> id", name=op.f("ck_tenants_not_its_own_account")),
        sa.ForeignKeyConstraint(["account_id"], ["tenants.id"], name=op.f("fk_tenants_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_index(op.f("ix_tenants_account_id"), "tenants", ["account_id"], unique=False)

    op.create_table(
        "gpus",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("host_id", sa.Uuid(), nullable=False),
        sa.Column("address", sa.String(length=16), nullable=False),
        sa.Column("engine", sa.String(length=64), nullable=False),
        sa.Column("backend", sa.String(length=64), nullable=False),
        sa.Column("mem_bytes", sa.BigInteger(), nullable=False),
        sa.Column("timeslice_min_us", sa.BigInteger(), nullable=False),
        sa.Column("max_chunk_us", sa.BigInteger(), nullable=False),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.Column("share_used", sa.BigInteger(), nullable=False),
        sa.Column("mem_used", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("mem_used >= 0 AND mem_used <= mem_bytes", name=op.f("ck_gpus_mem")),
        sa.CheckConstraint("share_used BETWEEN 0 AND 1000", name=op.f("ck_gpus_share")),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_gpus_host_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpus")),
        sa.UniqueConstraint("host_id", "address", name=op.f("uq_gpus_host_id_address")),
    )
    op.create_index("ix_gpus_fullest", "gpus", ["share_used", "mem_used", "id"], unique=False)

    op.create_table(
        "former_secrets",
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("host_id", sa.Uuid(), nullable=False),
        sa.Column("host", sa.String(length=63), nullable=False),
        sa.Column("fenced", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("secret_hash", name=op.f("pk_former_secrets")),
    )
    op.create_index(op.f("ix_former_secrets_host_id"), "former_secrets", ["host_id"], unique=False)
    op.create_table(
        "host_reports",
        sa.Column("host_id", sa.Uuid(), nullable=False),
        sa.Column("boot_id", sa.Uuid(), nullable=True),
        sa.Column("agent_epoch", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("agent_version", sa.String(length=64), nullable=False),
        sa.Column("desired_epoch", sa.Uuid(), nullable=True),
        sa.Column("desired_generation", sa.BigInteger(), nullable=False),
        sa.Column("unknown_slices", sa.BigInteger(), nullable=False),
        sa.Column("refusals", sa.JSON(), nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_host_reports_host_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("host_id", name=op.f("pk_host_reports")),
    )
    op.create_table(
        "quotas",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("share_limit", sa.BigInteger(), nullable=False),
        sa.Column("mem_limit", sa.BigInteger(), nullable=False),
        sa.Column("slices_limit", sa.BigInteger(), nullable=False),
        sa.Column("share_used", sa.BigInteger(), nullable=False),
        sa.Column("mem_used", sa.BigInteger(), nullable=False),
        sa.Column("slices_used", sa.BigInteger(), nullable=False),
        sa.Column("timeslice_us", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("share_limit >= 0 AND mem_limit >= 0 AND slices_limit >= 0", name=op.f("ck_quotas_limits")),
        sa.CheckConstraint("share_used >= 0 AND mem_used >= 0 AND slices_used >= 0", name=op.f("ck_quotas_used")),
        sa.CheckConstraint("timeslice_us > 0", name=op.f("ck_quotas_timeslice")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_quotas_tenant_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_quotas")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=True),
        sa.Column("host_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(role = 'operator' AND tenant_id IS NULL AND host_id IS NULL)"
            " OR (role = 'tenant' AND tenant_id IS NOT NULL AND host_id IS NULL)"
            " OR (role = 'host' AND tenant_id IS NULL AND host_id IS NOT NULL)",
            name=op.f("ck_tokens_subject"),
        ),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_tokens_host_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_tokens_tenant_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_tokens_secret_hash")),
    )
    op.create_index(op.f("ix_tokens_host_id"), "tokens", ["host_id"], unique=False)
    op.create_index(op.f("ix_tokens_tenant_id"), "tokens", ["tenant_id"], unique=False)

    op.create_table(
        "gpu_types",
        sa.Column("gpu_id", sa.Uuid(), nullable=False),
        sa.Column("mdev_type", sa.String(length=80), nullable=False),
        sa.Column("mem_bytes", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("mem_bytes > 0", name=op.f("ck_gpu_types_mem")),
        sa.ForeignKeyConstraint(["gpu_id"], ["gpus.id"], name=op.f("fk_gpu_types_gpu_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("gpu_id", "mdev_type", name=op.f("pk_gpu_types")),
    )
    op.create_table(
        "group_observations",
        sa.Column("gpu_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("weight", sa.BigInteger(), nullable=False),
        sa.Column("timeslice_us", sa.BigInteger(), nullable=False),
        sa.Column("cap_us", sa.BigInteger(), nullable=False),
        sa.Column("cap_period_us", sa.BigInteger(), nullable=False),
        sa.Column("run_ns", sa.BigInteger(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("longest_run_ns", sa.BigInteger(), nullable=False),
        sa.Column("throttled_ns", sa.BigInteger(), nullable=False),
        sa.Column("switches", sa.BigInteger(), nullable=False),
        sa.Column("wall_ns", sa.BigInteger(), nullable=False),
        sa.Column("idle_ns", sa.BigInteger(), nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["gpu_id"], ["gpus.id"], name=op.f("fk_group_observations_gpu_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_group_observations_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("gpu_id", "tenant_id", name=op.f("pk_group_observations")),
    )
    op.create_index(op.f("ix_group_observations_tenant_id"), "group_observations", ["tenant_id"], unique=False)

    op.create_table(
        "slices",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("profile_id", sa.Uuid(), nullable=False),
        sa.Column("gpu_id", sa.Uuid(), nullable=False),
        sa.Column("vm_uuid", sa.Uuid(), nullable=True),
        sa.Column("share_permille", sa.BigInteger(), nullable=False),
        sa.Column("mem_bytes", sa.BigInteger(), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("mdev_type", sa.String(length=80), nullable=False),
        sa.Column("type_mem_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("tombstone_generation", sa.BigInteger(), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("(state = 'claimed') = (tombstone_generation IS NULL)", name=op.f("ck_slices_tombstone")),
        sa.CheckConstraint("mode IN ('strict', 'fair')", name=op.f("ck_slices_mode")),
        sa.CheckConstraint("state IN ('claimed', 'releasing', 'lost')", name=op.f("ck_slices_state")),
        sa.CheckConstraint("mem_bytes > 0 AND type_mem_bytes >= mem_bytes", name=op.f("ck_slices_mem")),
        sa.CheckConstraint("share_permille BETWEEN 1 AND 1000", name=op.f("ck_slices_share")),
        sa.ForeignKeyConstraint(["gpu_id"], ["gpus.id"], name=op.f("fk_slices_gpu_id")),
        sa.ForeignKeyConstraint(["profile_id"], ["profiles.id"], name=op.f("fk_slices_profile_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_slices_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_slices")),
    )
    op.create_index(op.f("ix_slices_gpu_id"), "slices", ["gpu_id"], unique=False)
    op.create_index(op.f("ix_slices_profile_id"), "slices", ["profile_id"], unique=False)
    op.create_index(op.f("ix_slices_tenant_id"), "slices", ["tenant_id"], unique=False)
    op.create_index(op.f("ix_slices_vm_uuid"), "slices", ["vm_uuid"], unique=False)

    op.create_table(
        "slice_observations",
        sa.Column("slice_id", sa.Uuid(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.Column("vm_uuid", sa.Uuid(), nullable=True),
        sa.Column("applied_permille", sa.BigInteger(), nullable=True),
        sa.Column("run_ns", sa.BigInteger(), nullable=False),
        sa.Column("items", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.String(length=200), nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["slice_id"], ["slices.id"], name=op.f("fk_slice_observations_slice_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("slice_id", name=op.f("pk_slice_observations")),
    )
