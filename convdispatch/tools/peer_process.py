"""onnxruntime's runs of a model file in a process of its own, which stands still while others are timed.

In one process two engines' threads take each other's cores: onnxruntime's look for work for a while after each run,
and a run of the other engine that follows is then slower by up to half.

``python -m convdispatch.tools.peer_process MODEL ARRAYS THREADS`` is the child: it answers one line of JSON to each
number of runs that it reads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument

PEERS = ("onnxruntime",)
_RESULTS = "results.npz"


class PeerProcess:
    """``with PeerProcess(...) as peer``: ``peer.outputs`` and ``peer.times(runs)``.

    ``threads`` is onnxruntime's, 0 for as many as there are cores. Raises InvalidArgument for an unknown peer, one that
    is not installed, and a file that it cannot run, with its own words.
    """

    def __init__(self, name: str, path: Path, feeds: Mapping[str, np.ndarray], threads: int) -> None:
        if name not in PEERS:
            raise InvalidArgument(f"--against knows {', '.join(PEERS)}, got {name!r}")
        self._folder = tempfile.TemporaryDirectory()
        arrays = Path(self._folder.name) / "feeds.npz"
        np.savez(arrays, allow_pickle=False, **dict(feeds))
        words = [sys.executable, "-m", __name__, str(path), str(arrays), str(threads)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self._read()
            with np.load(arrays.parent / _RESULTS, allow_pickle=False) as held:
                self.outputs = [held[f"arr_{place}"] for place in range(len(held.files))]
                """The results in the file's order."""
        except BaseException:
            self.close()
            raise

    def times(self, runs: int) -> list[float]:
        """Milliseconds of so many runs, after one unseen; this process stands still meanwhile."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{runs}\n")
        self._process.stdin.flush()
        return self._read()["ms"]  # type: ignore[no-any-return]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        said = json.loads(line) if line.strip() else {"failed": "onnxruntime's process ended without a word"}
        if "failed" in said:
            raise InvalidArgument(said["failed"])
        return said  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _child(path: str, arrays: str, threads: int) -> None:
    try:
        import onnxruntime
    except ImportError:
        _say({"failed": "onnxruntime is not installed: pip install onnxruntime"})
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, threads
    with np.load(arrays, allow_pickle=False) as held:
        feeds = {name: held[name] for name in held.files}
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        feeds = {each.name: feeds[each.name] for each in session.get_inputs()}
        np.savez(Path(arrays).parent / _RESULTS, *session.run(None, feeds), allow_pickle=False)
    except Exception as error:  # its own exception types are not public
        _say({"failed": f"onnxruntime cannot run {path} so: {str(error).splitlines()[0]}"})
        return
    _say({})
    for line in sys.stdin:
        session.run(None, feeds)
        found = []
        for _ in range(int(line)):
            start = time.perf_counter()
            session.run(None, feeds)
            found.append((time.perf_counter() - start) * 1e3)
        _say({"ms": found})


def _say(what: Mapping[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
