"""Every entry of the table of activations: what it computes in each language, its gradients, and who else has it."""

from __future__ import annotations

import numpy as np
import pytest

import convdispatch as cd
from convdispatch import runtime
from convdispatch.api.activations import (
    ACTIVATIONS,
    activation_macro,
    apply_activation,
    formula_of,
    gradient_of_input,
    gradient_of_result,
    onednn_eltwise,
)
from convdispatch.elementwise import apply
from convdispatch.measurement.grammar.benchdnn import read_line
from convdispatch.tensor import Tensor

OTHERS = {
    "clip": "clip(-0.5, 1.5)",
    "leaky_relu": "leaky_relu(-0.25)",
    "elu": "elu(0.5)",
    "hardsigmoid": "hardsigmoid(0.3, 0.4)",
}
"""Other numbers than the defaults; every entry with numbers is here."""
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, about exp and NaN
TEXTS = [*ACTIVATIONS, *OTHERS.values()]
AWAY = np.float64([-90, -25, -7, -2.9, -1.3, -0.4, 0.3, 0.9, 1.7, 2.8, 5.5, 7, 25, 90])
"""No corner of any lies here."""
WHOLE = np.float64([-40, -6, -1, 0, 1, 2, 6, 40, np.nan])


def close(got, wanted, limit=1e-5):
    np.testing.assert_allclose(got, wanted, rtol=limit, atol=limit / 10)


@pytest.fixture(scope="module")
def given():
    return Tensor.from_numpy(np.float32([*AWAY, *WHOLE]), runtime.queue())


