# SPDX-License-Identifier: Apache-2.0
"""The whole database in one file, of either engine and for either: `make` writes it, `restore` puts it back."""
