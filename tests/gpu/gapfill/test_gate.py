# SPDX-License-Identifier: Apache-2.0
"""The gate's decisions step by step, and the effect of a client's death, silence or malice on others."""

from __future__ import annotations

import random

import pytest

from tests.gpu.gapfill.gate import ASKS_MAX, MS, US, Client, Gate, GateParams, MisuseError, Role
from vgpumgr.sched.core import ItemInfo

SHORT = ItemInfo(kernel_id=1, more=True)
OTHERS = ItemInfo(kernel_id=7)


class Story:
    """A gate and its clock."""

    def __init__(self, **params: int) -> None:
        self.now_ns = 0
        self.gate = Gate(GateParams(**params), 0)

    def attach(self, name: str) -> Client:
        return self.gate.attach(name, Role.FIRST if name == "first" else Role.OTHER, self.now_ns)

    def ask(self, client: Client, item: ItemInfo = OTHERS, *, after_us: int = 0) -> None:
        self.now_ns += after_us * US
        self.gate.ask(client, item, self.now_ns)

    def done(self, client: Client, *, after_us: int = 0) -> None:
        self.now_ns += after_us * US
        self.gate.done(client, self.now_ns)

    def wait_us(self, us: int) -> None:
        """Advance the time and tick whenever the gate wants it."""
        until_ns = self.now_ns + us * US
        while self.gate.wake_at_ns is not None and self.gate.wake_at_ns <= until_ns:
            self.now_ns = max(self.now_ns + 1, self.gate.wake_at_ns)
            self.gate.tick(self.now_ns)
        self.now_ns = until_ns

    def granted(self) -> list[str]:
        names = [client.name for client in self.gate.on_grant]
        self.gate.on_grant.clear()
        return names

    def teach(self, first: Client, other: Client, *, item_us: int, gap_us: int) -> None:
        """Run both in turns until the gate knows the first client's gaps and the length of the other's items."""
        for _ in range(20):
            self.ask(first, SHORT)
            self.done(first, after_us=50)
            self.now_ns += gap_us * US
        self.gate.end_request(first, self.now_ns)
        for _ in range(20):
            self.ask(other)
            self.done(other, after_us=item_us)
        assert set(self.granted()) == {other.name}


def test_on_an_idle_gpu_an_other_client_is_granted_at_once() -> None:
    story = Story()
    other = story.attach("other")
    story.ask(other)
    assert story.granted() == ["other"]


def test_a_first_client_is_never_granted_anything_it_does_not_wait() -> None:
    story = Story()
    first = story.attach("first")
    for _ in range(5):
        story.ask(first, SHORT)
    assert story.granted() == []
    assert story.gate.executing is first


def test_nobody_is_let_in_while_the_first_has_work() -> None:
    story = Story()
    first, other = story.attach("first"), story.attach("other")
    story.ask(first, SHORT)
    story.ask(first, ItemInfo(kernel_id=1))
    story.ask(other, after_us=10)
    assert story.granted() == []
    story.done(first, after_us=50)
    assert story.granted() == []
    story.done(first, after_us=50)  # the last item of its request, so no gap follows
    assert story.granted() == ["other"]


def test_an_item_that_fits_a_gap_is_let_in_and_one_that_does_not_waits() -> None:
    story = Story(inversion_burst_ns=20 * US)
    first, other = story.attach("first"), story.attach("other")
    story.teach(first, other, item_us=100, gap_us=1000)
    story.ask(first, SHORT)
    story.ask(other)
    story.done(first, after_us=50)
    assert story.granted() == ["other"]  # an item of 100 us in a gap of 1000 us
    story.done(other, after_us=100)
    story.now_ns += 830 * US
    story.ask(other)  # 70 us of the gap are left
    assert story.granted() == []
    story.ask(first, SHORT, after_us=70)
    assert story.granted() == []


def test_one_at_a_time_is_let_in_and_the_next_when_it_is_done() -> None:
    story = Story()
    one, two = story.attach("one"), story.attach("two")
    story.ask(one)
    story.ask(two)
    assert story.granted() == ["one"]
    story.done(one, after_us=300)
    assert story.granted() == ["two"]


def test_an_other_client_may_ask_ahead_by_one() -> None:
    story = Story()
    other = story.attach("other")
    story.ask(other)
    story.ask(other)
    assert story.granted() == ["other"]
    story.done(other, after_us=100)
    assert story.granted() == ["other"]


# ---- death


def test_a_client_that_dies_with_a_grant_holds_up_nobody() -> None:
    story = Story()
    one, two = story.attach("one"), story.attach("two")
    story.ask(one)
    story.ask(two)
    assert story.granted() == ["one"]
    story.gate.detach(one, story.now_ns)
    assert story.granted() == ["two"]


def test_a_client_that_dies_before_it_took_its_grant_is_not_granted_it() -> None:
    story = Story()
    one, two = story.attach("one"), story.attach("two")
    story.ask(one)
    story.gate.detach(one, story.now_ns)
    story.ask(two)
    assert story.granted() == ["two"]


def test_a_first_client_that_dies_while_it_holds_the_gpu_frees_it() -> None:
    story = Story()
    first, other = story.attach("first"), story.attach("other")
    story.ask(first, SHORT)
    story.done(first, after_us=50)
    story.ask(other)
    assert story.granted() == []  # the engine is held, because the gap's length is unknown
    story.gate.detach(first, story.now_ns)
    assert story.granted() == ["other"]


