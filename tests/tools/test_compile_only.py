"""``convdispatch targets``: kernels compiled by vendors' compilers for devices that are not there."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import zlib

import pytest
from command_line import run_cli

import convdispatch as cd
from convdispatch.api.errors import BuildFailed
from convdispatch.device.programs.kernels import driver_options, for_device
from convdispatch.selection.plugins.loader import plugins
from convdispatch.selection.solver_query import query
from convdispatch.tools.targets import compilers, compiling
from convdispatch.tools.targets.compilers import Compiled, Kernel
from convdispatch.tools.targets.described import TARGETS, target_device

SPILLING = """
kernel __attribute__((reqd_work_group_size(64, 2, 1))) void fill(global float *out, int at) {
  local float shared[96];
  volatile float own[40];
  for (int i = 0; i < 40; ++i) own[i] = out[i];
  shared[get_local_id(0)] = own[at];
  barrier(CLK_LOCAL_MEM_FENCE);
  out[get_global_id(0)] = shared[at];
}
"""


def compiler(target: str):
    reason = compilers.missing(target)
    if reason:
        pytest.skip(f"{target} {reason}")
    return compilers.compiler(target)


def compiled_rows(targets, solvers, problems, most):
    """The rows of a whole run."""
    planned = list(compiling.plan_all(targets, solvers, problems, most))
    compiling.compile_all(planned)
    assert all(row.compiled == row.texts for row, _ in planned)
    return [row for row, _ in planned]


@pytest.mark.parametrize("target", TARGETS)
def test_a_compiler_says_what_a_kernel_uses(target, tmp_path):
    compiled = compiler(target)(SPILLING, tmp_path)
    assert compiled.error is None
    (kernel,) = compiled.kernels
    assert (kernel.name, kernel.items) == ("fill", 128)
    assert kernel.local >= 384, "384 bytes of local memory are declared"
    assert kernel.scratch >= 160, "40 numbers are addressed by a variable"
    assert 0 < kernel.registers <= 256
    assert 0 < kernel.occupancy <= 1


@pytest.mark.parametrize("target", TARGETS)
def test_an_error_is_a_sentence(target, tmp_path):
    compiled = compiler(target)("kernel void wrong(global float *out) { *out = absent; }", tmp_path)
    assert "absent" in str(compiled.error)
    assert not compiled.kernels


def test_texts_alike_but_for_numbers_have_one_structure():
    one = b"#define MB 12\nkernel void f(global float4 *p) { p[3] = 0x1.8p-2f * 1e-5f - 2; }"
    other = b"#define MB 3\nkernel void f(global float4 *p) { p[17] = 0.25f * -1.5e+7f - 40L; }"
    assert compiling.structure_of(one) == compiling.structure_of(other)
    assert compiling.structure_of(one) != compiling.structure_of(one.replace(b"float4", b"float8"))
    assert compiling.structure_of(one) != compiling.structure_of(one.replace(b"MB", b"G"))


def test_a_run_compiles_each_structure_before_a_second_text_of_one(counted):
    """And a text of each row before another one of any row."""
    solvers = [plugins().solvers[name] for name in ("im2col", "implicitgemm.tiled")]
    problems = [cd.ConvProblem.parse(f"mb{mb}ic8ih{ih}oc{oc}kh3") for mb in (1, 2) for ih in (9, 17) for oc in (8, 70)]
    planned = list(compiling.plan_all(["gfx942", "pvc"], solvers, problems, 8))
    order = list(compiling._in_turns(planned))
    assert len(order) == sum(row.texts for row, _ in planned)
    repeats = [text.repeats for _, text in order]
    assert any(repeats), "some texts have the structure of another"
    assert repeats == sorted(repeats)
    rows = [(row.target, row.solver) for row, _ in order]
    assert len(set(rows[: len(planned)])) == len(planned), "the first turn has a text of each row"
    compiling.compile_all(planned)
    for row, texts in planned:
        assert (
            row.reached == row.structures == len({compiling.structure_of(zlib.decompress(one.packed)) for one in texts})
        )


def test_products_that_run_in_turn_are_an_error(tmp_path):
    """A sum that is changed while ``wgmma`` adds to it makes each ``wgmma`` wait for the one before."""
    run = compiler("sm_90")
    problem = cd.ConvProblem.parse("f8_e4m3f8_e4m3f8_e4m3_nhwc_mb64ic384ih56oc256+constant")
    ((_, texts),) = compiling.plan_all(["sm_90"], [plugins().solvers["nvidia.int8"]], [problem], 1)
    (text,) = (text for text in (zlib.decompress(each.packed).decode() for each in texts) if "wgmma" in text)
    right, wrong = (
        run(each, tmp_path) for each in (text, text.replace("WGMMA_COMMIT();", "WGMMA_COMMIT(); sum[0] += 1;"))
    )
    assert right.error is None
    assert "wgmma.mma_async instructions are serialized" in str(wrong.error)


@pytest.mark.parametrize("target", TARGETS)
def test_solvers_kernels_compile(target, full):
    compiler(target)
    problem = cd.ConvProblem.parse("fwd_f32_mb8ic64ih28iw28oc64kh3kw3ph1pw1")
    names = sorted(plugins().solvers) if full else ["im2col", "winograd.tiled_f2x3", "implicitgemm.tiled"]
    rows = compiled_rows([target], [plugins().solvers[name] for name in names], [problem], 1)
    assert all(not row.errors for row in rows), [row.errors for row in rows]
    assert sum(bool(row.kernels) for row in rows) >= 2


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """A compiler that notes the texts that it compiles, and a cache of its own."""
    seen = []

    def run(text, folder):
        seen.append(text)
        return Compiled(kernels=[Kernel("product", 70, 8, 1 << 20, 64, 0.5)])

    for module in (compiling, compilers):
        monkeypatch.setattr(module, "identity", lambda target: "stand-in 1")
    monkeypatch.setattr(compiling, "compiler", lambda target: run)
    monkeypatch.setattr(compilers, "missing", lambda target: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return seen


def test_a_text_is_compiled_once(counted, tmp_path):
    report = tmp_path / "report.json"
    words = ["targets", "gfx942", "--solver", "im2col", "--from", "alexnet", "--json", str(report)]
    first = run_cli(*words)
    texts = len(counted)
    assert texts == len(set(counted)) > 0
    again = run_cli(*words)
    assert len(counted) == texts, "the second run read what the first one compiled"
    assert first.stdout == again.stdout
    (row,) = json.loads(report.read_text())
    assert row["problems"] == 5
    assert first.exit_code == 1
    assert "1048576 bytes of local memory, at most 65536" in first.output


TWO_TARGETS = ["targets", "gfx90a", "gfx942", "--solver", "im2col", "--from", "alexnet"]


def test_an_interrupted_run_shows_what_it_has(counted, monkeypatch, tmp_path):
    """Both targets' texts are compiled in turns, the report says how many, and the next run compiles the rest."""
    command, collect = [*TWO_TARGETS, "--json", str(tmp_path / "report.json")], compiling._collect

    def interrupted(*arguments):
        collect(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compiling, "_collect", interrupted)
        done = run_cli(*command, "--markdown")
    assert done.exit_code == 130
    rows = json.loads((tmp_path / "report.json").read_text())
    counts = [row["compiled"] for row in rows]
    assert [row["texts"] for row in rows] == [10, 10]
    assert 0 < sum(counts) < 20
    assert abs(counts[0] - counts[1]) <= 2
    assert f"{20 - sum(counts)} texts are left" in done.stderr
    structures, reached = rows[0]["structures"], rows[0]["reached"]
    assert 0 <= reached <= structures <= 10
    assert f"| gfx90a | im2col | 5 | 10 | {counts[0]} | {structures} | {reached} | {counts[0]} |" in done.stdout
    again = run_cli(*command)
    assert "are left" not in again.stderr
    assert [row["compiled"] for row in json.loads((tmp_path / "report.json").read_text())] == [10, 10]


