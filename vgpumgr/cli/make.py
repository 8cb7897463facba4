# SPDX-License-Identifier: Apache-2.0
"""`create`: tenants, profiles, reservations, hosts and tokens. A secret is shown or written to a file, once."""

import contextlib
import os
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from vgpumgr.cli.kinds import kind_of
from vgpumgr.cli.option_names import option_of
from vgpumgr.cli.session import Output, OutputOption, Session, begin, dumped
from vgpumgr.cli.show import show
from vgpumgr.cli.units import NO_EXTERNAL_ID, NO_LABEL, parse_selector, parse_tie
from vgpumgr.durations import parse_duration
from vgpumgr.errors import ArgumentError, OutputError
from vgpumgr.sizes import parse_size

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from vgpumgr.wire.resources import Tie

    Model = TypeVar("Model", bound=BaseModel)
    Location = tuple[int | str, ...]

create = typer.Typer(help="Create tenants, profiles, slices, reservations, hosts and tokens.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME")]
TIE = "KEY[:LEVEL]"
AffinityOption = Annotated[
    str | None,
    typer.Option(metavar=TIE, help="place it with the tenant's other slices of this key; LEVEL: host or gpu"),
]
AntiAffinityOption = Annotated[
    str | None, typer.Option(metavar=TIE, help="never place it with the tenant's other slices of this key")
]
ExternalIdOption = Annotated[str | None, typer.Option(metavar="ID", help="its name in another system, like acme_prod")]
SecretFileOption = Annotated[
    str | None, typer.Option("--token-file", metavar="FILE", help="write the token to this file, readable only by you")
]


class ModeOption(StrEnum):
    """Modes of a profile, without importing the models for `--help`."""

    STRICT = "strict"
    FAIR = "fair"


class BandOption(StrEnum):
    """Bands of a profile, without importing the models for `--help`."""

    FAIR = "fair"
    LATENCY = "latency"


class PolicyOption(StrEnum):
    """How GPUs are shared, without importing the models for `--help`."""

    BEST_EFFORT = "best_effort"
    EQUAL_SHARE = "equal_share"
    FIXED_SHARE = "fixed_share"


class PlacementOption(StrEnum):
    """Where a claim is placed, without importing the models for `--help`."""

    PACK = "pack"
    SPREAD = "spread"


class WorkloadOption(StrEnum):
    """What a claim is for."""

    VM = "vm"
    PROCESS = "process"


class RoleOption(StrEnum):
    """Roles of tokens that can be created; a host gets its token by enrolling."""

    ADMIN = "admin"
    OPERATOR = "operator"
    TENANT_ADMIN = "tenant-admin"
    TENANT = "tenant"
    VIEWER = "viewer"


def request(kind: "type[Model]", **members: Any) -> "Model":
    """Return a request body made of options, without those that are None. ArgumentError if the API would refuse it."""
    from pydantic import ValidationError

    try:
        return kind(**{name: value for name, value in members.items() if value is not None})
    except ValidationError as error:
        raise refused(error, called=_option) from None


def refused(error: "ValidationError", *, called: "Callable[[Location], str] | None" = None) -> ArgumentError:
    """Return an error about the first wrong member. An unknown member comes before a missing one.

    `called`: returns the name that people know a member by. The default is the JSON path, for input in JSON.
    """
    faults = error.errors(include_url=False)
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    location = first["loc"]
    if "scopes" in location:
        what = "not a scope: a scope is a part of the API, and read or write, like slices:read"
    elif labels := {"labels", "selector"} & {*location}:
        location = location[: location.index(labels.pop()) + 1]
        what = f"at most {first['ctx']['max_length']} labels" if first["type"] == "too_long" else NO_LABEL
    elif "external_id" in location:
        what = NO_EXTERNAL_ID
    elif first["type"] == "string_pattern_mismatch":
        what = "not a name: a name has 1 to 63 characters a-z, 0-9 and '-', '-' not first or last"
    else:
        what = first["msg"][:1].lower() + first["msg"][1:]
        if first["type"] in ("greater_than_equal", "less_than_equal") and str(location[-1]).endswith("_s"):
            what += " s"
    where = (called or _path)(location)
    if first["type"] in ("missing", "too_long"):  # here `input` is the whole object, not one value
        return ArgumentError(f"{where}: {what}")
    return ArgumentError(f"{where} {str(first['input'])[:80]!r}: {what}")


