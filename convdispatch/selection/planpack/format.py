"""The form of a plan pack: a zip archive with ``manifest.json`` and members named by what they are.

``manifest.json``: ``{"plan pack": 1, "device": {...}, "plugins": {...}, "decisions": {...}, "forms": {...},
"programs": {key: member}, "texts": member, "weights": {key: member}}``. Texts are one JSON member, keys to texts.
Compiled code and packed weights are stored without compression and read in place, because inflating 12 MB of code took
most of the time of reading a pack.
"""

from __future__ import annotations

import re

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TEXTS = "texts.json"
MEMBER = re.compile(r"(programs|weights)/[0-9]{1,6}\.bin")
"""The names of archive members that hold programs or packed weights; the other two members are JSON."""
ENTRY_KEY = re.compile(r"[ -~]{1,4096}")
"""A valid key of an entry: printable ASCII of limited length."""
MAX_JSON_BYTES = 256 << 20
"""The largest size of a JSON member in bytes, uncompressed."""
MAX_MEMBERS = 200_000
