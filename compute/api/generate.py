# SPDX-License-Identifier: Apache-2.0
"""Generates the files that C programs, the documentation and fuzzers need from the described APIs.

    python3 -m compute.api.generate FOLDER

opencl_messages.h   numbers and structs of all messages
opencl_decode.h     functions that check a message and return its parts
opencl_encode.h     functions that lay a message out
opencl_stubs.h      entry points that are refused
opencl_functions.h  the list of all entry points
opencl-support.md   the support table
opencl-grammar.json the grammar of messages, for fuzzers

A file whose text does not change is not written, so that nothing is compiled again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from compute.api import generate_c, generate_other
from compute.api.opencl import OPENCL


def files() -> dict[str, str]:
    """Return the names and texts of all generated files."""
    return {
        "opencl_messages.h": generate_c.messages_header(OPENCL),
        "opencl_decode.h": generate_c.decode_header(OPENCL),
        "opencl_encode.h": generate_c.encode_header(OPENCL),
        "opencl_stubs.h": generate_other.stubs_header(OPENCL),
        "opencl_functions.h": generate_other.functions_header(OPENCL),
        "opencl-support.md": generate_other.support_table(OPENCL),
        "opencl-grammar.json": generate_other.grammar(OPENCL),
    }


def main(arguments: list[str]) -> int:
    """Write the files into the folder given as argument."""
    if len(arguments) != 1:
        print("usage: python3 -m compute.api.generate FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        path = folder / name
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
