# SPDX-License-Identifier: Apache-2.0
"""Limits of connections and of clients' time: the table `[connections]` of the settings."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[int, Field(ge=1, le=3600)]


class ConnectionSettings(BaseModel):
    """Limits of connections. Each replica counts separately.

    `total`: the maximum number of connections. `per_address`: the maximum from one IPv4 address or one IPv6 /64; 0: no
    limit except `total`. Connections to a Unix socket have no address. `bodies_bytes`: the maximum bytes of request
    bodies in memory; 1/16 of them is for unauthenticated clients such as hosts that enrol, and 1/64 for such clients of
    one address.

    `handshake_s`: the time for the TLS handshake, and for the end of TLS. `head_s`: the time for a complete request
    head, from the connection or, on a reused connection, from the head's first byte. `body_s`: the time from the end of
    the head to the end of the body. `idle_s`: how long a connection is kept between two requests. `take_s`: how long a
    client may take to read an answer, or one piece of a streamed answer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    total: Annotated[int, Field(ge=16, le=60_000)] = 12_000
    per_address: Annotated[int, Field(ge=0, le=60_000)] = 2_000
    bodies_bytes: Annotated[int, Field(ge=16 << 20, le=4 << 30)] = 256 << 20
    handshake_s: Seconds = 10
    head_s: Seconds = 10
    body_s: Seconds = 60
    idle_s: Seconds = 5
    take_s: Seconds = 60