def test_a_run_ends_within_its_time_and_says_what_is_left(counted):
    done = run_cli(*TWO_TARGETS, "--within", "0", status=0)
    assert not counted
    assert "20 texts are left" in done.stderr


def test_the_table_has_a_line_for_each_target_and_the_worst_kernels():
    kernels = [Kernel("gather", 70, 0, 512, 64, 0.5), Kernel("product", 90, 48, 2048, 64, 0.25)]
    row = compiling.Row("gfx942", "im2col", 3, 2, 2, 2, 1, kernels=kernels, worst=("mb1ic3ih7oc5kh3", kernels[1]))
    spared = compiling.Row(
        "gfx942", "fft.gpu", 4, 1, 1, 1, 1, kernels=kernels[:1], worst=("mb1ic4ih9oc6kh5", kernels[0])
    )
    shown = compiling.table([row, compiling.Row("gfx942", "nvidia.mma"), spared])
    assert [cells[:10] for cells in shown.rows] == [
        ("gfx942", "im2col", "3", "2", "2", "2", "1", "2", "0", "80"),
        ("gfx942", "fft.gpu", "4", "1", "1", "1", "1", "1", "0", "70"),
        ("gfx942", "all", "7", "3", "3", "3", "2", "3", "0", "70"),
    ]
    assert shown.rows[2][10:] == ("90", "1", "48", "2.0", "50%", "25%")
    assert compiling.worst([row, spared]).rows == [
        ("gfx942", "im2col", "product", "48", "90", "2.0", "25%", "mb1ic3ih7oc5kh3")
    ]


