# SPDX-License-Identifier: Apache-2.0
"""`broker`: share an accelerator of this host between tenants whose programs run natively."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgpumgr.cli.session import JsonOutput, JsonOutputOption, Output, Session, begin, table
from vgpumgr.cli.units import format_us
from vgpumgr.sizes import format_size

if TYPE_CHECKING:
    from vgpumgr.broker.configuration import Configuration
    from vgpumgr.broker.control import Control

broker = typer.Typer(help="Run, change and show a broker of this host.", no_args_is_help=True)

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="its configuration, in TOML")]
DirectoryOption = Annotated[
    str | None,
    typer.Option("--run-directory", metavar="DIR", help="directory of its sockets  [VGPUMGR_RUN_DIRECTORY]"),
]


@broker.command("run")
def run(
    context: typer.Context,
    file: FileArgument,
    check: Annotated[bool, typer.Option("--check", help="only check the configuration")] = False,
    run_directory: DirectoryOption = None,
) -> None:
    """Run a broker in the foreground. Ctrl-C or SIGTERM ends it, and its tenants' programs lose the accelerator."""
    from vgpumgr.broker.configuration import check_by_scheduler, document, read
    from vgpumgr.broker.launch import become_broker, check_paths, make_directory
    from vgpumgr.broker.places import programs

    session = begin(context, Output.TABLE)
    configuration = read(Path(file))
    found = programs()
    settings = document(configuration, found)
    checked = check_by_scheduler(settings)
    directory = _directory(session, run_directory, configuration)
    check_paths(directory, configuration.tenants)
    if check:
        left = "" if checked else "; only the broker can check the scheduler's rules, which are not compiled here"
        session.note(f"{file}: OK, {_count(len(configuration.tenants), 'tenant')}{left}")
        return
    make_directory(directory, found, session.env, nvidia=configuration.accelerator.nvidia)
    become_broker(directory, found, settings)


@broker.command("apply")
def apply(
    context: typer.Context,
    file: FileArgument,
    if_generation: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="apply only if the configuration still has this generation")
    ] = None,
    run_directory: DirectoryOption = None,
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Replace a running broker's configuration, completely or not at all. Programs keep running.

    Tenants missing from it are removed, and their programs lose the accelerator.
    """
    from vgpumgr.broker.configuration import check_by_scheduler, document, read
    from vgpumgr.broker.launch import check_paths
    from vgpumgr.broker.places import programs

    session = begin(context, output)
    configuration = read(Path(file))
    control = _control(_directory(session, run_directory, configuration))
    check_paths(control.directory, configuration.tenants)
    settings = document(configuration, programs())
    check_by_scheduler(settings)
    before = _show(control, configuration)
    generation = control.set(settings, generation=if_generation or int(before["generation"]))
    there = {str(each["name"]): len(each["processes"]) for each in before["tenants"] if not each["leaving"]}
    removed = {name: count for name, count in sorted(there.items()) if name not in configuration.tenants}
    added = sorted(configuration.tenants.keys() - there)
    if session.output == Output.JSON:
        session.print_json({"generation": generation, "removed": list(removed), "added": added})
    said = [f"applied; the configuration is generation {generation}"]
    if removed:
        said.append("removed: " + ", ".join(_removed(name, count) for name, count in removed.items()))
    if added:
        said.append("added: " + ", ".join(added))
    session.note("; ".join(said))
    if configuration.run_directory and Path(configuration.run_directory) != control.directory:
        session.note(f"run_directory = {configuration.run_directory!r} takes effect when the broker is started again")


@broker.command("show")
def show(
    context: typer.Context, run_directory: DirectoryOption = None, output: JsonOutputOption = JsonOutput.TABLE
) -> None:
    """Show a broker's tenants and their processes."""
    session = begin(context, output)
    found = _control(find(session, run_directory)).show()
    if session.output == Output.JSON:
        del found["ok"]
        session.print_json(found)
        return
    session.print("\n".join(_tables(sorted(found["tenants"], key=lambda each: str(each["name"])))))


@broker.command("stop")
def stop(context: typer.Context, run_directory: DirectoryOption = None) -> None:
    """Stop a broker. Its tenants' programs lose the accelerator."""
    session = begin(context, Output.TABLE)
    _control(find(session, run_directory)).stop()


def _tables(tenants: list[dict[str, Any]]) -> list[str]:
    header = ["TENANT", "WEIGHT", "TIMESLICE", "BAND", "MEMORY", "PROCESSES", "LEASE", "SUPERVISOR"]
    if any("native" in each for each in tenants):
        header += ["WORKING", "GATE", "USED", "ENFORCED BY"]
    tables = [table(header, (_tenant_cells(each)[: len(header)] for each in tenants))]
    processes = [(each["name"], process) for each in tenants for process in each["processes"]]
    if processes:
        header = ["TENANT", "PID", "CHILD", "STATE", "SUBMITTED", "UNDER WAY", "FAILED"]
        tables.append(table(header, ((name, *_process_cells(process)) for name, process in processes)))
    return tables


def _tenant_cells(tenant: dict[str, Any]) -> tuple[str, ...]:
    native = tenant.get("native")
    return (
        tenant["name"],
        str(tenant["weight"]),
        format_us(tenant["timeslice_ns"] / 1000),
        tenant["band"],
        format_size(tenant["memory_bytes"]),
        f"{len(tenant['processes'])}/{tenant['max_processes']}",
        tenant["lease"]["state"],
        tenant["supervisor"]["state"],
        *(("-",) * 4 if native is None else _native_cells(native, tenant["supervisor"]["enforced_by"])),
    )


def _native_cells(native: dict[str, Any], enforced_by: str) -> tuple[str, ...]:
    working = f"{native['working']}/{native['programs']}"
    return working, "open" if native["open"] else "closed", format_size(native["memory_used_bytes"]), enforced_by


def _process_cells(process: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a process. A native program has no child process at the broker, and so no counters."""
    if process.get("native"):
        return str(process["pid"]), "native", str(process["state"]), "-", "-", "-"
    return tuple(str(process[key]) for key in ("pid", "child", "state", "submitted", "under_way", "failed"))


def _removed(name: str, programs: int) -> str:
    if not programs:
        return name
    return f"{name} ({_count(programs, 'program')} {'ends' if programs == 1 else 'end'})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _control(directory: Path) -> "Control":
    from vgpumgr.broker.control import Control

    return Control(directory)


def _directory(session: Session, given: str | None, configuration: "Configuration") -> Path:
    """Return the directory of the broker's sockets: from the option, the file, the variable or the default."""
    from vgpumgr.broker.places import default_directory

    if wanted := given or configuration.run_directory:
        return Path(wanted)
    return default_directory(session.env, root=session.root)


def _show(control: "Control", configuration: "Configuration") -> dict[str, Any]:
    """Return the state of the broker that is to be changed. BrokerUnreachableError."""
    from vgpumgr.errors import BrokerUnreachableError

    try:
        return control.show()
    except BrokerUnreachableError as error:
        if str(control.directory) != configuration.run_directory:
            raise
        raise BrokerUnreachableError(
            f"{error}; `apply` cannot change run_directory: if the broker runs in another directory, give it with"
            " --run-directory, or stop the broker and start it again"
        ) from None


def find(session: Session, given: str | None) -> Path:
    """Return the run directory of the broker that the command addresses."""
    from vgpumgr.broker.places import find_directory

    return Path(given) if given else find_directory(session.env, root=session.root)
