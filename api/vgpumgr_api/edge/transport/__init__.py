# SPDX-License-Identifier: Apache-2.0
"""Sockets and HTTP/1.1: where the API and its metrics listen, and how clients' use of connections is limited."""