def test_a_plugins_kernels_alone_are_compiled(counted):
    done = run_cli("targets", "gfx90a", "pvc", "--solver", "im2col", "--from", "alexnet")
    assert done.exit_code == 1, "the stand-in's kernel exceeds the local memory"
    assert {line.split()[1] for line in done.stdout.splitlines() if line.startswith(("gfx90a", "pvc"))} == {"im2col"}


def test_refusals(monkeypatch):
    done = run_cli("targets", "gfx1")
    assert "targets are gfx90a, gfx942" in done.output
    monkeypatch.setattr(compilers.shutil, "which", lambda name: None)
    done = run_cli("targets", "dg2")
    assert "dg2 is left out: it needs Intel's ocloc" in done.output
    assert done.exit_code == 1


def test_drawn_problems_are_of_every_kind():
    problems = compiling.drawn()[:400]
    assert len(set(problems)) == 400
    assert {one.direction for one in problems} == {"fwd", "bwd_data", "bwd_weights"}
    assert {one.dtype for one in problems} >= {"float32", "float16", "bfloat16"}


@pytest.mark.parametrize(
    "name", ["winograd.tiled_f2x7", "winograd.tiled_f2x5", "implicitgemm.tiled_depthwise_sums", "int8.words"]
)
def test_a_solver_that_takes_few_problems_gets_variants_of_them(name):
    """Of the tables' and the kit's problems each of these takes fewer than 200."""
    row = compiling.Row("pvc", name)
    taken = [answers.problem for answers in compiling._taken(row, plugins().solvers[name], compiling.drawn(), True)]
    own = [answers.problem for answers in compiling._taken(row, plugins().solvers[name], compiling.drawn(), False)]
    assert len(own) < 200 <= len(set(taken)) == len(taken)
    assert taken[: len(own)] == own, "the variants come last"


def test_variants_are_the_same_on_every_machine():
    problem = cd.ConvProblem.parse("fwd_f32_mb8ic64ih28iw28oc64kh3kw3ph1pw1")
    assert [str(one) for one in itertools.islice(compiling.variants([problem]), 3)] == [
        "fwd_f32_mb8ic64ih56iw56oc64kh3kw3ph1pw1",
        "fwd_bf16_nhwc_mb1ic64ih31iw56oc64kh3kw3ph1pw1",
        "fwd_f32_mb2ic64ih56iw28oc64kh3kw3ph1pw1",
    ]
    assert all(one.ic == one.oc == 64 and one.kh == 3 for one in compiling.variants([problem]))


def test_a_unit_holds_so_many_groups():
    """64 warps; 65,536 registers; 228 KB of which each group takes one for itself (CUDA's occupancy calculator)."""
    unit = compilers._UNITS["sm_90"]
    assert unit.occupancy(256, 0, 32) == 1.0
    assert unit.occupancy(256, 0, 128) == 16 / 64
    assert unit.occupancy(128, 100 << 10, 32) == 8 / 64
    assert target_device("sm_90").compute_units == 132


@pytest.mark.parametrize(("target", "most"), [("sm_80", 163 << 10), ("sm_90", 227 << 10), ("sm_120", 99 << 10)])
@pytest.mark.parametrize("name", ["nvidia.mma", "nvidia.direct", "nvidia.grouped", "nvidia.int8"])
def test_tiles_fit_the_architectures_local_memory(name, target, most):
    """A work group's local memory by compute capability: CUDA C++ programming guide."""
    solver, device, seen = plugins().solvers[name], target_device(target), 0
    for problem in compiling.drawn()[:300]:
        answers = query(solver, problem, device)
        assert not answers.fault, f"{problem}: {answers.fault}"
        configs = answers.configs
        if not configs:
            continue
        seen += len(configs)
        sizes = [solver.tiling(answers.shown(config), config).local_bytes for config in configs]
        assert max(sizes) <= most, f"{problem}: {configs[sizes.index(max(sizes))]}"
    assert seen > 20


