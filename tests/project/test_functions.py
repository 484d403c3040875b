"""A function takes at most six parameters; those that take more stand here, by name, with the reason."""

from __future__ import annotations

import ast

from paths import ROOT

MOST = 6
REASONS = {
    "the options of a convolution, one by one, as users write them": """
        calls/arguments.py:describe calls/arguments.py:transposed_shape calls/conv.py:conv
        calls/conv.py:conv_backward_data calls/conv.py:conv_backward_weights calls/conv.py:conv_transpose
        calls/conv.py:explain nn/layers.py:__init__
    """,
    "the options of a public function or class": """
        api/declared.py:__init__ api/policy.py:policy inference/building.py:build
        measurement/conformance/verify.py:verify measurement/find.py:find
        nn/normalization/norms.py:batch_norm nn/normalization/table_norm.py:table_norm
        nn/pooling/pooling2d.py:windows_of nn/pooling/pooling2d.py:pool
        device/programs/strided_copy.py:copy_strided device/runtime.py:copy
        device/programs/kernels.py:__init__ device/plans/steps.py:__init__
    """,
    "the interface of a plan or a layer: the operands of a convolution and their events": """
        api/hookspecs.py:convdispatch_enqueue selection/layer_chain.py:convdispatch_enqueue
        selection/layers/validation.py:convdispatch_enqueue device/gemm/plan.py:enqueue device/plans/steps.py:enqueue
        selection/derivation/solver.py:enqueue
    """,
    "the fast path of a warm call: an object for its operands would cost more than the call": """
        calls/call.py:__call__ calls/host_call.py:fast_path
        calls/queue_call.py:fast_path calls/stream_call.py:fast_path torch/geometry.py:problem_of
    """,
    "the signature of an operator of PyTorch, which calls it so": """
        torch/functional.py:conv torch/functional.py:conv_transpose
        torch/graph/aten_net.py:_convolution
        torch/graph/aten_net.py:_batch_norm torch/graph/aten_net.py:_native torch/graph/aten_norms.py:_group_norm
        torch/graph/aten_norms.py:_no_statistics torch/graph/aten_norms.py:of_the_batch
        torch/graph/aten_norms.py:_attention torch/graph/aten_norms.py:_max_pool torch/graph/aten_norms.py:_avg_pool
        torch/graph/quantized.py:quantize torch/graph/quantized.py:dequantize
    """,
    "a kernel's builder: what its text depends on": """
        elementwise/codegen/kernel.py:_source elementwise/codegen/reduction_kernel.py:plan
        nn/normalization/row_norm.py:_row_norm nn/normalization/table_norm.py:_launch nn/pooling/pooling2d.py:_launches
        plugins/amx/dots.py:product plugins/int8/interleaved_code.py:depthwise_columns
        plugins/winograd/program.py:program
    """,
    "the sizes of one axis, which go on together": "jax/geometry.py:_axis",
}
ALLOWED = {name for names in REASONS.values() for name in names.split()}


def long_signatures() -> set[str]:
    """``folder/file.py:function`` of every function of the product with more than ``MOST`` parameters."""
    found = set()
    for file in [*(ROOT / "convdispatch").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len(names) - (names[:1] in (["self"], ["cls"]))
                if count > MOST:
                    found.add(f"{file.relative_to(ROOT).as_posix().removeprefix('convdispatch/')}:{node.name}")
    return found


def test_functions_take_few_parameters():
    found = long_signatures()
    assert not found - ALLOWED, "a dataclass with a name, or two functions; or a reason, above"
    assert not ALLOWED - found, "these take few parameters now: take them off the list"
