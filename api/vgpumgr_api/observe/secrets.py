# SPDX-License-Identifier: Apache-2.0
"""Removes everything that looks like a secret from every line of the log.

No code should log secrets. But exceptions quote values, and people put tokens where paths belong.
"""

import re
from urllib.parse import unquote

HIDDEN = "(hidden)"

_KINDS = re.compile(
    r"vgpu_[A-Za-z0-9_-]{20,}"  # our tokens
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"  # JSON web tokens
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?i:\bbearer\s+)[!-~]{8,}"
    r"|(?<=://)[^/@\s\"']+:[^@\s\"']+(?=@)"  # user and password in a URL
    r"|(?i:\bpassword=)[^\s\"'&]+",
    re.DOTALL,
)


def hide(text: str) -> str:
    """Returns `text` without secrets. Percent-encoded secrets, for example in a path, are found, too."""
    hidden = _KINDS.sub(HIDDEN, text)
    if "%" in hidden and _KINDS.search(unquote(hidden)):
        return HIDDEN
    return hidden
