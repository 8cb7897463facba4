# SPDX-License-Identifier: Apache-2.0
"""Where claimed cards are plugged in now. Pure.

The API names a card by what it said of itself, with the address that it had when the host last reported. Between that
and now somebody may have opened the host, so every address in a desired state is looked up before it is used.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from vgpumgr.cards import Card, Known, distinct, located, nowhere
from vgpumgr.wire.fleet import DesiredCard, DesiredGroup, DesiredSlice
from vgpumgr_agent.backends import Observed, ObservedGpu

Named = TypeVar("Named", DesiredGroup, DesiredSlice)
Cards = Mapping[str, Card]
"""Those of this host, by address."""

_SHOWN = 5


def cards_of(observed: Observed, others: Sequence[ObservedGpu]) -> Cards:
    """Return this host's cards. `others`: GPUs as their own driver knows them, also those that are shared."""
    uuids = {gpu.address: gpu.uuid for gpu in others}
    found = {gpu.address: gpu for gpu in [*others, *observed.gpus.values()]}
    return distinct(
        {
            address: Card(uuid=gpu.uuid or uuids.get(address, ""), serial=gpu.serial, pci_ids=gpu.pci_ids)
            for address, gpu in found.items()
        }
    )


def placed(named: Sequence[Named], cards: Cards) -> list[Named]:
    """Return the same with the present addresses; of cards that are not here one that no card has, if theirs is taken.

    What is of a card that the API cannot tell from others keeps its address.
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
    """Return a card as the API names it."""
    return Card(uuid=named.uuid, serial=named.serial, pci_ids=named.pci_ids)


def called(card: DesiredCard) -> str:
    """Return what people can look for."""
    return card.uuid or (f"of serial number {card.serial}" if card.serial else f"of kind {card.pci_ids}")


def absent(claims: Sequence[DesiredSlice], cards: Cards) -> list[str]:
    """Return a line for each claimed card that is not here, with what it hits."""
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
