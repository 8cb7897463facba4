# SPDX-License-Identifier: Apache-2.0
# Each VM start pays for this script's start-up time, so it stands alone: no pathlib, typing, dataclasses or contextlib.
# ruff: noqa: INP001, PTH112, PTH119, PTH120, PTH123, SIM105
"""Second half of libvirt's hook: reads a domain's XML, asks the agent, and refuses by exit status 1 and one line.

    python3 -IS hook_client.py NAME OPERATION PHASE REASON <DOMAIN-XML

It uses the standard library only, so that it works even if vgpumgr's own environment is broken. Tenants write the
domain XML: this program trusts none of it, and no input may hang or break it. Only ``prepare``, ``migrate`` and
``restore`` can be refused. If anything fails, these operations are refused for every VM that is, or might be, one of
ours.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from xml.parsers import expat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

NAMESPACE = "https://vgpumgr.dev/xmlns/domain/1"
SOCKET = "/run/vgpumgr/hook.sock"
RECORDS = "/var/lib/vgpumgr/slices"
MDEVS = "/sys/bus/mdev/devices"
FUNCTIONS = "/sys/bus/pci/devices"
LISTED = "/etc/vgpumgr/gpus"
SETTINGS = "/etc/vgpumgr/agent.toml"
DRIVER = "vgpumgr"

VETO = ("prepare", "migrate", "restore")
CONNECT_S = 1.0
VETO_S = 10.0
TELL_S = 2.0

XML_BYTES_MAX = 8 << 20
DEPTH_MAX = 512
DEVICES_MAX = 64
ANSWER_BYTES_MAX = 1 << 20
REASON_MAX = 300
MARKERS = (b"hostdev", b"nvme", b"vgpumgr", b"&#", b"<!DOCTYPE", b"<?xml")
_CHUNK = 1 << 18
_OVERLAP = max(map(len, MARKERS)) - 1


class RefusedError(Exception):
    """The VM must not start. `code` is frozen; `reason` says what to do."""

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(code, reason)


class AgentError(Exception):
    """The agent did not decide."""


class Expired(BaseException):
    """The time limit has passed. It is not an Exception, so that only the code that expects it catches it."""


class Domain:
    """The parts of a domain that the agent decides by: UUID, mediated devices, and the slices named in its metadata.

    `functions`: PCI functions of the host that are passed through to the VM.
    """

    def __init__(self) -> None:
        self.uuid = ""
        self.devices: list[str] = []
        self.metadata: list[str] = []
        self.functions: list[str] = []
        self.marked = False


def normal_uuid(text: str, what: str) -> str:
    """Return a UUID in lower case. Raises RefusedError for any other text."""
    lower = text.strip(" \t\r\n").lower()
    groups = lower.split("-")
    if [len(group) for group in groups] == [8, 4, 4, 4, 12] and not lower.strip("0123456789abcdef-"):
        return lower
    raise RefusedError("xml.invalid", f"{what} is not a UUID: write it as 8-4-4-4-12 hexadecimal digits")


def pci_address(attributes: dict[str, str]) -> str:
    """Return a PCI address in the kernel's notation. Like libvirt, read numbers as strtoul(3) does with base 0."""
    parts = []
    for name, least in (("domain", "0"), ("bus", ""), ("slot", ""), ("function", "")):
        text = attributes.get(name, least).strip(" \t\r\n").lower()
        octal = len(text) > 1 and text.startswith("0") and not text.startswith("0x")
        try:
            parts.append(int(text, 8 if octal else 0))
        except ValueError:
            raise RefusedError("xml.invalid", f"{name} of a PCI address is not a number: correct the domain") from None
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)


_UUID = ["domain", "uuid"]
_HOSTDEV = ["domain", "devices", "hostdev"]
_ADDRESS = [*_HOSTDEV, "source", "address"]
_SLICES = ["domain", "metadata", f"{NAMESPACE} slices"]
_SLICE = [*_SLICES, f"{NAMESPACE} slice"]