def test_after_its_death_another_may_be_first() -> None:
    story = Story()
    story.gate.detach(story.attach("first"), 0)
    assert story.attach("first").role == Role.FIRST


# ---- silence


def test_an_item_that_never_ends_is_withdrawn_and_its_client_waits_for_its_own_end() -> None:
    story = Story(overdue_ns=10 * MS)
    one, two = story.attach("one"), story.attach("two")
    story.ask(one)
    story.ask(two)
    assert story.granted() == ["one"]
    story.wait_us(9_999)
    assert story.granted() == []
    story.wait_us(1)
    assert (story.granted(), story.gate.overdue) == (["two"], 1)
    story.ask(one)
    with pytest.raises(MisuseError, match="more than it may"):
        story.ask(one)
    story.done(one, after_us=5)  # ends the withdrawn item and frees nothing
    assert story.gate.executing is two
    story.done(two, after_us=5)
    assert story.granted() == ["one"]


def test_a_first_client_that_says_it_is_busy_for_ever_does_not_starve_the_others() -> None:
    story = Story(overdue_ns=10 * MS)
    first, other = story.attach("first"), story.attach("other")
    for _ in range(3):
        story.ask(first, SHORT)
    story.ask(other)
    story.wait_us(10_000)
    assert story.granted() == ["other"]
    for _ in range(3):
        story.done(first)
    assert story.gate.executing is other


def test_a_first_client_that_promises_more_for_ever_holds_the_gpu_no_longer_than_allowed() -> None:
    story = Story(hold_max_ns=5 * MS)
    first, other = story.attach("first"), story.attach("other")
    story.ask(first, SHORT)
    story.done(first, after_us=50)
    story.ask(other)
    story.wait_us(4_900)
    assert story.granted() == []
    story.wait_us(200)
    assert story.granted() == ["other"]


# ---- malice


def test_what_was_not_granted_cannot_be_done() -> None:
    story = Story()
    one, two = story.attach("one"), story.attach("two")
    with pytest.raises(MisuseError, match="one says"):
        story.done(one)
    story.ask(one)
    story.ask(two)
    with pytest.raises(MisuseError, match="two says"):
        story.done(two)
    assert story.gate.executing is one


@pytest.mark.parametrize("name", ["first", "other"])
def test_nobody_has_more_under_way_than_is_allowed(name: str) -> None:
    story = Story()
    client = story.attach(name)
    for _ in range(ASKS_MAX[client.role]):
        story.ask(client, SHORT)
    with pytest.raises(MisuseError, match=name):
        story.ask(client, SHORT)
    assert len(client.asks) == ASKS_MAX[client.role]


def test_a_hint_that_cannot_be_is_refused_also_behind_another_item() -> None:
    story = Story()
    absurd = ItemInfo(kernel_id=1, hint_ns=10**12)
    with pytest.raises(MisuseError, match="hint"):
        story.ask(story.attach("one"), absurd)
    first = story.attach("first")
    story.ask(first, SHORT)
    story.ask(first, absurd)
    with pytest.raises(MisuseError, match="hint"):
        story.done(first, after_us=50)


def test_only_one_is_first() -> None:
    story = Story()
    story.attach("first")
    with pytest.raises(ValueError, match="first client already"):
        story.gate.attach("second", Role.FIRST, 0)


def test_a_clock_that_steps_back_changes_nothing() -> None:
    story = Story()
    other = story.attach("other")
    story.gate.ask(other, OTHERS, 5 * MS)
    story.gate.done(other, 2 * MS)
    assert story.gate.executing is None


@pytest.mark.parametrize("seed", range(20))
def test_whatever_clients_do_at_most_one_other_has_the_gpu(seed: int) -> None:
    """Clients come, ask, finish, lie, fall silent and die at random. No grant is doubled or lost."""
    rng = random.Random(seed)
    story = Story(overdue_ns=3 * MS)
    clients: list[Client] = []
    holder: Client | None = None

    def take_grants() -> None:
        nonlocal holder
        for granted in story.gate.on_grant:
            assert granted in clients
            assert granted.role == Role.OTHER
            assert holder is None
            holder = granted
        assert holder is None or story.gate.executing is holder
        story.gate.on_grant.clear()

    for number in range(1500):
        story.wait_us(rng.randrange(200))
        if holder is not None and story.gate.executing is not holder:
            holder = None  # overdue
        take_grants()
        act = rng.random()
        if act < 0.05 and len(clients) < 6:
            free = all(client.role == Role.OTHER for client in clients)
            clients.append(story.attach("first" if free and rng.random() < 0.5 else f"other {number}"))
        elif clients:
            client = rng.choice(clients)
            ends = client is holder and not client.withdrawn
            try:
                if act < 0.5:
                    story.ask(client, ItemInfo(kernel_id=rng.randrange(4), more=rng.random() < 0.7))
                elif act < 0.95:
                    story.done(client)
                    holder = None if ends else holder
                elif act < 0.97:
                    story.gate.end_request(client, story.now_ns)
                else:
                    clients.remove(client)
                    story.gate.detach(client, story.now_ns)
                    holder = None if client is holder else holder
            except MisuseError:
                pass
        take_grants()
    for client in clients:
        story.gate.detach(client, story.now_ns)
    assert story.gate.executing is None
    assert story.gate.clients == []
