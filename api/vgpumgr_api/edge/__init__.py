# SPDX-License-Identifier: Apache-2.0
"""A request's way in and out: who asks, what the request says, and how answers and problems look.

`transport` is what lies below a request, `openapi` the document that describes them all.
"""