def _path(location: "Location") -> str:
    """Return a JSON path in the form of the API's reasons, without ``$.``."""
    return "".join(f"[{member}]" if isinstance(member, int) else f".{member}" for member in location).removeprefix(".")


def _option(location: "Location") -> str:
    return option_of(str(location[0])) if location else "the options"


@create.command("tenant")
def create_tenant(
    context: typer.Context,
    name: NameArgument,
    account: Annotated[str | None, typer.Option(help="create a project of this account")] = None,
    external_id: ExternalIdOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create an account, or a project of an account. Its quota is zero until `set quota`."""
    from vgpumgr.wire.resources import TenantCreate

    session = begin(context, output)
    made = session.client.create_tenant(request(TenantCreate, name=name, account=account, external_id=external_id))
    show(session, kind_of("tenant"), [made], single=True)


@create.command("profile")
def create_profile(
    context: typer.Context,
    name: NameArgument,
    share_permille: Annotated[int, typer.Option(help="share of one GPU's time, 1 to 1000")],
    memory: Annotated[str, typer.Option(metavar="SIZE", help="device memory, like 64M")],
    mode: Annotated[ModeOption, typer.Option(help="strict: never more than the share")] = ModeOption.FAIR,
    band: Annotated[
        BandOption, typer.Option(help="latency: its share is served before others' work")
    ] = BandOption.FAIR,
    reserve_period_us: Annotated[int | None, typer.Option(help="longest wait of a latency slice")] = None,
    policy: Annotated[PolicyOption | None, typer.Option(help="only on GPUs with this policy")] = None,
    window: Annotated[
        str | None, typer.Option(metavar="SIZE", help="host memory for its window; only 64M so far")
    ] = None,
    executor_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="most host memory that its executor may use")
    ] = None,
    executor_tasks_max: Annotated[int | None, typer.Option(help="most processes and threads of that executor")] = None,
    executor_cpu_max_permille: Annotated[
        int | None, typer.Option(help="most processor time of that executor; 1000 is one processor")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a profile, which is a class of slices. A profile never changes."""
    from vgpumgr.wire.resources import ProfileCreate

    session = begin(context, output)
    body = request(
        ProfileCreate,
        name=name,
        share_permille=share_permille,
        mem_bytes=parse_size(memory),
        mode=mode.value,
        band=band.value,
        reserve_period_us=reserve_period_us,
        policy=policy and policy.value,
        window_bytes=window and parse_size(window),
        executor_memory_max_bytes=executor_memory and parse_size(executor_memory),
        executor_tasks_max=executor_tasks_max,
        executor_cpu_max_permille=executor_cpu_max_permille,
    )
    show(session, kind_of("profile"), [session.client.create_profile(body)], single=True)


@create.command("reservation")
def create_reservation(
    context: typer.Context,
    tenant: Annotated[str, typer.Option(help="tenant whose quota is charged")],
    profile: Annotated[str, typer.Option(help="profile of the slices")],
    places: Annotated[int, typer.Option(help="number of slices")],
    expires_in: Annotated[
        str, typer.Option(metavar="DURATION", help="like 2h or 7d; places that are left then are returned")
    ],
    host: Annotated[str | None, typer.Option(help="only on this host")] = None,
    placement: Annotated[PlacementOption, typer.Option(help="spread: on the emptiest GPUs")] = PlacementOption.PACK,
    selector: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="only on GPUs with this label; may be repeated")
    ] = None,
    affinity: AffinityOption = None,
    anti_affinity: AntiAffinityOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Reserve quota and capacity for later claims; `create slice --reservation` takes a place."""
    from vgpumgr.wire.resources import ReservationCreate

    session = begin(context, output)
    body = request(
        ReservationCreate,
        tenant=tenant,
        profile=profile,
        places=places,
        expires_in_s=parse_duration(expires_in),
        host=host,
        placement=placement.value,
        selector=parse_selector(selector or []),
        affinity=tie("--affinity", affinity),
        anti_affinity=tie("--anti-affinity", anti_affinity),
    )
    show(session, kind_of("reservation"), [session.client.create_reservation(body)], single=True)


@create.command("host")
def create_host(
    context: typer.Context, name: NameArgument, token_file: SecretFileOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Announce a host. Its agent enrols with the token, which is shown once."""
    from vgpumgr.wire.resources import HostCreate

    session = begin(context, output)
    body = request(HostCreate, name=name)
    hand_over(session, "host", token_file, lambda: session.client.create_host(body), "enroll_token")


