"""ONNX's own backend cases through ``Backend``: a selection that meets every operator's forms; ``--full`` runs all."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx, whose backend cases these are, is not installed (extra: onnx)")

import onnx_suite  # noqa: E402
from onnx_models import normal, residual  # noqa: E402

from convdispatch.api import ConvDispatchError, InvalidArgument  # noqa: E402
from convdispatch.onnx import Backend  # noqa: E402

_NODES = """
argmax_keepdims_random_select_last_index argmin_negative_axis_keepdims_random and4d
averagepool_2d_ceil_last_window_starts_on_pad averagepool_2d_same_lower averagepool_2d_dilations
averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True batchnorm_epsilon_training_mode
castlike_FLOAT_to_FLOAT16_expanded celu clip_default_int8_min clip_min_greater_than_max concat_3d_axis_negative_2
constant_pad_negative_axes conv_with_autopad_same conv_with_strides_and_asymmetric_padding convtranspose_autopad_same
convtranspose_3d convtranspose_output_shape convtranspose_group_2_image_3 cumsum_2d_axis_0 depthtospace_crd_mode_example
div_int32_trunc dropout_default_mask edge_pad equal_string expand_dim_changed flatten_negative_axis3
gather_elements_negative_indices gather_2d_indices gathernd_example_int32_batch_dim1 gelu_tanh_2 gemm_all_attributes
globalmaxpool group_normalization_example hardswish instancenorm_epsilon layer_normalization_4d_axis_negative_2
lppool_3d_default
lppool_2d_pads lrn matmul_4d matmul_4d_1d max_uint16 maxpool_2d_uint8 maxpool_3d_dilations_use_ref_impl_large
maxpool_with_argmax_2d_precomputed_strides maxpool_with_argmax_2d_precomputed_pads mean_example mish
onehot_with_negative_axis pow_types_int64_float32 prelu_broadcast reduce_l2_negative_axes_keep_dims_random
reduce_max_empty_set reduce_sum_empty_axes_input_noop reflect_pad reshape_zero_and_negative_dim
resize_downsample_scales_cubic_A_n0p5_exclude_outside resize_downsample_sizes_linear_antialias
resize_tf_crop_and_resize_extrapolation_value resize_upsample_sizes_nearest_not_larger
resize_upsample_scales_linear_align_corners slice_neg_steps softmax_negative_axis spacetodepth_dcr_mode_example
split_2d_uneven_split_opset18 squeeze_negative_axes tile top_k_same_values_2d top_k_uint64
transpose_all_permutations_3 triu_neg unsqueeze_unsorted_axes upsample_nearest where_long_example wrap_pad
"""
_CONVERTED = (
    "Conv2d_depthwise_strided ConvTranspose2d BatchNorm3d_eval PixelShuffle GLU ReflectionPad2d MaxPool3d_stride"
)


@pytest.fixture(scope="module")
def cases():
    return onnx_suite.cases()


NAMES = [*(f"node:test_{name}" for name in _NODES.split()),
         *(f"pytorch-converted:test_{name}" for name in _CONVERTED.split())]  # fmt: skip
REFUSED = {"node:test_equal_string": "elements of type STRING"}


@pytest.mark.parametrize("name", NAMES)
def test_case(cases, name):
    if name not in cases:
        pytest.skip("this onnx does not have the case")
    if name in REFUSED:
        with pytest.raises(InvalidArgument, match=REFUSED[name]):
            onnx_suite.run(cases[name], Backend.prepare)
    else:
        onnx_suite.run(cases[name], Backend.prepare)


@pytest.mark.full
def test_every_case_passes_or_is_refused_in_words(cases):
    wrong = {}
    for name, case in cases.items():
        try:
            onnx_suite.run(case, Backend.prepare)
        except ConvDispatchError:
            continue
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"[:300]
    assert not wrong


def test_few_cases_are_missing(cases):
    assert len(set(NAMES) - cases.keys()) <= 5


def test_the_interface(monkeypatch):
    assert Backend.supports_device("CPU")
    assert Backend.is_compatible(residual())
    x = normal(1, 3, 6, 6)
    prepared = Backend.prepare(residual(), "CPU")
    (in_order,), (alone,), (named,) = prepared.run([x]), prepared.run(x), prepared.run({"x": x})
    np.testing.assert_array_equal(in_order, alone)
    np.testing.assert_array_equal(in_order, named)
    assert prepared.run([x])["y"] is not None
    # Made ready anew: another form may be the faster one this time, whose sums are rounded in another order.
    (anew,) = Backend.run_model(residual(), [x])
    assert np.linalg.norm(anew - alone) <= 1e-6 * np.linalg.norm(alone)
    with monkeypatch.context() as patched:
        patched.setattr(Backend, "prepare", lambda *_, **__: prepared)
        np.testing.assert_array_equal(Backend.run_model(residual(), [x])[0], alone)
    (got,) = Backend.run_node(onnx.helper.make_node("Relu", ["x"], ["y"]), [x])
    np.testing.assert_array_equal(got, np.maximum(x, 0))
    assert not Backend.is_compatible(onnx.helper.make_model(onnx.helper.make_graph(
        [onnx.helper.make_node("NonZero", ["x"], ["y"])], "g", [onnx.helper.make_tensor_value_info("x", 1, [2])],
        [onnx.helper.make_tensor_value_info("y", 7, None)])))  # fmt: skip
