"""Plan packs: the decisions, programs and packed weights of a net on a kind of device become one file.

A pack holds compiled code, which a device's driver loads: whoever can write the file can run code as you (SECURITY.md).
A new table goes to ``device.cache.artifact_store``, and to ``reading``.

- ``reading``: a file that may come from anywhere to a collection, every size checked.
- ``force``: puts a pack in force; what does not fit here is said once and made anew.
- ``decisions``: a pack's decisions, sealed over what they follow from.
"""

from .force import LoadedPack, from_environment, load_pack, write
from .reading import PackFile, read

__all__ = ["LoadedPack", "PackFile", "from_environment", "load_pack", "read", "write"]
