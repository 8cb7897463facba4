# SPDX-License-Identifier: Apache-2.0
"""The steps that created the database's tables (alembic). Installed as ``vgpumgr_api.migrations``."""
