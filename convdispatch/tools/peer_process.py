"""Runs a model file by onnxruntime in a separate process, which is idle while other engines are timed.

In one process two engines' threads take each other's cores: onnxruntime's look for work for a while after each run,
and a run of the other engine that follows is then slower by up to half.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..api.errors import InvalidArgument
from ..device.child import Answer, Child, answer, questions

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
        self._child = Child(__name__, {"path": str(path), "arrays": str(arrays), "threads": threads})
        try:
            self._answer_of_child()
            with np.load(arrays.parent / _RESULTS, allow_pickle=False) as results:
                self.outputs = [results[f"arr_{number}"] for number in range(len(results.files))]
                """The results in the file's order."""
        except BaseException:
            self.close()
            raise

    def times(self, runs: int) -> list[float]:
        """Milliseconds of each of ``runs`` runs, after one that is not timed; this process waits meanwhile."""
        self._child.say({"runs": runs})
        return self._answer_of_child()["ms"]  # type: ignore[no-any-return]

    def _answer_of_child(self) -> Answer:
        reply = self._child.hear()
        if reply is None:
            raise InvalidArgument(f"onnxruntime's process was lost: {self._child.how_it_ended()}")
        if "failed" in reply:
            raise InvalidArgument(reply["failed"])
        return reply

    def close(self) -> None:
        """End the child process."""
        self._child.close()
        self._folder.cleanup()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve() -> None:
    requests = questions()
    setup = next(requests)
    path, arrays, threads = setup["path"], setup["arrays"], setup["threads"]
    try:
        import onnxruntime
    except ImportError:
        answer({"failed": "onnxruntime is not installed: pip install onnxruntime"})
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, threads
    with np.load(arrays, allow_pickle=False) as archive:
        feeds = {name: archive[name] for name in archive.files}
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        feeds = {each.name: feeds[each.name] for each in session.get_inputs()}
        np.savez(Path(arrays).parent / _RESULTS, *session.run(None, feeds), allow_pickle=False)
    except Exception as error:  # onnxruntime raises exception types that it does not export.
        answer({"failed": f"onnxruntime cannot run {path} so: {str(error).splitlines()[0]}"})
        return
    answer({})
    for request in requests:
        session.run(None, feeds)
        times = []
        for _ in range(request["runs"]):
            start = time.perf_counter()
            session.run(None, feeds)
            times.append((time.perf_counter() - start) * 1e3)
        answer({"ms": times})


if __name__ == "__main__":
    _serve()
