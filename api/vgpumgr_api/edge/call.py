# SPDX-License-Identifier: Apache-2.0
"""One request on its way to a service: its actor, and the transaction in which its answer is made."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from fastapi import Depends, Header, Query, Request, Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Answer
from vgpumgr_api import actors
from vgpumgr_api.actors import Actor
from vgpumgr_api.auth import certificates, credentials, people
from vgpumgr_api.auth.remembered import Remembered
from vgpumgr_api.db.database import Database
from vgpumgr_api.edge.headers import ETAG, authorization_token, bearer, etag, seen
from vgpumgr_api.edge.lifecycle import Lifecycle
from vgpumgr_api.edge.readiness import Readiness
from vgpumgr_api.events.feed import Feed
from vgpumgr_api.events.watch import DesiredWatch
from vgpumgr_api.fleet import agents
from vgpumgr_api.fleet.heartbeat_lots import Heartbeats
from vgpumgr_api.fleet.heartbeats import Source
from vgpumgr_api.overload.connections import network_of
from vgpumgr_api.overload.failed_logins import FailedLogins
from vgpumgr_api.overload.rates import Limits
from vgpumgr_api.overload.turns import Turns
from vgpumgr_api.resources import idempotency
from vgpumgr_api.resources.generations import Seen
from vgpumgr_api.resources.idempotency import Once
from vgpumgr_api.resources.paging import PAGE_SIZE, TOKEN_MAX, PageRequest

if TYPE_CHECKING:
    from vgpumgr_api.auth.agent_ca import Peer
    from vgpumgr_api.auth.oidc import Oidc

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A", bound=Answer)
W = TypeVar("W", bound=BaseModel)

PEER = "peer"
"""The name in a request's state under which the server stores the content of a client's certificate."""

CONFIRMING = "confirming"
"""The name in a request's state which says that the service itself confirms the caller's credential."""

Service = Callable[Concatenate[Session, Actor, P], T]


def database_of(request: Request) -> Database:
    """Returns the database of the application that received this request."""
    database: Database = request.app.state.database
    return database


def watch_of(request: Request) -> DesiredWatch:
    """Returns the application's watch of hosts' desired states."""
    watch: DesiredWatch = request.app.state.watch
    return watch


def heartbeats_of(request: Request) -> Heartbeats[Source]:
    """Returns the application's collector of hosts' heartbeats."""
    beats: Heartbeats[Source] = request.app.state.heartbeats
    return beats


def feed_of(request: Request) -> Feed:
    """Returns the application's feed of events."""
    feed: Feed = request.app.state.feed
    return feed


def limits_of(request: Request) -> Limits:
    """Returns the application's request rate limits."""
    limits: Limits = request.app.state.limits
    return limits


def turns_of(request: Request) -> Turns:
    """Returns the application's turns, which limit the concurrent work."""
    turns: Turns = request.app.state.turns
    return turns


def failed_logins_of(request: Request) -> FailedLogins:
    """Returns the application's record of addresses that showed invalid credentials."""
    failed: FailedLogins = request.app.state.failed_logins
    return failed


def credential_of(request: Request) -> str:
    """Returns a hash or id that identifies a request's credential without revealing it; "" if there is none.

    It does not depend on the spelling of the header; otherwise each spelling would cause a lookup.
    """
    shown = request.headers.get("authorization")
    if shown is not None:
        return actors.hash_of(authorization_token(request.headers) or shown)
    peer: Peer | None = getattr(request.state, PEER, None)
    return "" if peer is None else credentials.proof_of(peer.credential)


def remembered_of(request: Request) -> Remembered:
    """Returns the application's cache of looked-up credentials."""
    remembered: Remembered = request.app.state.remembered
    return remembered


def recall(request: Request) -> Actor | None:
    """Returns the remembered actor of this credential; None if it has expired or does not match the certificate.

    Only the database can show whether the credential was revoked.

    Returns None for credentials that are not in our database, because no service confirms those. Stores the actor in
    the request's state like `authenticate`.
    """
    actor = remembered_of(request).find(credential_of(request))
    if actor is None or actor.token_id is None:
        return None
    now = database_of(request).clock()
    peer: Peer | None = getattr(request.state, PEER, None) if actor.certified else None
    ends = (actor.expires_at, None if peer is None else peer.expires_at)
    if any(end is not None and end <= now for end in ends) or (peer is not None and peer.host_id != actor.host_id):
        return None
    return _noted(request, replace(actor, request_id=request.state.request_id, source=source_of(request)))


