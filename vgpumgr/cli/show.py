# SPDX-License-Identifier: Apache-2.0
"""`get` and `describe`."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgpumgr.cli.choosing import chosen
from vgpumgr.cli.event_watch import watch_events
from vgpumgr.cli.failures import printable
from vgpumgr.cli.kinds import Kind, kind_of, yes
from vgpumgr.cli.session import JsonOutput, JsonOutputOption, Output, OutputOption, Session, begin, dumped, table
from vgpumgr.cli.units import format_us
from vgpumgr.sizes import format_size

if TYPE_CHECKING:
    from pydantic import BaseModel

KindArgument = Annotated[
    str,
    typer.Argument(
        metavar="KIND",
        help="tenants, quotas, profiles, hosts, gpus, slices, reservations, operations, tokens, events or audit",
    ),
]


NO_GPUS = "none reported; run `vgpumgr host doctor` on the host, as root"


def get(
    context: typer.Context,
    kind: KindArgument,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="only this object")] = None,
    tenant: Annotated[str | None, typer.Option(help="slices, reservations, events or audit of this tenant")] = None,
    account: Annotated[str | None, typer.Option(help="tenants or quotas: this account and its projects")] = None,
    external_id: Annotated[str | None, typer.Option(metavar="ID", help="the tenant with this external id")] = None,
    host: Annotated[str | None, typer.Option(help="slices or gpus of this host")] = None,
    vm: Annotated[str | None, typer.Option(metavar="UUID", help="slices of this VM")] = None,
    profile: Annotated[str | None, typer.Option(help="slices or reservations of this profile")] = None,
    mode: Annotated[str | None, typer.Option(help="profiles that are strict, or fair")] = None,
    state: Annotated[
        str | None, typer.Option(help="slices, hosts or operations in this state; gpus of such hosts")
    ] = None,
    unconfirmed: Annotated[
        bool, typer.Option("--unconfirmed", help="hosts that wait for `host confirm-epoch` after a restore")
    ] = False,
    selector: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="hosts or gpus with this label; may be repeated")
    ] = None,
    role: Annotated[str | None, typer.Option(help="tokens of this role")] = None,
    subject: Annotated[str | None, typer.Option(metavar="NAME", help="tokens for this tenant or host")] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="operations about this host")] = None,
    after: Annotated[
        int | None, typer.Option(min=0, metavar="SEQ", help="events with a larger number than this")
    ] = None,
    about: Annotated[
        str | None, typer.Option(metavar="KIND[,KIND]", help="events about these kinds, like slice or host,gpu")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="print events as they happen, until interrupted")] = False,
    actor: Annotated[str | None, typer.Option(help="audit of this actor, like operator:local")] = None,
    action: Annotated[str | None, typer.Option(help="audit of this action, like slice.claimed")] = None,
    object_name: Annotated[str | None, typer.Option("--object", metavar="NAME", help="audit of this object")] = None,
    request_id: Annotated[str | None, typer.Option(metavar="ID", help="audit of this request")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="audit since this time: 2h (ago), or an ISO 8601 instant")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="audit before this time")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="list at most N objects")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List objects, or show one object."""
    session = begin(context, output)
    wanted = kind_of(kind)
    given: dict[str, Any] = {"tenant": tenant, "host": host, "vm": vm, "state": state, "after": after, "actor": actor}
    given |= {"action": action, "object": object_name, "since": since, "until": until, "about": about, "watch": watch}
    given |= {"account": account, "profile": profile, "mode": mode, "role": role, "subject": subject}
    given |= {"selector": selector, "target": target, "unconfirmed": unconfirmed, "request_id": request_id}
    given |= {"external_id": external_id}
    filters = chosen(session, wanted, given, one=name is not None)
    if name is not None:
        show(session, wanted, [wanted.found(session.client, name)], single=True)
        return
    if watch:
        watch_events(session, after=after, about=about, tenant=tenant)
    else:
        show(session, wanted, islice(wanted.listed(session.client, filters), limit))


def show(session: Session, kind: Kind, items: "Iterable[BaseModel]", *, single: bool = False) -> None:
    """Print objects of one kind in the requested format."""
    if session.output == Output.NAME:
        session.print("".join(printable(kind.name(item)) + "\n" for item in items))
    elif session.output == Output.JSON:
        content = [dumped(item) for item in items]
        session.print_json(content[0] if single else content)
    else:
        rows = [kind.row(item) for item in items]
        session.print(table(kind.header, rows))
        if kind.singular == "gpu" and not rows:
            session.note(NO_GPUS)


def describe(
    context: typer.Context,
    kind: KindArgument,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Show one object in full, and the objects that belong to it."""
    session = begin(context, output)
    wanted = kind_of(kind)
    item = wanted.found(session.client, name)
    belonging = dict(_belonging(session, wanted, item))
    if session.output == Output.JSON:
        content = dumped(item)
        session.print_json(content | {plural: [dumped(part) for part in parts] for plural, parts in belonging.items()})
        return
    shown = _lines(dumped(item))
    for plural, parts in belonging.items():
        part_kind = kind_of(plural)
        if not parts:
            shown.append(f"{plural}: {NO_GPUS if plural == 'gpus' else 'none'}")
            continue
        rows = table(part_kind.header, (part_kind.row(part) for part in parts))
        shown += [f"{plural}:", *("  " + line for line in rows.splitlines())]
    session.print("\n".join(shown))


def _belonging(session: Session, kind: Kind, item: Any) -> "Iterable[tuple[str, list[BaseModel]]]":
    if kind.singular == "tenant":
        yield "quotas", [session.client.quota(item.name)]
        yield "slices", list(session.client.slices(tenant=item.name))
    elif kind.singular == "gpu":
        yield "slices", [claim for claim in session.client.slices(host=item.host) if claim.gpu_id == item.id]
    elif kind.singular == "host":
        yield "gpus", list(session.client.gpus(host=item.name))
        yield "slices", list(session.client.slices(host=item.name))


def _lines(content: Mapping[str, Any], indent: str = "") -> list[str]:
    width = max((len(key) for key in content), default=0) + 1
    lines = []
    for key, value in content.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{printable(key)}:", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value:
            lines.append(f"{indent}{printable(key)}:")
            for entry in value:
                lines.append(f"{indent}  - {printable(_entry(entry))}")
        else:
            lines.append(f"{indent}{printable(key + ':'):{width}} {printable(_value(key, value))}")
    return lines


def _entry(entry: object) -> str:
    if isinstance(entry, dict):
        return ", ".join(f"{name} {_value(name, part)}" for name, part in entry.items())
    return str(entry)


def _value(key: str, value: object) -> str:
    """Return a value in a readable unit, followed by the API's number where that differs."""
    if value is None or value == "" or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return yes(value)
    if isinstance(value, int) and key.endswith("_bytes"):
        return f"{format_size(value)} ({value})" if value >= 1024 else str(value)
    if isinstance(value, int) and key.endswith("_us"):
        return f"{format_us(value)} ({value})" if value >= 1000 else str(value)
    return str(value)
