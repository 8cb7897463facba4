# SPDX-License-Identifier: Apache-2.0
"""The last guard of the log: whatever looks like a secret is taken out of every line.

Nothing should have put one there. But exceptions quote, and people put tokens where paths belong.
"""

import re
from urllib.parse import unquote

HIDDEN = "(hidden)"

_KINDS = re.compile(
    r"vgpu_[A-Za-z0-9_-]{20,}"  # ours
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"  # JSON web tokens
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?i:\bbearer\s+)[!-~]{8,}"
    r"|(?<=://)[^/@\s\"']+:[^@\s\"']+(?=@)"  # user and password in a URL
    r"|(?i:\bpassword=)[^\s\"'&]+",
    re.DOTALL,
)


def hide(text: str) -> str:
    """Returns `text` without secrets; also of those that are percent-encoded, as in a path."""
    hidden = _KINDS.sub(HIDDEN, text)
    if "%" in hidden and _KINDS.search(unquote(hidden)):
        return HIDDEN
    return hidden