def operations_watch_of(request: Request) -> DesiredWatch:
    """Returns the application's watch of operations' ends."""
    watch: DesiredWatch = request.app.state.operations_watch
    return watch


def lifecycle_of(request: Request) -> Lifecycle:
    """Returns the lifecycle of the application's process."""
    lifecycle: Lifecycle = request.app.state.lifecycle
    return lifecycle


def source_of(request: Request) -> str:
    """Returns the address that a request came from; "" on a Unix socket."""
    return request.client.host if request.client else ""


def readiness_of(request: Request) -> Readiness:
    """Returns the readiness of the application's database."""
    readiness: Readiness = request.app.state.readiness
    return readiness


def network_of_source(request: Request) -> str:
    """Returns the network by which limits count the request's address; "" on a Unix socket."""
    return network_of(source_of(request))


def authenticate(request: Request) -> Actor:
    """Returns the actor, by its token or else by an agent's certificate that TLS has verified against our authorities.

    Blocks on the database, and for a person's token with an unknown key also on the issuer. Stores the actor, and its
    name for the log, in ``request.state``.
    """
    known: dict[str, str] = {"request_id": request.state.request_id, "source": source_of(request)}
    peer: Peer | None = getattr(request.state, PEER, None)
    if peer is not None and "authorization" not in request.headers:
        return _noted(
            request,
            _looked_up(request, lambda session: certificates.authenticate(session, peer, **known)),
        )
    secret = bearer(request.headers)
    oidc: Oidc | None = request.app.state.oidc
    if oidc is not None and oidc.looks_like_one(secret):
        person = oidc.person(secret)
        actor = _looked_up(request, lambda session: people.recognise(session, person, **known))
    else:
        actor = _looked_up(request, lambda session: actors.authenticate(session, secret, **known))
    return _noted(request, actor)


def enrolling(request: Request) -> None:
    """Raises Refusal for a request without a one-time token that enrols a host. Blocks on the database."""
    secret = bearer(request.headers)
    _looked_up(request, lambda session: agents.require_enrolling(session, secret))


def _looked_up(request: Request, look: Callable[[Session], T]) -> T:
    """Looks up an actor. One statement is enough; only refusals need more."""
    return database_of(request).run(look, read_only=True, snapshot=False)


def _noted(request: Request, actor: Actor) -> Actor:
    request.state.actor = actor
    request.state.caller = actor.name
    return actor


