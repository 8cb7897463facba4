# SPDX-License-Identifier: Apache-2.0
"""Registers the commands, and is the one place that turns errors into a line and an exit status."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from vgpumgr.cli import broker, change, claims, host, launch, ledger, make, move, operation, plug, show, simulate, top
from vgpumgr.cli.failures import Status, document, lines, printable, status
from vgpumgr.cli.session import Output, Session, complain
from vgpumgr.cli.settings import Options
from vgpumgr.errors import VgpumgrError

app = typer.Typer(
    name="vgpumgr",
    help="Share accelerators between virtual machines: quotas, claims, hosts and usage.",
    epilog="Exit status: 0 done, 1 error, 2 usage, 3 not found, 4 conflict, 5 denied or over quota, 6 no capacity,"
    " 7 API unreachable, 8 inconclusive, a target missed, or warnings only.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help starts faster
    pretty_exceptions_enable=False,
)
app.command()(show.get)
app.command()(show.describe)
app.add_typer(make.create, name="create")
app.command()(claims.explain)
app.add_typer(change.change, name="set")
app.command()(change.delete)
app.add_typer(host.host, name="host")
app.add_typer(move.slices, name="slice")
app.add_typer(operation.operation, name="operation")
app.command()(plug.attach)
app.command()(plug.detach)
app.command()(top.top)
app.add_typer(broker.broker, name="broker")
app.command()(launch.run)
app.command()(ledger.usage)
app.command()(ledger.unbooked)
app.command()(simulate.simulate)


def _version(wanted: bool) -> None:
    if wanted:
        import vgpumgr

        print(f"vgpumgr {vgpumgr.__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(help="URL of the API  [VGPUMGR_URL]")] = None,
    token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="file with the token  [VGPUMGR_TOKEN_FILE]")
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="CA certificates for the API  [VGPUMGR_CA_FILE]")
    ] = None,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Note where the API is; nothing is contacted yet."""
    if isinstance(context.obj, Session):
        context.obj.options = Options(url=url, token_file=token_file, ca_file=ca_file)


def main(arguments: Sequence[str], session: Session) -> int:
    """Run one command and return its exit status. Expected errors never leave as exceptions."""
    try:
        return int(app(list(arguments), prog_name="vgpumgr", standalone_mode=False, obj=session) or 0)
    except VgpumgrError as error:
        complain(document(error) if session.output == Output.JSON else "\n".join(lines(error, takes=session.takes)))
        return status(error)
    except typer.Exit as leave:
        return leave.exit_code
    except typer.Abort:
        return Status.INTERRUPTED
    except typer.TyperException as error:
        complain(_usage(error))
        return Status.USAGE
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    except Exception as error:
        complain(
            f"vgpumgr: internal: {printable(f'{type(error).__name__}: {error}')[:500]};"
            " this is a defect of vgpumgr; report it, with the command"
        )
        return Status.ERROR


_WAITING = {"--wait": "--timeout", "--timeout": "--wait"}


def _options(error: typer.TyperException) -> set[str]:
    """Return the options of the command whose command line is wrong."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    return {name for each in getattr(command, "params", ()) for name in each.opts}


def _usage(error: typer.TyperException) -> str:
    """Return what is wrong with a command line; its help, if the command was given no arguments."""
    said = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    if context is not None and said == context.get_help():
        return str(said)
    said = said.replace("Value error, ", "")  # pydantic's words, which typer passes on
    command = getattr(context, "command_path", "vgpumgr")
    todo = f"see `{command} --help`"
    option = getattr(error, "option_name", "")
    if command == "vgpumgr" and option in ("-o", "--output"):
        todo = "it goes after the command, as in `vgpumgr get hosts -o json`"
    elif command != "vgpumgr" and option in ("--url", "--token-file", "--ca-file"):
        todo = f"it goes before the command, as in `vgpumgr {option} ... get hosts`"
    elif command == "vgpumgr run" and said.startswith("No such option"):
        todo = "put -- before the program, as in `vgpumgr run --tenant blue -- ls -l`"
    elif option == "--config":
        todo = "the settings are always in ~/.config/vgpumgr/config.toml, or below XDG_CONFIG_HOME"
    elif option in _WAITING and _WAITING[option] in _options(error):
        todo = f"it is called {_WAITING[option]} here"
    elif "valid number" in said and getattr(getattr(error, "param", None), "metavar", "") in ("SECONDS", "S"):
        todo = "give a number of seconds, like 90"
    return f"vgpumgr: argument.invalid: {printable(said).rstrip('.')}; {todo}"


def run() -> None:
    """The entry point."""
    # Otherwise pydantic searches the metadata of every installed package for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    sys.exit(main(sys.argv[1:], Session()))
