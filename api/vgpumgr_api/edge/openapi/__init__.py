# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, made from the routes and completed by what holds for all of them."""