@pytest.fixture(scope="module")
def kernels():
    """``kernels(text)(values)``: what a kernel makes of floats, and of them as vectors of four."""
    import pyopencl as cl

    queue = runtime.queue()
    text = "\n".join(
        f"#undef ACTIVATION\n{activation_macro(each)}"
        f"kernel void k{place}(global float *p) {{ p += 5 * get_global_id(0); const float4 v = vload4(0, p);\n"
        "vstore4(ACTIVATION(float4, v), 0, p); p[4] = ACTIVATION(float, p[4]); }\n"
        for place, each in enumerate(TEXTS)
    )
    program = cl.Program(queue.context, text).build()

    def run(text, values):
        padded = np.zeros(-(-len(values) // 5) * 5, np.float32)
        padded[: len(values)] = values
        buffer = cl.Buffer(queue.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=padded)
        getattr(program, f"k{TEXTS.index(text)}")(queue, (len(padded) // 5,), None, buffer)
        cl.enqueue_copy(queue, padded, buffer)
        return padded[: len(values)]

    return run


def test_every_entry_with_numbers_is_tried_with_others():
    assert {name for name, entry in ACTIVATIONS.items() if entry.parameters} == OTHERS.keys()


@pytest.mark.parametrize("text", TEXTS)
def test_all_languages_compute_the_same(text, kernels, given):
    values = np.float64([*AWAY, *WHOLE])
    wanted = apply_activation(text, values)
    assert np.isnan(wanted[-1])
    close(kernels(text, values), wanted)
    close(apply(formula_of(text), x=given).numpy(), wanted)


@pytest.mark.parametrize("text", TEXTS)
def test_gradients(text):
    step = 1e-5
    slope = (apply_activation(text, AWAY + step) - apply_activation(text, AWAY - step)) / (2 * step)
    queue, dy = runtime.queue(), np.linspace(1, 2, len(AWAY))
    x, y, g = (Tensor.from_numpy(np.float32(v), queue) for v in (AWAY, apply_activation(text, AWAY), dy))
    close(apply(gradient_of_input(text), x=x, dy=g).numpy(), slope * dy, 2e-4)
    formula = gradient_of_result(text)
    if formula is not None:
        close(apply(formula, y=y, dy=g).numpy(), slope * dy, 2e-4)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_ranges(name):
    entry, values = ACTIVATIONS[name], np.arange(-9.0, 10.0)
    whole = apply_activation(name, values)
    assert entry.exact == bool((whole == np.rint(whole)).all())
    large = apply_activation(name, np.float64([-1e3, 1e3, -1e6, 1e6]))
    assert entry.saturates == bool(abs(large).max() <= 1), large


def test_float64_has_its_digits_everywhere():
    """softplus was cut to its argument above 20, where it is 2e-9 more."""
    import pyopencl as cl

    queue = runtime.queue()
    if not queue.device.double_fp_config:
        pytest.skip("the device has no float64")
    values = np.concatenate([np.linspace(-45, 45, 361), [-700.0, 700.0]])
    text = "".join(
        f"#undef ACTIVATION\n{activation_macro(each)}kernel void k{place}(global double *p) "
        "{ const int i = get_global_id(0); p[i] = ACTIVATION(double, p[i]); }\n"
        for place, each in enumerate(TEXTS)
    )
    program = cl.Program(queue.context, text).build()
    for place, each in enumerate(TEXTS):
        got = values.copy()
        buffer = cl.Buffer(queue.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=got)
        getattr(program, f"k{place}")(queue, got.shape, None, buffer)
        cl.enqueue_copy(queue, got, buffer)
        np.testing.assert_allclose(got, apply_activation(each, values), rtol=1e-12, atol=1e-15, err_msg=each)
        formula = apply(formula_of(each), x=Tensor.from_numpy(values, queue)).numpy()
        np.testing.assert_allclose(formula, got, rtol=1e-12, atol=1e-15, err_msg=f"formula of {each}")


@pytest.mark.parametrize("text", TEXTS)
def test_pytorch(text):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    from convdispatch.torch.compile.fused_operator import activate, named_activation, slope_times

    name = text.partition("(")[0]
    theirs = ACTIVATIONS[name].torch
    x = torch.tensor(AWAY, requires_grad=True)
    y = activate(x, text)
    close(y.detach().numpy(), apply_activation(text, AWAY), 1e-7)
    (wanted,) = torch.autograd.grad(y.sum(), x)
    close(slope_times(torch.ones_like(x), text, x=x).detach().numpy(), wanted.numpy(), 1e-7)
    if theirs is None:
        return
    layer = getattr(torch.nn, theirs.module)
    numbers = [*map(float, text[len(name) + 1 : -1].split(","))] if "(" in text and theirs.attributes else []
    made = layer(**dict(zip(theirs.attributes, numbers, strict=True))) if numbers else layer()
    shown = (*theirs.attributes, *theirs.only)
    words = named_activation(name, {key: getattr(made, key) for key in shown if hasattr(made, key)})
    close(made(x).detach().numpy(), apply_activation(words, AWAY), 1e-7)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_onnx(name):
    onnx = pytest.importorskip("onnx")
    from convdispatch.onnx import load

    theirs = ACTIVATIONS[name].onnx
    if theirs is None or theirs.attributes is None:  # the operator's own function has tests of its own
        return
    numbers = [0.3 + place / 8 for place, _ in enumerate(theirs.attributes)]
    node = onnx.helper.make_node(theirs.operator, ["x"], ["y"], **dict(zip(theirs.attributes, numbers, strict=True)))
    shape = [1, 1, 1, len(AWAY)]
    ends = [onnx.helper.make_tensor_value_info(each, onnx.TensorProto.FLOAT, shape) for each in "xy"]
    graph = onnx.helper.make_graph([node], name, ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    (y,) = load(model)(np.float32(AWAY).reshape(shape))
    text = f"{name}({','.join(map(str, numbers))})" if numbers else name
    close(np.asarray(y).ravel(), apply_activation(text, AWAY))


@pytest.mark.parametrize("text", TEXTS)
def test_onednn_and_benchdnn_or_a_refusal_in_words(text):
    problem = cd.ConvProblem.parse("mb1ic8ih5oc8kh3").replace(activation=text)
    name, solvers = text.partition("(")[0], cd.explain(problem, runtime.queue().device).verdicts
    forward = next((each for each in solvers if each.solver == "onednn.forward"), None)
    if ACTIVATIONS[name].onednn is None:
        assert forward is None or forward.status == "refused"
        return
    _, word, numbers = onednn_eltwise(text)
    ((entry,), _) = read_line(f"--attr-post-ops={':'.join([word, *map(repr, numbers)])} mb1ic8ih5oc8kh3")
    close(apply_activation(entry.problem.activation, AWAY), apply_activation(text, AWAY))
