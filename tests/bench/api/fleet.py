# SPDX-License-Identifier: Apache-2.0
"""A fleet in PostgreSQL within seconds: the services make one object of each kind, and SQL copies all others from it.

Every GPU has 0 to 20 slices of 50 permille and 1 GiB, ten on average, and memory for 24, so a part of the fleet is full
of share. Every tenth GPU has less memory, which its slices fill while share is left.

Each slice looks as if it was claimed by HTTP and attached. It has the progress, the observation and the grant. For each
of these two steps it has the event and the audit entry that the services wrote for the original. Every tenth slice has
an idempotency key, as if the others were claimed more than a day ago; keys are kept for a day.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from sqlalchemy import Table
from sqlalchemy.engine import make_url
from vgpumgr_api.actors import hash_of
from vgpumgr_api.admin import create_token
from vgpumgr_api.claims import claims
from vgpumgr_api.db import labels, ledger, models, observations, progress, records, schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.events import outbox
from vgpumgr_api.installation import installation
from vgpumgr_api.resources.idempotency import Once

from tests.api.world import GIB, World, absent, gpu
from vgpumgr.wire.resources import SliceCreate, TokenCreate, TokenRole

GPUS_PER_HOST = 4
SHARE, MEM = 50, GIB
FULL = 1000 // SHARE
TENANTS = 200
PROFILE = "small"
POOL, COMMON, RARE = "pool", "common", "rare"
"""A label of every host, and its values. `RARE` is the value of a hundred hosts, or of half of a small fleet."""
RARE_HOSTS = 100
LESS_PERMILLE = 120
"""GPUs of cordoned hosts have this much less used share than the GPUs that take claims. The part of memory that is left
there is larger, so placement looks at them, and no other GPU has as much left.
"""
MORE_PERMILLE = -40
"""With this value, the GPUs of cordoned hosts have more used share."""
SEEN_S = 120
"""The API must notice within this time which GPUs can take claims; it looks every 15 s."""
KEYS = 10
"""One of this many slices has an idempotency key."""
TYPES_GIB = (1, 2, 4)
"""The memory sizes of each GPU's types."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The content of the database `name`: tokens of `tenants` and `hosts` by name, and the number of `slices`.

    `operator`: the token of an operator.
    """

    url: str
    name: str
    hosts: dict[str, str]
    tenants: dict[str, str]
    operator: str
    slices: int

    @property
    def gpus(self) -> int:
        return GPUS_PER_HOST * len(self.hosts)


def secret(name: str) -> str:
    """Returns a credential that looks like ours. It depends only on the name, so no other fleet may use it."""
    return f"vgpu_{sha256(name.encode()).hexdigest()[:43]}"


def loaded(url: str, hosts: int) -> Fleet:
    """Fills an empty database."""
    database = Database(url)
    schema.upgrade(database)
    database.run(installation.ensure)
    original = _originals(World(database))
    operator = create_token(database, TokenCreate(role=TokenRole.OPERATOR)).secret
    database.run(outbox.number)
    database.close()
    names = [f"host-{number}" for number in range(1, hosts + 1)]
    tenants = [f"project-{number}" for number in range(1, TENANTS + 1)]
    with psycopg.connect(url) as connection:
        copies = _Copies(connection)
        copies.tenants()
        copies.hosts(hosts)
        copies.slices()
        copies.history(original)
        _tokens(connection, "tenant_id", "tenants", "tenant", tenants)
        _tokens(connection, "host_id", "hosts", "host", names)
        (slices,) = connection.execute("SELECT count(*) FROM slices").fetchone() or (0,)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")  # otherwise the server would write all of this to disk during a measurement
    return Fleet(
        url=url,
        name=make_url(url).database or "",
        hosts={name: secret(name) for name in names},
        tenants={name: secret(name) for name in tenants},
        operator=operator,
        slices=slices,
    )


def one_rare_of(hosts: int) -> int:
    """Returns n such that one of n hosts of a fleet is `RARE`."""
    return max(hosts // RARE_HOSTS, 2)


def keep_online(url: str) -> None:
    """Sets every host's last report to tomorrow, because measurements take longer than hosts stay online. Reports of
    hosts undo this, so it is called again after them.
    """
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE host_reports SET reported_at = now() + interval '1 day', lost_at = NULL")


@contextmanager
def half_cordoned(url: str, less_permille: int) -> Iterator[None]:
    """Cordons every other host during the block, and makes its GPUs less full of share than those that take claims.

    The end restores the share, because no claim has changed it. Beginning and end wait until the API has noticed.
    """
    odd = "right(h.name, 1) IN ('1', '3', '5', '7', '9')"
    joined = "FROM gpus g JOIN hosts h ON h.id = g.host_id WHERE"
    room = f"h.state = 'ready' AND NOT {odd} AND g.share_used <= {1000 - SHARE} AND g.mem_used + {MEM} <= g.mem_bytes"
    # Skips the fullest GPUs, which claims have nearly filled.
    level = f"SELECT share_used {joined} {room} ORDER BY 1 DESC OFFSET (SELECT count(*) / 100 {joined} {room}) LIMIT 1"
    with psycopg.connect(url, autocommit=True) as connection:

        def run(statement: str) -> None:
            connection.execute(statement.encode())

        run(f"CREATE TABLE kept AS SELECT g.id, g.share_used, g.host_id {joined} {odd}")
        used = f"least(({level}) - {less_permille}, {1000 - SHARE})"
        run(f"UPDATE gpus SET share_used = {used} WHERE id IN (SELECT id FROM kept)")
        run("UPDATE hosts SET state = 'cordoned' WHERE id IN (SELECT host_id FROM kept)")
        _await_schedulable(connection, odd)
        run("VACUUM ANALYZE gpus, hosts")
        yield
        run("UPDATE hosts SET state = 'ready' WHERE id IN (SELECT host_id FROM kept)")
        run("UPDATE gpus SET share_used = kept.share_used FROM kept WHERE kept.id = gpus.id")
        run("DROP TABLE kept")
        _await_schedulable(connection, odd)
        run("VACUUM ANALYZE gpus, hosts")


def _await_schedulable(connection: psycopg.Connection[Any], odd: str) -> None:
    """Waits until the API's hints match: GPUs of cordoned hosts cannot take claims, and the others can if they have
    room.
    """
    outdated = (
        f"SELECT count(*) FROM gpus g JOIN hosts h ON h.id = g.host_id WHERE {odd}"
        f" AND g.schedulable <> (h.state = 'ready' AND g.mem_used + {MEM} <= g.mem_bytes)"
    ).encode()
    end = time.monotonic() + SEEN_S
    while connection.execute(outdated).fetchone() != (0,):
        if time.monotonic() > end:
            raise TimeoutError(f"the API has not seen within {SEEN_S} s which GPUs are of use")
        time.sleep(0.5)


def _originals(world: World) -> UUID:
    """Makes the originals with number 0 and returns the slice. The host is cordoned, so it does not belong to the
    fleet.
    """
    world.tenant("account-0")
    world.tenant("project-0", account="account-0")
    world.profile(share=SHARE, gib=1, name=PROFILE)
    agent = world.host("host-0", inventory=[gpu(_address(0), mem_bytes=24 * GIB, types=TYPES_GIB)])
    claim: UUID = world.run(
        claims.create_slice,
        SliceCreate(tenant="project-0", profile=PROFILE),
        once=Once("key-0", sha256(b"request-0").hexdigest()),
        actor=world.tenant_actor("project-0"),
    ).id
    assert agent.report(
        desired=agent.desired(), slices=[absent(claim, present=True, open=True, applied_permille=SHARE)]
    )
    world.set_host("host-0", state="cordoned", labels={POOL: COMMON})
    return claim


def _address(number: int) -> str:
    return f"0000:{number:02x}:00.0"


class _Copies:
    """Copies the originals in SQL. Columns that are not named keep the original's value."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._later = datetime.now(UTC) + timedelta(days=1)

    def tenants(self) -> None:
        """Makes projects in pairs; each pair has an account."""
        limits = dict.fromkeys(("share_limit", "mem_limit", "slices_limit"), f"{1 << 50}")
        accounts = f"generate_series(1, {TENANTS // 2}) AS n"
        projects = f"generate_series(1, {TENANTS}) AS n"
        account = {"id": "md5('account-' || n)::uuid", "name": "'account-' || n"}
        project = {
            "id": "md5('project-' || n)::uuid",
            "name": "'project-' || n",
            "account_id": "md5('account-' || (n + 1) / 2)::uuid",
        }
        self._copy(models.Tenant, account, accounts, "o.name = 'account-0'")
        self._copy(models.Tenant, project, projects, "o.name = 'project-0'")
        of = "o.tenant_id = (SELECT id FROM tenants WHERE name = '{}-0')"
        nothing = {"share_used": "0", "mem_used": "0", "slices_used": "0"}
        for kind, numbers in (("account", accounts), ("project", projects)):
            values = {"tenant_id": f"md5('{kind}-' || n)::uuid", **limits, **nothing}
            self._copy(models.Quota, values, numbers, of.format(kind))

    def hosts(self, count: int) -> None:
        """Makes hosts that are ready and online for a day, with unused GPUs."""
        numbers = f"generate_series(1, {count}) AS n"
        both = f"{numbers}, generate_series(1, {GPUS_PER_HOST}) AS m"
        host, one = "md5('host-' || n)::uuid", "md5('gpu-' || n || '-' || m)::uuid"
        self._copy(models.Host, {"id": host, "name": "'host-' || n", "state": "'ready'"}, numbers)
        pool = f"CASE WHEN n % {one_rare_of(count)} = 0 THEN '{RARE}' ELSE o.value END"
        self._copy(labels.HostLabel, {"host_id": host, "value": pool}, numbers)
        later = f"'{self._later.isoformat()}'::timestamptz"
        self._copy(observations.HostReport, {"host_id": host, "reported_at": later}, numbers)
        less = f"CASE WHEN (n * {GPUS_PER_HOST} + m) % 10 = 0 THEN {8 * GIB}::bigint ELSE o.mem_bytes END"
        address = "'0000:0' || m || ':00.0'"
        free = {"share_used": "0", "mem_used": "0", "mem_bytes": less}
        self._copy(models.Gpu, {"id": one, "host_id": host, "address": address, **free}, both)
        self._copy(models.GpuType, {"gpu_id": one}, both)

    def slices(self) -> None:
        """Makes slices of all projects in turn on all GPUs; then updates the counters of GPUs and quotas."""
        counted = (
            f"(SELECT g.id AS gpu, row_number() OVER (ORDER BY g.id) AS n, g.mem_bytes / {MEM} AS most FROM gpus g"
            f" JOIN hosts h ON h.id = g.host_id WHERE h.name <> 'host-0') AS g,"
            f" LATERAL generate_series(1, LEAST(g.n * 8 % {FULL + 1} + g.n % 2, {FULL}, g.most)) AS m"
        )
        values = {
            "id": "md5('slice-' || n || '-' || m)::uuid",
            "tenant_id": f"md5('project-' || ((n + m) % {TENANTS} + 1))::uuid",
            "gpu_id": "g.gpu",
            "vm_uuid": "md5('vm-' || n || '-' || m)::uuid",
        }
        self._copy(models.Slice, values, counted)
        sums = "SUM(share_permille) AS share, SUM(type_mem_bytes) AS mem FROM slices GROUP BY gpu_id"
        self._run(
            f"UPDATE gpus SET share_used = s.share, mem_used = s.mem FROM (SELECT gpu_id, {sums}) AS s"
            " WHERE s.gpu_id = gpus.id"
        )
        self._run(
            "UPDATE quotas SET share_used = s.share, mem_used = s.mem, slices_used = s.slices FROM"
            " (SELECT o.id, SUM(share_permille) AS share, SUM(mem_bytes) AS mem, COUNT(*) AS slices FROM slices"
            " JOIN tenants t ON t.id = slices.tenant_id JOIN tenants o ON o.id IN (t.id, t.account_id) GROUP BY o.id)"
            " AS s WHERE s.id = quotas.tenant_id"
        )

    def history(self, original: UUID) -> None:
        """Makes the records of claiming and attaching each slice; `original`: the slice that was really claimed."""
        self._run(
            "CREATE TEMPORARY TABLE made ON COMMIT DROP AS SELECT row_number() OVER (ORDER BY s.id) AS n, s.id,"
            " s.vm_uuid, s.tenant_id, t.name AS tenant, t.account_id, a.name AS account, h.name AS host, g.address"
            " FROM slices s JOIN tenants t ON t.id = s.tenant_id JOIN tenants a ON a.id = t.account_id"
            f" JOIN gpus g ON g.id = s.gpu_id JOIN hosts h ON h.id = g.host_id WHERE s.id <> '{original}'"
        )
        owner = {name: f"m.{name}" for name in ("tenant_id", "tenant", "account_id", "account")}
        of_slice = {"slice_id": "m.id", "vm_uuid": "m.vm_uuid"}
        self._copy(progress.SliceProgress, of_slice, "made m")
        self._copy(observations.SliceObservation, of_slice, "made m")
        place = {"id": "md5('grant-' || m.id)::uuid", "host": "m.host", "gpu": "m.address"}
        self._copy(ledger.Grant, of_slice | owner | place, "made m")
        claimed = f"json_build_object('profile', '{PROFILE}', 'vm_uuid', m.vm_uuid)"
        for kind, detail in (("slice.claimed", claimed), ("slice.attached", "o.detail")):
            said = {"object": "m.id::text", "detail": detail, **owner}
            self._tell(records.Event, said, f"o.kind = '{kind}' AND o.object = '{original}'")
            self._tell(records.AuditEntry, said, f"o.action = '{kind}' AND o.object = '{original}'")
        key = {
            "scope": "split_part(o.scope, ':', 1) || ':' || m.tenant_id",
            "key": "md5('key-' || m.id)::uuid::text",
            "request_hash": "md5('request-' || m.id) || md5(m.id::text)",
            "answer": f"replace(o.answer, '{original}', m.id::text)",
        }
        self._copy(records.IdempotencyKey, key, f"(SELECT * FROM made WHERE n % {KEYS} = 0) AS m")

    def _tell(self, model: type[models.Base], values: Mapping[str, str], original: str) -> None:
        """Copies the entries of a log, numbered after the existing ones."""
        log = model.__tablename__
        numbers = {name: f"m.n + (SELECT max({name}) FROM {log})" for name in ("id", "seq") if hasattr(model, name)}
        self._copy(model, {**values, **numbers}, "made m", original)
        self._run(f"SELECT setval(pg_get_serial_sequence('{log}', 'id'), (SELECT max(id) FROM {log}))")

    def _copy(self, model: type[models.Base], values: Mapping[str, str], numbers: str, original: str = "TRUE") -> None:
        table = model.__table__
        assert isinstance(table, Table)
        columns = [column.name for column in table.columns]
        names = ", ".join(columns)
        chosen = ", ".join(values.get(name, f"o.{name}") for name in columns)
        # Copy only the originals: copies must not be copied again.
        self._run(
            f"INSERT INTO {table.name} ({names}) SELECT {chosen} FROM"
            f" (SELECT * FROM {table.name} o WHERE {original}) AS o, {numbers}"
        )

    def _run(self, statement: str) -> None:
        self._connection.execute(statement.encode())


def _tokens(connection: psycopg.Connection[Any], column: str, table: str, role: str, names: list[str]) -> None:
    made = records.Token.__tablename__
    connection.execute("CREATE TEMPORARY TABLE named (name text, secret_hash text) ON COMMIT DROP")
    with connection.cursor().copy("COPY named FROM STDIN") as copy:
        for name in names:
            copy.write_row((name, hash_of(secret(name))))
    connection.execute(
        sql.SQL(
            "INSERT INTO {} (id, secret_hash, role, {}, created_at)"
            " SELECT md5('token-' || n.name)::uuid, n.secret_hash, {}, o.id, now() FROM named n"
            " JOIN {} o ON o.name = n.name"
        ).format(sql.Identifier(made), sql.Identifier(column), sql.Literal(role), sql.Identifier(table))
    )
    connection.execute("DROP TABLE named")
