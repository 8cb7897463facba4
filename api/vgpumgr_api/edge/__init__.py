# SPDX-License-Identifier: Apache-2.0
"""The processing of a request and its answer: authentication, parsing, and the format of answers and problems.

`transport` is the layer below a request; `openapi` is the document that describes all requests.
"""