class Reader:
    """Builds a Domain from expat's events. Only elements at libvirt's own paths count as devices."""

    def __init__(self) -> None:
        self.domain = Domain()
        self._path: list[str] = []
        self._mdev = False
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.buffer_text = True

    def parse(self, document: bytes) -> Domain:
        """Read a whole document. Raises RefusedError if libvirt cannot have written it."""
        try:
            self._parser.Parse(document, True)
        except (expat.ExpatError, ValueError, LookupError) as error:
            raise RefusedError("xml.invalid", f"domain XML cannot be read ({error}): correct the domain") from None
        return self.domain

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._path and name != "domain":
            raise RefusedError("xml.invalid", "this is not domain XML: its first element is not <domain>")
        if len(self._path) >= DEPTH_MAX:
            raise RefusedError("xml.invalid", f"domain XML is nested deeper than {DEPTH_MAX}: shorten its metadata")
        self._path.append(name)
        depth = len(self._path)
        if depth == 3 and self._path == _HOSTDEV:
            self._mdev = attributes.get("type") == "mdev"
        elif depth == 3 and self._path == _SLICES:
            self.domain.marked = True
        elif depth == 4 and self._path == _SLICE:
            self._add(self.domain.metadata, attributes.get("id", ""), "id of a slice in metadata")
        elif depth == 5 and self._mdev and self._path == _ADDRESS:
            self._add(self.domain.devices, attributes.get("uuid", ""), "uuid of an mdev hostdev")
        elif depth == 5 and self._is_function(attributes):
            self.domain.functions.append(pci_address(attributes))

    def _is_function(self, attributes: dict[str, str]) -> bool:
        """Return whether this is the source address of a PCI hostdev, interface or NVMe disk."""
        path = self._path
        return (
            path[:2] == _HOSTDEV[:2] and path[3:] == _ADDRESS[3:] and {"bus", "slot", "function"} <= attributes.keys()
        )

    def _end(self, _name: str) -> None:
        if self._path == _HOSTDEV:
            self._mdev = False
        self._path.pop()

    def _text(self, text: str) -> None:
        if self._path == _UUID:
            self.domain.uuid += text

    def _doctype(self, *_: object) -> NoReturn:
        raise RefusedError("xml.invalid", "domain XML has a document type declaration: remove it")

    def _add(self, found: list[str], text: str, what: str) -> None:
        uuid = normal_uuid(text, what)
        if uuid in found:
            return
        if len(found) == DEVICES_MAX:
            raise RefusedError("xml.invalid", f"the domain names more than {DEVICES_MAX} slices: detach some")
        found.append(uuid)


def read_document(descriptor: int) -> bytes | None:
    """Return the domain's XML, or None if it cannot concern us. Raises RefusedError if it is too long to parse."""
    kept: list[bytes] = []
    size, marked, tail = 0, False, b""
    while chunk := os.read(descriptor, _CHUNK):
        size += len(chunk)
        window = tail + chunk
        marked = marked or any(marker in window for marker in MARKERS)
        tail = window[-_OVERLAP:]
        if size <= XML_BYTES_MAX:
            kept.append(chunk)
        else:
            kept.clear()
    if size > XML_BYTES_MAX:
        if not marked:
            return None
        raise RefusedError(
            "xml.too_large", f"domain XML is longer than {XML_BYTES_MAX >> 20} MiB: shorten its metadata"
        )
    return b"".join(kept)


def ask(request: dict[str, object], path: str) -> None:
    """Send one request to the agent. Raises RefusedError if the agent refuses, AgentError if it does not decide."""
    connection = connected(path)
    try:
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
        except ConnectionError:
            pass  # the agent may have answered and closed before it read the request
        answer = b""
        while not answer.endswith(b"\n") and (chunk := connection.recv(65536)):
            answer += chunk
            if len(answer) > ANSWER_BYTES_MAX:
                raise AgentError("its answer is too long")
    except OSError as error:
        raise AgentError(f"the connection failed: {error.strerror or error}") from None
    finally:
        connection.close()
    judge(answer)


def connected(path: str) -> socket.socket:
    """Connect to the agent within CONNECT_S. Raises AgentError."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_S)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            # The listen queue is full. Unlike TCP, a Unix socket cannot wait for room in it with a time limit.
            if isinstance(error, BlockingIOError) and time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            raise AgentError(f"no answer at {SOCKET}: {error.strerror or error}") from None
        connection.settimeout(None)
        return connection


def judge(answer: bytes) -> None:
    """Return if the agent agrees. Raises RefusedError; AgentError for the agent's own failures, with codes agent.*."""
    try:
        decision = json.loads(answer)
    except (ValueError, RecursionError):
        raise AgentError("its answer is not JSON") from None
    if not isinstance(decision, dict) or not isinstance(decision.get("ok"), bool):
        raise AgentError("its answer has no decision")
    if decision["ok"]:
        return
    code, reason = decision.get("code"), decision.get("reason")
    if not isinstance(code, str) or not isinstance(reason, str):
        raise AgentError("it refuses without a reason")
    if code.startswith("agent."):
        raise AgentError(reason)
    raise RefusedError(code, reason)


