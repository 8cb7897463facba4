# SPDX-License-Identifier: Apache-2.0
"""Tokens of operators and tenants. Hosts get theirs by enrolling."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from vgpumgr.wire.common import Name, Page
from vgpumgr.wire.resources import Token, TokenCreate, TokenCreated, TokenRole
from vgpumgr_api.auth import tokens
from vgpumgr_api.edge.call import CallDep, Flag, IdempotencyKey, PageDep, TrialDep
from vgpumgr_api.edge.strict import Route

router = APIRouter(prefix="/v1/tokens", tags=["tokens"], route_class=Route)


@router.get("")
def list_tokens(
    call: CallDep,
    page: PageDep,
    role: TokenRole | None = None,
    subject: Annotated[Name | None, Query(description="only tokens for this tenant or host")] = None,
    expired: Flag | None = None,
) -> Page[Token]:
    """Lists tokens without their secrets, including expired ones."""
    return call.read(tokens.list_tokens, page, role=role, subject=subject, expired=expired)


@router.post("", status_code=201)
def create_token(call: CallDep, wanted: TokenCreate, idempotency_key: IdempotencyKey = None) -> TokenCreated:
    """Creates a token. Its `secret` is shown once; a repeat with the same Idempotency-Key gets only the token's id."""
    token = call.show_once(
        idempotency_key,
        lambda session, actor: tokens.create_token(session, actor, wanted),
        wanted,
        made=lambda answer: f"token {answer.id}",
    )
    call.located(f"/v1/tokens/{token.id}")
    return token


@router.delete("/{token_id}", status_code=204)
def delete_token(call: TrialDep, token_id: UUID) -> None:
    """Revokes a token at once."""
    call.write(tokens.delete_token, token_id)
