"""``python -m bench``: the list of cases, a case's help, a name that is none."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from host_cuda import CudaArray, installed
from paths import ROOT

from bench.__main__ import summaries
from bench.cases import batch_invariant
from bench.place import Place, call
from convdispatch import ConvProblem, constant
from convdispatch.device import runtime
from convdispatch.measurement.conformance import digests


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_every_case_says_what_it_measures_and_stands_in_the_readme():
    listed, page = run(), (ROOT / "bench" / "README.md").read_text()
    assert listed.returncode == 0
    for name, text in summaries().items():
        assert f"{name} " in listed.stdout
        assert text.endswith(".") or ":" in text, name
        assert f"`{name}`" in page, f"bench/README.md does not tell of {name}"


@pytest.mark.parametrize("name", ["layers", "overhead", "choice"])
def test_a_case_runs_by_its_name(name):
    told = run(name, "--help")
    assert told.returncode == 0, told.stderr
    assert "Usage" in told.stdout or "usage" in told.stdout


def test_a_name_that_is_none_gets_a_suggestion():
    told = run("layer")
    assert told.returncode == 2
    assert "no case is named 'layer'; did you mean layers?" in told.stderr


def test_recorded_commands_name_cases_that_exist():
    known, wrong = summaries(), []
    for file in (ROOT / "docs" / "results" / "data").glob("*.json"):
        words = file.read_text().split("python -m bench ")[1:]
        wrong += [f"{file.name}: {rest[:40]}" for rest in words if rest.split()[0].strip("`\",;'") not in known]
    assert wrong == []


PARTS = (
    "fwd_f32_nhwc",
    "bwd_data_f32_nhwc",
    "bwd_weights_f32",
    "+clip",
    "+bias+residual+relu",
    "sh3sw3+bias",
    "+accumulate",
)
"""Parts of texts of problems: the first problem with each is computed."""


class OnHostCuda(Place):
    """PyTorch's tensors on CUDA, with the host in the place of a GPU."""

    @property
    def queue(self):
        return runtime.queue(runtime.find_device("cpu"))

    def bring(self, array):
        return CudaArray(array)

    def fetch(self, result):
        return result.values


@pytest.mark.parametrize("text", ["fwd_f32_mb9ic8ih6oc8kh3ph1", "bwd_data_f32_nhwc_mb9ic8ih6oc8kh3ph1"])
def test_images_on_cuda_are_compared_bit_by_bit(monkeypatch, text):
    """No bit differs between batches, and a call that looks at the batch is found out."""
    place = OnHostCuda("cuda")
    with installed(monkeypatch, place.queue.device):
        compute, images = batch_invariant.call_of(place, ConvProblem.parse(text))
        monkeypatch.setattr(CudaArray, "__len__", lambda array: len(array.values), raising=False)
        assert batch_invariant.compared(place, compute, images, (1, 2, 64)) == (6, 0)

        def by_batch(array):
            return CudaArray(compute(array).values + np.float32(len(array)))

        assert batch_invariant.compared(place, by_batch, images, (1, 2, 64)) == (6, 6)


def test_a_batch_invariant_choice_that_is_the_free_one_costs_nothing():
    place = Place(runtime.device_info(runtime.find_device("cpu")).vendor)
    assert batch_invariant.layer_ratio(place, ConvProblem.parse("fwd_f32_mb32ic704ih3oc32kh3ph1")) == 1.0


def result(place, problem):
    """What the public call gives for the problem's seeded operands."""
    arrays = {name: place.bring(np.ascontiguousarray(array)) for name, array in digests.operands(problem).items()}
    if problem.constant_weights:
        arrays["w"] = constant(arrays["w"])
    unused = {"bias": problem.bias, "residual": problem.residual, "initial": False}
    operands = {name: array for name, array in arrays.items() if unused.get(name, True)}
    return place.fetch(call(problem, operands, **({"out": arrays["initial"]} if problem.accumulate else {})))


def test_digests_through_cuda_are_the_committed_ones(monkeypatch):
    """One call of each direction, and what is fused: a result that is changed in one bit has another digest."""
    place = OnHostCuda("cuda")
    texts = [next(text for text in digests.known() if part in text) for part in PARTS]
    with installed(monkeypatch, place.queue.device):
        results = {text: result(place, ConvProblem.parse(text)) for text in texts}
    for text, got in results.items():
        assert digests.digest(got) == digests.known()[text], text
        got.reshape(-1).view(np.uint32)[-1] ^= 1
        assert digests.digest(got) != digests.known()[text]
