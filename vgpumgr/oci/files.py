# SPDX-License-Identifier: Apache-2.0
"""The JSON files of a container. They are read and replaced as a whole."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from vgpumgr.errors import ContainerRefusedError

MAX_BYTES = 16 << 20


def read(path: Path) -> Any:
    """Return the content of a file. FileNotFoundError, ContainerRefusedError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ContainerRefusedError(f"{path} is larger than {MAX_BYTES} bytes")
        return json.loads(content)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ContainerRefusedError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError):
        raise ContainerRefusedError(f"{path} is not valid JSON") from None


def replace(path: Path, content: Any) -> None:
    """Replace a file, keeping its owner and mode. ContainerRefusedError."""
    temporary = ""
    try:
        status = path.stat()
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
            os.fchmod(descriptor, status.st_mode & 0o7777)
            os.fchown(descriptor, status.st_uid, status.st_gid)
        Path(temporary).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(temporary or "/nowhere").unlink()
        raise ContainerRefusedError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from None
