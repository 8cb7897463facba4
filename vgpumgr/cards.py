# SPDX-License-Identifier: Apache-2.0
"""Identity of cards. A card is identified by its own identifiers; the slot it is plugged into is only an attribute.

NVIDIA's driver reports a UUID, which takes precedence over the serial number of the PCI function. A card with neither
is identified by its PCI address, as long as that address has a function of the same vendor and device. An address is
weak: if two such cards of the same model change places, the exchange goes unnoticed. Pure.
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
    """The identifiers of a card; an unknown identifier is empty. `pci_ids`: vendor and device, as in ``10de:2330``."""

    uuid: str = ""
    serial: str = ""
    pci_ids: str = ""

    @property
    def identified_by(self) -> IdentifiedBy:
        """The strongest identifier that is known."""
        if self.uuid:
            return IdentifiedBy.UUID
        return IdentifiedBy.SERIAL if self.serial else IdentifiedBy.ADDRESS

    def is_same(self, other: "Card") -> bool | None:
        """Whether `other` is the same card, None if only an address could decide."""
        if self.uuid and other.uuid:
            return self.uuid == other.uuid
        if self.serial and other.serial:
            return self.serial == other.serial
        if self.pci_ids and other.pci_ids and self.pci_ids != other.pci_ids:
            return False
        return None

    def learned(self, other: "Card") -> "Card":
        """Return this card with the identifiers of `other` added. `other` must be the same card."""
        return Card(
            uuid=other.uuid or self.uuid, serial=other.serial or self.serial, pci_ids=other.pci_ids or self.pci_ids
        )


@dataclass(frozen=True, kw_only=True)
class Known:
    """A card in the records. `address`: where it was last seen. `present`: whether it is recorded as plugged in."""

    card: Card
    address: str
    present: bool = True


def nowhere(key: str, taken: Container[str] = ()) -> str:
    """Return an address that no card has and that is not in `taken`, for an absent card whose slot holds another card.

    The result is the same for the same arguments. Real machines have no PCI domain of that number.
    """
    addresses = (_nowhere(f"{key}{attempt or ''}") for attempt in count())
    return next(address for address in addresses if address not in taken)


def _nowhere(key: str) -> str:
    digest = hashlib.sha256(key.encode()).digest()
    return f"{_NOWHERE}:{digest[0]:02x}:{digest[1]:02x}.{digest[2] % 8}"


def is_nowhere(address: str) -> bool:
    """Whether this is an address that no card has."""
    return address.startswith(_NOWHERE)


def distinct(found: Mapping[str, Card]) -> dict[str, Card]:
    """Return the cards by address. Identifiers that several cards share are emptied: they identify no card."""
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
    """Return the present addresses of known cards, found by identifier and else by address. Absent cards are left out.

    `found`: `distinct` cards by address. An address that two absent cards had in common identifies neither card.
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
