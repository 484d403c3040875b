"""Plan packs: what was decided, compiled and packed for a net on a kind of device, in one file.

``writing`` puts a gathered collection into a file, ``reading`` makes one of a file that may come from anywhere,
``force`` puts it in force: what fits answers, what does not is said once and made anew. A pack holds compiled code,
which a device's driver loads: who may write the file may run code as you (SECURITY.md).
"""

from .force import LoadedPack, from_environment, load_pack
from .reading import PackFile, read
from .writing import write

__all__ = ["LoadedPack", "PackFile", "from_environment", "load_pack", "read", "write"]
