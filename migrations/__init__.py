# SPDX-License-Identifier: Apache-2.0
"""How the tables came to be, step by step (alembic). Ships as ``vgpumgr_api.migrations``."""
