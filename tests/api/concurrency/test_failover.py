# SPDX-License-Identifier: Apache-2.0
"""One of two replicas is killed, then PostgreSQL is restarted, while clients work: they notice nothing.

They use the CLI's typed client, behind one address, with only its own repetition of requests. The outage lasts no
longer than the time for which docs/rest-api.md promises that repetition is enough.
"""

import threading
import time
from pathlib import Path
from uuid import UUID, uuid4

from tests.api.cluster import Cluster
from tests.api.concurrency.audit import Audit
from tests.api.concurrency.balancer import Balancer
from tests.api.concurrency.deployment import Deployment, deployed
from tests.api.concurrency.races import Fleet
from vgpumgr.client import Client
from vgpumgr.wire.resources import SliceCreate

CLIENTS = 8
PAUSES_S = (0.1, 0.3, *(1.0,) * 60)
BETWEEN_BLOWS = 40
"""The number of claims before the first blow, after each blow, and after the last one."""


class Worker(threading.Thread):
    """Claims and deletes in turn until `calm`; `kept` holds the confirmed claims that it has not deleted."""

    def __init__(self, url: str, token: str, tenant: str, profile: str, calm: threading.Event) -> None:
        super().__init__(daemon=True)
        self.pauses = 0
        self.claimed: dict[UUID, UUID] = {}
        self.kept: set[UUID] = set()
        self.trouble: Exception | None = None
        self._client = Client(url, token, pauses_s=PAUSES_S, sleep=self._sleep)
        self._request = {"tenant": tenant, "profile": profile}
        self._calm = calm

    def run(self) -> None:
        try:
            while not self._calm.is_set():
                vm = uuid4()
                made = self._client.create_slice(SliceCreate(**self._request, vm_uuid=vm))
                self.claimed[vm] = made.id
                self.kept.add(made.id)
                if len(self.claimed) % 3 == 0:
                    self._client.delete_slice(made.id)
                    self.kept.remove(made.id)
        except Exception as error:
            self.trouble = error
        finally:
            self._client.close()

    def _sleep(self, seconds: float) -> None:
        self.pauses += 1
        time.sleep(seconds)


def wait_for_more(workers: list[Worker], claims: int) -> None:
    """Waits until this many more claims were answered; fails with the error of a worker that stopped."""
    wanted = sum(len(each.claimed) for each in workers) + claims
    while sum(len(each.claimed) for each in workers) < wanted:
        for each in workers:
            assert each.trouble is None, repr(each.trouble)
        time.sleep(0.02)


def strike(deployment: Deployment, cluster: Cluster, workers: list[Worker]) -> None:
    """Kills each component in turn while requests are under way."""
    one, two = deployment.replicas
    wait_for_more(workers, BETWEEN_BLOWS)
    one.kill()
    wait_for_more(workers, BETWEEN_BLOWS)
    one.start()
    two.kill()
    wait_for_more(workers, BETWEEN_BLOWS)
    two.start()
    cluster.restart()
    wait_for_more(workers, BETWEEN_BLOWS)


def test_clients_see_only_requests_that_took_longer(postgresql: Cluster, postgresql_url: str, tmp_path: Path) -> None:
    with deployed(tmp_path, postgresql_url, replicas=2) as running, Balancer(running).running() as balancer:
        fleet = Fleet(running)
        tenant, profile = fleet.tenant(), fleet.profile(share=1)
        fleet.host(*[1000] * 9)  # more room than the workers can claim during the test
        calm = threading.Event()
        url = "http://{}:{}".format(*balancer.address)
        workers = [Worker(url, running.token, tenant, profile, calm) for _ in range(CLIENTS)]
        for each in workers:
            each.start()
        strike(running, postgresql, workers)
        calm.set()
        for each in workers:
            each.join(120)
        assert [each.trouble for each in workers] == [None] * CLIENTS
        assert sum(each.pauses for each in workers) > 0, "no blow met a request under way"
        assert running.server_errors() == []

    audit = Audit(postgresql_url)
    assert audit.violations() == []
    stored = {row.vm_uuid: (slice_id, row.state) for slice_id, row in audit.slices().items()}
    promised = {vm: slice_id for each in workers for vm, slice_id in each.claimed.items()}
    assert {vm: slice_id for vm, (slice_id, _) in stored.items()} == promised, "a claim was made twice, or got lost"
    claimed = {slice_id for slice_id, state in stored.values() if state == "claimed"}
    assert claimed == {slice_id for each in workers for slice_id in each.kept}
