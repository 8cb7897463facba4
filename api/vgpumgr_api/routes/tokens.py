# SPDX-License-Identifier: Apache-2.0
"""Tokens of operators and tenants. Hosts get theirs by enrolling."""

from uuid import UUID

from fastapi import APIRouter

from vgpumgr.wire.common import Page
from vgpumgr.wire.resources import Token, TokenCreate, TokenCreated
from vgpumgr_api.call import CallDep, PageDep
from vgpumgr_api.services import tokens
from vgpumgr_api.strict import Route

router = APIRouter(prefix="/v1/tokens", tags=["tokens"], route_class=Route)


@router.get("")
def list_tokens(call: CallDep, page: PageDep) -> Page[Token]:
    """Tokens without their secrets."""
    return call.read(tokens.list_tokens, page)


@router.post("", status_code=201)
def create_token(call: CallDep, wanted: TokenCreate) -> TokenCreated:
    """Makes a token. Its `secret` is shown once; an Idempotency-Key is therefore not heeded."""
    token = call.write(tokens.create_token, wanted)
    call.located(f"/v1/tokens/{token.id}")
    return token


@router.delete("/{token_id}", status_code=204)
def delete_token(call: CallDep, token_id: UUID) -> None:
    """Revokes a token at once."""
    call.write(tokens.delete_token, token_id)