@create.command("token")
def create_token(
    context: typer.Context,
    role: Annotated[
        RoleOption, typer.Option(help="operator: all but the audit; tenant: its slices; viewer: reads only")
    ],
    tenant: Annotated[str | None, typer.Option(help="tenant of the roles tenant, tenant-admin and viewer")] = None,
    expires_in: Annotated[str | None, typer.Option(metavar="DURATION", help="like 12h or 30d; default: never")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE", help="restrict the token to this, like slices:read; may be repeated"),
    ] = None,
    token_file: SecretFileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a token. Its secret is shown once; the API keeps only a hash."""
    from vgpumgr.wire.resources import TokenCreate

    session = begin(context, output)
    of_a_tenant = (RoleOption.TENANT, RoleOption.TENANT_ADMIN)
    if tenant is None and role in of_a_tenant:
        raise ArgumentError(f"role {role.value} needs --tenant NAME")
    if tenant is not None and role not in (*of_a_tenant, RoleOption.VIEWER):
        raise ArgumentError("--tenant NAME is only for the roles tenant, tenant-admin and viewer")
    seconds = None if expires_in is None else parse_duration(expires_in)
    body = request(TokenCreate, role=role.value, subject=tenant, expires_in_s=seconds, scopes=scope or None)
    hand_over(session, "token", token_file, lambda: session.client.create_token(body), "secret")


def tie(option: str, text: str | None) -> "Tie | None":
    """Return an affinity in the form that a claim has. ArgumentError."""
    from pydantic import ValidationError

    from vgpumgr.wire.resources import Tie

    try:
        return None if text is None else Tie.model_validate(parse_tie(text))
    except ValidationError as error:
        raise refused(error, called=lambda _: option) from None


def hand_over(session: Session, kind: str, token_file: str | None, make: Any, member: str) -> None:
    """Call `make`, and write the secret in its `member` to a file or to standard output, never to both."""
    if token_file is None:
        if session.output == Output.NAME:
            raise ArgumentError("-o name would lose the token; give --token-file FILE as well")
        made = make()
        if session.output == Output.JSON:
            session.print_json(dumped(made))
            return
        show(session, kind_of(kind), [made], single=True)
        session.note("the token, which is shown only once:")
        session.print(getattr(made, member))
        return
    with secret_file(Path(token_file)) as write:
        made = make()
        write(getattr(made, member))
    if session.output == Output.JSON:
        session.print_json({name: value for name, value in dumped(made).items() if name != member})
    else:
        show(session, kind_of(kind), [made], single=True)
    session.note(f"the token is in {token_file}")


@contextlib.contextmanager
def secret_file(path: Path) -> Iterator[Any]:
    """Yield a function that writes a secret to `path` with mode 0600, completely or not at all.

    The file is created before the request to the API. Otherwise a missing directory would lose the secret. OutputError.
    """
    import tempfile  # slow: it imports random and other modules

    try:
        if path.is_dir():
            raise IsADirectoryError(None, "is a directory")
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "cannot be created"
        raise OutputError(f"{path}: {reason}; the API was not asked") from None

    def write(secret: str) -> None:
        try:
            os.write(descriptor, secret.encode() + b"\n")
            os.fsync(descriptor)
            Path(temporary).replace(path)
        except OSError as error:
            raise OutputError(
                f"{path}: {error.strerror}; the token is lost: `vgpumgr host reenroll` gives a host another;"
                " delete other tokens and create them again"
            ) from None

    try:
        yield write
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
