# SPDX-License-Identifier: Apache-2.0
"""How many connections there may be and how long a client may take: the table `[connections]` of the settings."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[int, Field(ge=1, le=3600)]


class ConnectionSettings(BaseModel):
    """Each replica counts for itself.

    `total`: connections at most. `per_address`: from one IPv4 address or one /64 of IPv6; 0: as many as `total`; those
    of a Unix socket have no address. `bodies_bytes`: bodies of requests that are held at once, all together; one in 16
    of them those of strangers, as hosts that enrol, and one in 64 those of strangers from one address.

    `handshake_s`: from a connection to the end of TLS's handshake, and how long its end may take. `head_s`: until a
    request's head is complete, from the connection or, on one that was kept, from the head's first byte. `body_s`: from
    there to the end of its body. `idle_s`: how long a connection is kept between two requests. `take_s`: how long a
    client may take to take an answer, or one piece of one that goes on.
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