def ours(domain: Domain, root: str) -> bool:
    """Return whether a VM has our metadata or one of our devices, judged without the agent."""
    if domain.marked:
        return True
    for uuid in domain.devices:
        if os.path.lexists(f"{root}{RECORDS}/{uuid}.json"):
            return True
        # .../0000:41:00.0/UUID: the parent is the directory that contains the target of the device's link
        parent = os.path.dirname(os.path.realpath(f"{root}{MDEVS}/{uuid}"))
        if os.path.basename(os.path.realpath(f"{parent}/driver")) == DRIVER:
            return True
    return False


def require_unshared(functions: list[str], root: str) -> None:
    """Refuse passthrough of our GPUs and of their virtual functions, because no claim allows it."""
    ours = listed(root) if functions else []
    for function in dict.fromkeys(functions):
        where = f"{root}{FUNCTIONS}/{function}"
        parent = f"{where}/physfn"
        gpu = os.path.basename(os.path.realpath(parent)) if os.path.lexists(parent) else function
        if gpu in ours or any(map(shared, (where, parent))):
            what = f"PCI function {function} is" + ("" if gpu == function else f" a virtual function of GPU {gpu},")
            raise RefusedError(
                "gpu.shared",
                f"{what} shared by vgpumgr; a VM cannot have it whole: claim a slice, and remove it from the domain",
            )


def listed(root: str) -> list[str]:
    """Return the GPUs that the host's configuration assigns to us, or has us adopt. Raises OSError."""
    found: list[str] = []
    try:
        with open(root + LISTED, encoding="utf-8", errors="replace") as file:
            found = [line.strip() for line in file]
    except FileNotFoundError:
        pass
    try:
        import tomllib  # imported here, so that only a VM with a PCI function pays for it

        with open(root + SETTINGS, "rb") as settings:
            gpus = tomllib.load(settings).get("gpus", {})
        found += [gpu for gpu, each in gpus.items() if "driver" in each]
    except (OSError, ValueError, AttributeError, TypeError):
        pass  # `shared` still finds the GPUs that are adopted now
    return found


def shared(function: str) -> bool:
    """Return whether our module uses a function: as its driver, or as an adopter beside the vendor's driver."""
    return os.path.isdir(f"{function}/vgpu") or os.path.basename(os.path.realpath(f"{function}/driver")) == DRIVER


def decide(name: str, operation: str, reason: str, *, root: str) -> None:
    """Return if libvirt may continue. Raises RefusedError otherwise."""
    document = read_document(0)
    if document is None:
        return
    domain = Reader().parse(document)
    if operation in VETO:
        require_unshared(domain.functions, root)
    if not domain.devices and not domain.marked:
        return
    request = {
        "v": 1,
        "op": operation,
        "domain": name,
        "vm_uuid": normal_uuid(domain.uuid, "domain/uuid"),
        "devices": domain.devices,
        "metadata": domain.metadata,
        "reason": reason,
    }
    try:
        ask(request, root + SOCKET)
    except (AgentError, Expired) as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if ours(domain, root):
            why = error if isinstance(error, AgentError) else "it did not answer in time"
            raise RefusedError(
                "agent.unavailable",
                f"the agent does not decide about this VM's slices ({why}): see `systemctl status vgpumgr-agent`",
            ) from None


def say(refusal: RefusedError) -> None:
    """Print one line that libvirt appends to its error."""
    text = f"{refusal.reason[:REASON_MAX]} (vgpumgr: {refusal.code[:64]})"
    line = "".join(character if character.isprintable() else " " for character in text)
    if sys.stderr is None:  # stderr is closed, and its descriptor may belong to another file by now
        return
    try:
        os.write(2, line.encode(errors="replace") + b"\n")
    except OSError:
        return


def expire(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Expired


def main(arguments: list[str], *, root: str = "") -> int:
    """Return the exit status: 1 if libvirt must abort the operation."""
    name, operation, _phase, reason = (*arguments, "-", "-", "-", "-")[:4]
    veto = operation in VETO
    signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, VETO_S if veto else TELL_S)
    try:
        decide(name, operation, reason, root=root)
        return 0
    except RefusedError as error:
        refusal = error
    except Expired:
        refusal = RefusedError("xml.invalid", "domain XML takes too long to read: shorten its metadata")
    except Exception as error:
        refusal = RefusedError("hook.broken", f"the hook failed ({type(error).__name__}): report it with the VM's XML")
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    if not veto:
        return 0
    say(refusal)
    return 1


if __name__ == "__main__":
    # Skip the interpreter's clean-up: it costs milliseconds, and an alarm during it would print a traceback.
    os._exit(main(sys.argv[1:]))
