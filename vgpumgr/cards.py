# SPDX-License-Identifier: Apache-2.0
"""Which card is which. A card is known by what it says of itself; where it is plugged in is an attribute.

A UUID, which NVIDIA's driver tells, comes before the serial number of the PCI function. A card that has neither is
known by its PCI address, as long as a function of the same vendor and device is there. That is weak: if two such cards
of one kind change places, nobody can tell. Pure.
"""

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

from vgpumgr.wire.common import IdentifiedBy

Key = TypeVar("Key")

_NOWHERE = "ffffffff"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a card says of itself; empty where nobody knows. `pci_ids`: vendor and device, as in ``10de:2330``."""

    uuid: str = ""
    serial: str = ""
    pci_ids: str = ""

    @property
    def identified_by(self) -> IdentifiedBy:
        """The strongest that is known."""
        if self.uuid:
            return IdentifiedBy.UUID
        return IdentifiedBy.SERIAL if self.serial else IdentifiedBy.ADDRESS

    def is_same(self, other: "Card") -> bool | None:
        """Whether these are one card, None if nothing but an address can tell."""
        if self.uuid and other.uuid:
            return self.uuid == other.uuid
        if self.serial and other.serial:
            return self.serial == other.serial
        if self.pci_ids and other.pci_ids and self.pci_ids != other.pci_ids:
            return False
        return None

    def learned(self, other: "Card") -> "Card":
        """Return this card with what `other`, which is the same one, says as well."""
        return Card(
            uuid=other.uuid or self.uuid, serial=other.serial or self.serial, pci_ids=other.pci_ids or self.pci_ids
        )


@dataclass(frozen=True, kw_only=True)
class Known:
    """A card as it was last seen. `present`: it was there."""

    card: Card
    address: str
    present: bool = True


def nowhere(key: str, taken: Container[str] = ()) -> str:
    """Return an address that no card has, for one that is absent while another is where it was. Not one of `taken`.

    Equal for equal arguments. No machine has a PCI domain of that number.
    """
    addresses = (_nowhere(f"{key}{attempt or ''}") for attempt in count())
    return next(address for address in addresses if address not in taken)


def _nowhere(key: str) -> str:
    digest = hashlib.sha256(key.encode()).digest()
    return f"{_NOWHERE}:{digest[0]:02x}:{digest[1]:02x}.{digest[2] % 8}"


def is_nowhere(address: str) -> bool:
    """Whether no card has this address."""
    return address.startswith(_NOWHERE)


def distinct(found: Mapping[str, Card]) -> dict[str, Card]:
    """Return cards by address without what several of them say: it identifies none."""
    uuids = Counter(card.uuid for card in found.values())
    serials = Counter(card.serial for card in found.values())
    return {
        address: replace(
            card,
            uuid=card.uuid if uuids[card.uuid] == 1 else "",
            serial=card.serial if serials[card.serial] == 1 else "",
        )
        for address, card in found.items()
    }


def located(known: Mapping[Key, Known], found: Mapping[str, Card]) -> dict[Key, str]:
    """Return where known cards are now, by what they say of themselves, else by the address; absent ones are left out.

    `found`: `distinct` cards by address. Where two absent cards had the same address, that tells neither.
    """
    places: dict[Key, str] = {}
    uuids = {card.uuid: address for address, card in found.items() if card.uuid}
    serials = {card.serial: address for address, card in found.items() if card.serial}
    for key, one in known.items():
        for address in (uuids.get(one.card.uuid), serials.get(one.card.serial)):
            if address is not None and address not in places.values() and one.card.is_same(found[address]):
                places[key] = address
                break
    taken = set(places.values())
    candidates: dict[str, list[Key]] = {}
    for key, one in known.items():
        card = found.get(one.address)
        if key not in places and one.address not in taken and card is not None and one.card.is_same(card) is None:
            candidates.setdefault(one.address, []).append(key)
    for address, keys in candidates.items():
        chosen = _only(keys) or _only(key for key in keys if known[key].present)
        if chosen:
            places[chosen[0]] = address
    return places


def _only(keys: Iterable[Key]) -> list[Key]:
    found = list(keys)
    return found if len(found) == 1 else []