@dataclass(frozen=True)
class Call:
    """Runs services for one authenticated request. Each of `read` and `write*` is one transaction and blocks.

    The transaction first checks that the caller's credential is still valid, because it was looked up before the body
    arrived. `trial`: the change is checked and answered in the same way, and then rolled back.
    """

    request: Request
    response: Response
    actor: Actor
    trial: bool = False

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Returns the turn for one step of an endpoint that waits for news. Other endpoints have one for all work."""
        return turns_of(self.request).turn(self.actor, news=True)

    def _run(self, work: Callable[[Session], T], *, read_only: bool = False) -> T:
        confirm = actors.require_unexpired if getattr(self.request.state, CONFIRMING, False) else actors.confirm

        def confirmed(session: Session) -> T:
            confirm(session, self.actor)
            return work(session)

        return database_of(self.request).run(confirmed, read_only=read_only)

    def read(self, service: Service[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(lambda session: service(session, self.actor, *args, **kwargs), read_only=True)

    def write(self, service: Service[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.trial:
            return self._run(lambda session: self._tried(session, service, *args, **kwargs))
        return self._run(lambda session: service(session, self.actor, *args, **kwargs))

    def _tried(self, session: Session, service: Service[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        with session.begin_nested() as trial:
            answer = service(session, self.actor, *args, **kwargs)
            session.flush()
            trial.rollback()
        if answer is not None:
            self.response.status_code = HTTPStatus.OK
        return answer

    def write_once(
        self, key: str | None, service: Callable[[Session, Actor, W], A], wanted: W, /, *, kind: type[A]
    ) -> A:
        """Like `write`, but a repeated idempotency key returns the first answer again."""
        if key is None or self.trial:
            return self.write(service, wanted)
        told = self.once(key, wanted).request_hash
        return self._run(
            lambda session: idempotency.once(
                session, self.actor, key, told, lambda: service(session, self.actor, wanted), kind
            )
        )

    def show_once(
        self,
        key: str | None,
        service: Callable[[Session, Actor], A],
        wanted: BaseModel | None,
        *,
        made: Callable[[A], str],
    ) -> A:
        """Like `write`, for an answer with a secret, which a repeated request does not get again.

        A repeated request with the same idempotency key gets only the name that `made` returned. `wanted`: the body of
        the request.
        """
        if key is None:
            return self.write(service)
        once = self.once(key, wanted)
        return self._run(
            lambda session: idempotency.shown_once(
                session, self.actor, once, lambda: service(session, self.actor), made
            )
        )

    def located(self, path: str) -> None:
        """Sets the Location header to the path of the object that was created."""
        if self.trial:
            return
        self.response.headers["Location"] = path

    def tag(self, identity: UUID | None, generation: int) -> None:
        """Sets the ETag header to the state of an object.

        The tag contains the epoch of the caller's lookup. If the epoch has changed since, the tag matches no state, and
        the client has to read the object again.
        """
        if self.trial or self.actor.epoch is None or identity is None:
            return
        self.response.headers["ETag"] = etag(self.actor.epoch, identity, generation)

    def once(self, key: str, wanted: BaseModel | None) -> Once:
        """Returns the idempotency key with a hash that identifies this request.

        The hash covers the parsed request, not its bytes. White space and the order of members do not matter, and
        neither do members with default values, which newer clients may send.
        """
        url = self.request.url
        said = {} if wanted is None else wanted.model_dump(mode="json", exclude_defaults=True)
        body = json.dumps(said, sort_keys=True)
        told = f"{self.request.method}\n{url.path}\n{url.query}\n{body}"
        return Once(key, sha256(told.encode()).hexdigest())


# ---- dependencies of endpoints; async, so that none of them costs a thread


async def _call(request: Request, response: Response) -> Call:
    return Call(request, response, request.state.actor)


async def _page(
    request: Request,
    page_size: Annotated[
        int, Query(ge=1, description="at most this many items; more than 1000 counts as 1000")
    ] = PAGE_SIZE,
    page_token: Annotated[str, Query(max_length=TOKEN_MAX, description="`next_page_token` of the previous page")] = "",
) -> PageRequest:
    filters = sorted(each for each in request.query_params.multi_items() if not each[0].startswith("page_"))
    bound = sha256(json.dumps(filters).encode()).hexdigest()[:16] if filters else ""
    return PageRequest(size=page_size, token=page_token, bound=bound)


async def _if_match(
    request: Request,
    if_match: Annotated[  # noqa: ARG001
        Annotated[str, Field(json_schema_extra={"pattern": ETAG})] | None,
        Header(alias="If-Match", description="ETag of the object as it was read"),
    ] = None,
) -> Seen | None:
    return seen(request.headers)


def _flag(said: object) -> bool:
    """Accepts only JSON's spellings; pydantic would accept `yes`, `on` and `1` as well."""
    if said not in ("true", "false"):
        raise ValueError("neither true nor false")
    return said == "true"


Flag = Annotated[bool, BeforeValidator(_flag)]
"""A boolean query parameter."""


async def _trial(
    request: Request,
    response: Response,
    validate_only: Annotated[Flag, Query(description="check and answer as usual, but change nothing")] = False,
) -> Call:
    return Call(request, response, request.state.actor, trial=validate_only)


def _key(said: str) -> str:
    if not idempotency.KEY.fullmatch(said):
        raise ValueError("not 1 to 255 visible ASCII characters; send a UUID")
    return said


CallDep = Annotated[Call, Depends(_call)]
TrialDep = Annotated[Call, Depends(_trial)]
PageDep = Annotated[PageRequest, Depends(_page)]
IfMatch = Annotated[Seen | None, Depends(_if_match)]
IdempotencyKey = Annotated[
    # The pattern is for the OpenAPI document; the validator's message is easier to understand.
    Annotated[str, AfterValidator(_key), Field(json_schema_extra={"pattern": f"^{idempotency.KEY.pattern}$"})] | None,
    Header(
        alias="Idempotency-Key",
        description="1 to 255 visible ASCII characters; a repeat with the same key changes nothing",
    ),
]
