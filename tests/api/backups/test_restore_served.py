# SPDX-License-Identifier: Apache-2.0
"""A backup is restored while the API runs. Each request happens before or after the restore, never in the middle."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.api.backups.test_rehearsal import Site, deployment, made, run, site, url
from tests.api.concurrency.audit import Audit
from tests.api.concurrency.deployment import Deployment
from tests.api.http.process import settings_file

__all__ = ["deployment", "site", "url"]

BUSY = ("quota.exceeded", "capacity.none", "database.busy")


@contextlib.contextmanager
def busy(deployment: Deployment) -> Iterator[tuple[list[Any], list[Any]]]:
    """A client that claims and deletes without end. It records its completed requests and every wrong answer."""
    stop, done, strange = threading.Event(), [], []

    def churn(seed: int) -> None:
        caller = deployment.caller(seed=seed)
        while not stop.is_set():
            reply = caller.ask("POST", "/v1/slices", {"tenant": "acme", "profile": "p"})
            if reply.status == 201:
                done.append(reply.body["id"])
                # The slice may be unknown after a restore.
                deleted = caller.ask("DELETE", f"/v1/slices/{reply.body['id']}")
                strange.extend([] if deleted.status in (202, 404) or deleted.code in BUSY else [deleted.body])
            elif reply.code not in BUSY:
                strange.append(reply.body)

    workers = [threading.Thread(target=churn, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    try:
        yield done, strange
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def test_a_serving_api_sees_the_database_of_before_or_the_restored_one(
    site: Site, deployment: Deployment, tmp_path: Path
) -> None:
    settings, file = settings_file(tmp_path, database=deployment.url), tmp_path / "a.backup"
    kept, vm = site.claim("one")
    site.start("one", kept, vm)
    run("backup", str(file), settings=settings)
    epoch = site.operator.ask("GET", "/v1/events").body["epoch"]
    made(site.operator, "/v1/tenants", {"name": "later"})
    with busy(deployment) as (done, strange):
        while len(done) < 3:
            site.step()
        removals = site.removals()
        run("restore", "--force", str(file), settings=settings)
        tenants = site.operator.ask("GET", "/v1/tenants").body["items"]
        assert [one["name"] for one in tenants] == ["acme"]
        for _ in range(3):
            site.step()
        assert {host["epoch_confirmed"] for host in site.operator.ask("GET", "/v1/hosts").body["items"]} == {False}
    assert strange == []
    gone = site.operator.ask("GET", f"/v1/events?after=0&epoch={epoch}")
    assert (gone.status, gone.code) == (410, "watch.expired")
    assert kept in site.devices()
    assert site.removals() == removals
    assert Audit(deployment.url).violations() == []
