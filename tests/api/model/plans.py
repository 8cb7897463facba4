# SPDX-License-Identifier: Apache-2.0
"""More actions of tenants and operators in a life: reservations, batches, quota changes, drained hosts, and a fence
that meets claims under way.
"""

from dataclasses import replace
from typing import Any
from uuid import uuid4

from tests.api.concurrency.races import at_once
from tests.api.model.promises import CUT, LIMITS, SHARES, Held

PLANS = {
    "reserve": 3,
    "draw": 4,
    "end_reservation": 1,
    "reservation_expires": 1,
    "claim_several": 2,
    "change_quota": 1,
    "drain": 1,
    "open_again": 2,
    "fence_among_claims": 2,
}
WIDE = 3


class Plans:
    """The part of `Life` with these actions."""

    def end_plans(self) -> None:
        """Prepares the end of a life: nothing is reserved, and every host is open."""
        for held in list(self.promised.held):
            self.service.operator.ask("DELETE", f"/v1/reservations/{held}")
            del self.promised.held[held]
        self.service.give_expired_back()
        while self.promised.closed:
            self.open_again()

    # ---- reservations

    def reserve(self) -> None:
        kind, profile = self.rng.choice(["account", "project"]), self.rng.choice(list(SHARES))
        places = self.rng.randint(1, WIDE)
        body = {"tenant": self.names[kind], "profile": self.names[profile], "places": places, "expires_in_s": 86400}
        room = self.promised.room(kind, [profile] * places)
        reply = self.ask_once("/v1/reservations", body)
        if reply.status == 201:
            assert room, "more than the quota was held"
            self.promised.held[reply.body["id"]] = Held(kind, profile, places)
        else:
            assert reply.code == ("capacity.none" if room else "quota.exceeded"), reply.body
        self._look()

    def draw(self) -> None:
        if not self.promised.held:
            return
        chosen = self._reservation()
        held = self.promised.held[chosen]
        reply = self.ask_once("/v1/slices", self._drawing(chosen))
        if reply.status == 201:
            self._drawn(chosen, 1)
            self.granted(held.owner, held.profile, reply.body)
        else:
            assert reply.code == ("capacity.none" if held.places else "reservation.used"), reply.body
        self._look()

    def end_reservation(self) -> None:
        if not self.promised.held:
            return
        chosen, blow = self._reservation(), self._blow()
        reply = self.service.ask(self.service.operator, "DELETE", f"/v1/reservations/{chosen}", blow=blow)
        assert reply.status == 204 or (reply.repeated and reply.code == "object.unknown"), reply.body
        del self.promised.held[chosen]
        self._look()

    def reservation_expires(self) -> None:
        """The service notifies nobody. A claim that needs the reserved room makes the service release it first."""
        if not self.promised.held:
            return
        chosen = self._reservation()
        self.service.let_expire(chosen)
        held = self.promised.held.pop(chosen)
        reply = self.service.operator.ask("POST", "/v1/slices", self._drawing(chosen, held))
        assert reply.code == "object.unknown", reply.body
        self._look()

    # ---- batches and quotas

    def claim_several(self) -> None:
        """Claims several slices, all or none; one of them may draw from a reservation."""
        kind, profiles = self.rng.choice(["account", "project"]), self.rng.choices(list(SHARES), k=WIDE)
        chosen = [one for one, held in self.promised.held.items() if held.owner == kind][:1]
        wanted = [{"tenant": self.names[kind], "profile": self.names[profile]} for profile in profiles]
        reply = self.ask_once("/v1/slices:batch", {"slices": [*wanted, *map(self._drawing, chosen)]})
        room = self.promised.room(kind, profiles)
        if reply.status == 201:
            assert room, "more than the quota was granted"
            for one in chosen:
                profiles.append(self.promised.held[one].profile)
                self._drawn(one, 1)
            for profile, said in zip(profiles, reply.body["slices"], strict=True):
                self.granted(kind, profile, said)
        elif reply.code == "quota.exceeded":
            assert not room, f"refused although there is room: {reply.body}"
        elif reply.code == "reservation.used":
            assert [self.promised.held[one].places for one in chosen] == [0], reply.body
        else:
            assert reply.code == "capacity.none", reply.body
        self._look()

    def change_quota(self) -> None:
        """Cuts the quota, perhaps below its use, or restores it."""
        kind = self.rng.choice(["account", "project"])
        limits = CUT if self.promised.limits[kind] == LIMITS[kind] else LIMITS[kind]
        path = f"/v1/quotas/{self.names[kind]}"
        reply = self.ask_latest("PATCH", path, limits, of=path)
        assert reply.status == 200, reply.body
        self.promised.limits[kind] = limits
        self._look()

    # ---- hosts

    def drain(self) -> None:
        name = self._any().name
        if name in self.promised.closed:
            return
        path, key = f"/v1/hosts/{name}", str(uuid4())
        while True:
            generation = self.service.operator.ask("GET", path).body["generation"]
            reply = self.service.operator.ask("POST", f"{path}:drain", {}, if_match=generation, key=key)
            if reply.code != "generation.stale":
                break
        if name in self.promised.fenced:
            assert reply.code == "host.fenced", reply.body
            return
        assert reply.status == 202, reply.body
        self.promised.closed[name] = reply.body["id"]
        self._look()

    def open_again(self) -> None:
        if not self.promised.closed:
            return
        name = self.rng.choice(sorted(self.promised.closed))
        path = f"/v1/operations/{self.promised.closed.pop(name)}:cancel"
        reply = self.service.operator.ask("POST", path, {"undo": True})
        if reply.code == "operation.done":
            path = f"/v1/hosts/{name}"
            reply = self.ask_latest("POST", f"{path}:uncordon", None, of=path)
        assert reply.status == 200, reply.body
        self._look()

    def fence_among_claims(self) -> None:
        """Fences a live host by force while claims are under way to it; they draw from a reservation if there is
        one.
        """
        machine = self._any()
        if machine.away or not self._known(machine):
            return
        self._report(machine, "nothing", None)
        held = [one for one, held in self.promised.held.items() if held.places]
        path, operator = f"/v1/hosts/{machine.name}", self.service.operator
        if held:
            chosen = self.rng.choice(sorted(held))
            kind, profile, body = self.promised.held[chosen].owner, self.promised.held[chosen].profile, {}
            body = self._drawing(chosen)
        else:
            chosen, kind, profile = "", "account", "small"
            body = {"tenant": self.names[kind], "profile": self.names[profile], "host": machine.name}
        generation = operator.ask("GET", path).body["generation"]
        confirmed = {"confirm": machine.name, "force": True}
        claims = [self._apart("POST", "/v1/slices", body, key=str(uuid4())) for _ in range(WIDE)]
        fence = self._apart("POST", f"{path}:fence", confirmed, if_match=generation)
        fenced, *replies = at_once([fence, *claims])
        self.service.story.append(f"fence {machine.name} among {body}: {[reply.code for reply in replies]}")
        assert fenced.code in ("", "generation.stale"), fenced.body
        for reply in replies:
            if reply.status == 201:
                self.granted(kind, profile, reply.body, fenced=machine.name if fenced.status == 200 else "")
            else:
                assert reply.code in ("capacity.none", "reservation.used", "quota.exceeded"), reply.body
        if chosen:
            self._drawn(chosen, sum(reply.status == 201 for reply in replies))
        if fenced.status == 200:
            self.lose(machine.name)
        self._look()

    # ---- helpers

    def _apart(self, *arguments: Any, **options: Any) -> Any:
        """A request by another client, which is already connected."""
        caller = self.service.deployment.caller()
        caller.ask("GET", "/")
        return lambda: caller.ask(*arguments, **options)

    def _reservation(self) -> str:
        return self.rng.choice(sorted(self.promised.held))

    def _drawing(self, chosen: str, held: Held | None = None) -> dict[str, Any]:
        held = held or self.promised.held[chosen]
        return {"tenant": self.names[held.owner], "profile": self.names[held.profile], "reservation": chosen}

    def _drawn(self, chosen: str, places: int) -> None:
        held = self.promised.held[chosen]
        assert places <= held.places, "a place was given twice"
        self.promised.held[chosen] = replace(held, places=held.places - places)