def test_intels_widest_gpus_compile_for_the_narrowest_sub_group():
    """Of 16 work items, where the text says nothing of sub-groups itself; no other device's text has it."""
    text = "kernel void f(global float *p) { p[0] = 0; }"
    changed = for_device(text, target_device("pvc"))
    assert changed.splitlines() == ["#define kernel __attribute__((intel_reqd_sub_group_size(16))) __kernel", text]
    own = "__attribute__((intel_reqd_sub_group_size(32)))\n" + text
    assert for_device(own, target_device("pvc")) == own
    others = [target_device(name) for name in TARGETS if name != "pvc"]
    assert [for_device(text, info) for info in others] == [text] * len(others)
    assert {driver_options(info) for info in others} == {()}
    assert driver_options(target_device("pvc")) == ("-cl-intel-enable-auto-large-GRF-mode",)
    assert driver_options(dataclasses.replace(others[0], vendor="oclgrind")) == ("-Ucl_khr_fp16",)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("im2col", "fwd_bf16_nhwc_mb32ic192ih35iw35oc64kh1kw1"),
        ("winograd.tiled_f4x3", "bwd_data_f32_mb1ic64ih570iw570oc64kh3kw3"),
    ],
)
def test_intels_widest_gpus_spill_little(name, problem):
    """With sub-groups of 32 these kernels spilled 4,096 bytes a work item."""
    compiler("pvc")
    (row,) = compiled_rows(["pvc"], [plugins().solvers[name]], [cd.ConvProblem.parse(problem)], 1)
    assert row.kernels
    assert not row.errors
    assert max(kernel.scratch for kernel in row.kernels) <= 256


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("im2col", "fwd_bf16_nhwc_mb32ic192ih35iw35oc64kh1kw1"),
        ("implicitgemm.tiled", "bwd_data_f16_nhwc_mb128ic192ih7iw7oc384kh3kw3ph1pw1"),
    ],
)
@pytest.mark.parametrize("target", ["gfx1030", "gfx1201"])
def test_amds_gpus_of_256_registers_spill_nothing(target, name, problem):
    """A product's slice, unrolled whole, spilled 372 to 540 bytes a work item."""
    compiler(target)
    (row,) = compiled_rows([target], [plugins().solvers[name]], [cd.ConvProblem.parse(problem)], 1)
    assert max(kernel.registers for kernel in row.kernels) > 100, "tiles of 8 by 8 sums"
    assert [kernel.scratch for kernel in row.kernels] == [0] * len(row.kernels)
    assert not row.errors


def test_plans_keep_within_a_small_devices_limits(monkeypatch):
    """A phone's GPU: 32 KB of local memory and 256 work items, by the compiler's own count."""
    compiler("gfx1100")
    small = dataclasses.replace(
        target_device("gfx1100"), vendor="arm", arch="mali", compute_units=8, max_work_group_size=256,
        max_work_item_sizes=(256,) * 3, local_mem_size=32 << 10, fp64=False,
    )  # fmt: skip
    monkeypatch.setattr(compiling, "target_device", lambda target: small)
    names = ["im2col", "implicitgemm.tiled", "fft.gpu", "winograd.tiled_f4x3", "winograd.tiled_f2x3"]
    solvers = [plugins().solvers[name] for name in names]
    rows = compiled_rows(["gfx1100"], solvers, compiling.drawn(), 1)
    assert [row.errors for row in rows] == [{}] * len(names)
    kernels = [kernel for row in rows for kernel in row.kernels]
    assert max(kernel.local for kernel in kernels) > 16 << 10, "local memory is used"
    assert max(kernel.items for kernel in kernels) <= 256


def test_a_cold_compiler_is_asked_again(counted, monkeypatch, tmp_path):
    """What a compiler says is cached; that it did not end in time is not."""
    late, ends = "kernel void late() {}", []

    def compile_text(target, text, folder):
        counted.append(text)
        if "late" in text and not ends:
            raise subprocess.TimeoutExpired(["/usr/bin/ocloc"], 120)
        if "late" in text:
            raise BuildFailed("ocloc ended by SIGSEGV", "")
        return []

    monkeypatch.setattr(compilers, "_intel", compile_text)
    run, texts = compilers.compiler("pvc"), [late, "kernel void f() {}"]

    def said():
        return [compiling._compiled(run, "pvc", zlib.compress(text.encode())).error for text in texts]

    assert said() == ["ocloc did not end in 120 s", None]
    ends.append(True)
    asked = len(counted)
    assert said() == said() == ["ocloc ended by SIGSEGV", None]
    assert counted[asked:] == [late]


def test_a_compilers_end_is_a_sentence(tmp_path):
    with pytest.raises(BuildFailed, match="sh ended by SIGSEGV"):
        compilers._run(["sh", "-c", "kill -SEGV $$"], tmp_path)
