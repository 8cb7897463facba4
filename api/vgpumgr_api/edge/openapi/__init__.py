# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, made from the routes and completed with what applies to all of them."""
