# SPDX-License-Identifier: Apache-2.0
"""Finds where claimed cards are plugged in now. Pure.

The API names a card by its identity, with the address of the host's last report. Since then the card may have been
moved to another slot. So every address in a desired state is looked up before it is used.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from vgpumgr.cards import Card, Known, distinct, located, nowhere
from vgpumgr.wire.fleet import DesiredCard, DesiredGroup, DesiredSlice
from vgpumgr_agent.backends import Observed, ObservedGpu

Named = TypeVar("Named", DesiredGroup, DesiredSlice)
Cards = Mapping[str, Card]
"""This host's cards, by address."""

_SHOWN = 5


def cards_of(observed: Observed, others: Sequence[ObservedGpu]) -> Cards:
    """Return this host's cards. `others`: GPUs as reported by their own driver, including shared ones."""
    uuids = {gpu.address: gpu.uuid for gpu in others}
    found = {gpu.address: gpu for gpu in [*others, *observed.gpus.values()]}
    return distinct(
        {
            address: Card(uuid=gpu.uuid or uuids.get(address, ""), serial=gpu.serial, pci_ids=gpu.pci_ids)
            for address, gpu in found.items()
        }
    )


def placed(named: Sequence[Named], cards: Cards) -> list[Named]:
    """Return claims or groups with the present addresses of their cards.

    An absent card keeps its address, unless another card has this address now. In that case the absent card gets an
    address that no card has. A card that the API cannot distinguish from other cards keeps its address.
    """
    known: dict[tuple[str, DesiredCard], str] = {}
    return [_placed(one, cards, known) for one in named]


def _placed(one: Named, cards: Cards, known: dict[tuple[str, DesiredCard], str]) -> Named:
    if one.card is None:
        return one
    key = (one.gpu, one.card)
    if key not in known:
        known[key] = _address(one.gpu, one.card, cards)
    return one if known[key] == one.gpu else one.model_copy(update={"gpu": known[key]})


def _address(last: str, named: DesiredCard, cards: Cards) -> str:
    card = card_of(named)
    there = located({"": Known(card=card, address=last)}, cards)
    if there:
        return there[""]
    return nowhere(repr(card), cards) if last in cards else last


def card_of(named: DesiredCard) -> Card:
    """Return the card that the API names."""
    return Card(uuid=named.uuid, serial=named.serial, pci_ids=named.pci_ids)


def called(card: DesiredCard) -> str:
    """Return a card's name for people."""
    return card.uuid or (f"of serial number {card.serial}" if card.serial else f"of kind {card.pci_ids}")


def absent(claims: Sequence[DesiredSlice], cards: Cards) -> list[str]:
    """Return a line for each absent card with claims. The line names the claims."""
    hit: dict[DesiredCard, list[UUID]] = {}
    for claim in claims:
        if claim.card is not None and claim.gpu not in cards:
            hit.setdefault(claim.card, []).append(claim.id)
    return [
        f"the GPU {called(card)} is not in this host, or has no driver; it has {len(slices)} slices: {_some(slices)}"
        for card, slices in hit.items()
    ]


def _some(slices: Sequence[UUID]) -> str:
    return ", ".join([*map(str, sorted(slices)[:_SHOWN]), *(["..."] if len(slices) > _SHOWN else [])])
