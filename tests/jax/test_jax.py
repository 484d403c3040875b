"""lax.conv_general_dilated here: float64's and XLA's numbers in every direction, under jax's transformations."""

import functools
import itertools

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed (extra: jax)")
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from paths import ROOT  # noqa: E402
from threads import together  # noqa: E402

import convdispatch.jax as cj  # noqa: E402
from convdispatch import policy  # noqa: E402
from convdispatch.api import InvalidArgument, InvalidPolicy  # noqa: E402
from convdispatch.calls.framework.fallback import Fallback, cpu_device  # noqa: E402
from convdispatch.jax import calls, ffi, primitive  # noqa: E402

try:
    cpu_device(pointers=True)
except Fallback as reason:
    pytest.skip(f"nothing runs here: {reason}", allow_module_level=True)

NCHW, NHWC = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")


@pytest.fixture(autouse=True)
def counted():
    cj.reset_counters()
    yield
    cj.disable()


def normal(*shape, seed=0, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)


def exact(lhs, rhs, strides, pads, lhs_dilation, rhs_dilation, numbers, groups=1, batches=1):
    """The definition in float64, over arrays dilated and padded (or cut) in full."""
    specs = lax.conv_dimension_numbers(lhs.shape, rhs.shape, numbers)
    x = np.asarray(lhs, np.float64).transpose(specs.lhs_spec)
    w = np.asarray(rhs, np.float64).transpose(specs.rhs_spec)
    space = [(low, high, step - 1) for (low, high), step in zip(pads, lhs_dilation, strict=True)]
    x = np.asarray(lax.pad(jnp.asarray(x, jnp.float32), 0.0, [(0, 0, 0)] * 2 + space), np.float64)
    reach = [step * (size - 1) for step, size in zip(rhs_dilation, w.shape[2:], strict=True)]
    out = [(size - far - 1) // step + 1 for size, far, step in zip(x.shape[2:], reach, strides, strict=True)]
    parts = groups * batches
    n, o = x.shape[0] // batches, w.shape[0] // parts
    y = np.zeros((n, w.shape[0], *out))
    for part in range(parts):
        mine = x[part * n : (part + 1) * n] if batches > 1 else x[:, part * w.shape[1] : (part + 1) * w.shape[1]]
        for place in itertools.product(*map(range, w.shape[2:])):
            seen = tuple(
                slice(at * d, at * d + (size - 1) * s + 1, s)
                for at, d, size, s in zip(place, rhs_dilation, out, strides, strict=True)
            )
            taps = w[(slice(part * o, (part + 1) * o), slice(None), *place)]
            y[:, part * o : (part + 1) * o] += np.einsum(
                "nc...,oc->no...", mine[(slice(None), slice(None), *seen)], taps
            )
    return y.transpose(np.argsort(specs.out_spec))


def close(got, wanted, bound=1e-5):
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape
    assert np.linalg.norm(got - wanted) <= bound * max(np.linalg.norm(wanted), 1e-30)


def shapes(numbers, groups, batches, sizes, kernel, n=2, c=4, o=6):
    letters = dict(zip("HWD", sizes, strict=False)), dict(zip("HWD", kernel, strict=False))
    lhs = letters[0] | {"N": n * batches, "C": c * groups}
    rhs = letters[1] | {"O": o * groups * batches, "I": c}
    return [lhs[each] for each in numbers[0]], [rhs[each] for each in numbers[1]]


# numbers, sizes, kernel, strides, pads, lhs_dilation, rhs_dilation, groups, batches
TABLE = {
    "plain": (NCHW, (7, 6), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1, 1),
    "last": (NHWC, (7, 6), (3, 2), (1, 1), ((1, 1), (0, 1)), (1, 1), (1, 1), 1, 1),
    "strides": (NHWC, (8, 7), (3, 3), (2, 3), ((0, 1), (1, 0)), (1, 1), (1, 1), 1, 1),
    "what a stride leaves over": (NCHW, (9, 8), (2, 3), (3, 2), ((0, 0), (0, 0)), (1, 1), (1, 1), 1, 1),
    "dilation": (NCHW, (9, 9), (3, 2), (1, 2), ((2, 0), (1, 3)), (1, 1), (2, 3), 1, 1),
    "negative pads": (NHWC, (9, 9), (3, 3), (1, 2), ((-1, 2), (1, -2)), (1, 1), (1, 1), 1, 1),
    "groups": (NHWC, (6, 7), (3, 3), (2, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 3, 1),
    "depthwise": (("NHWC", "HWIO", "NHWC"), (6, 7), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 8, 1),
    "groups of the batch": (NCHW, (7, 6), (3, 3), (1, 2), ((1, 1), (0, 1)), (1, 1), (1, 1), 1, 2),
    "transposed": (NCHW, (4, 5), (3, 3), (1, 1), ((1, 1), (2, 2)), (2, 2), (1, 1), 1, 1),
    "transposed, padded out": (NHWC, (4, 5), (4, 3), (1, 1), ((2, 3), (1, 2)), (3, 2), (1, 1), 1, 1),
    "transposed groups": (NHWC, (4, 5), (3, 3), (1, 1), ((1, 2), (2, 2)), (2, 3), (1, 2), 2, 1),
    "1x1": (NHWC, (5, 4), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1, 1),
    "1x1 first": (NCHW, (5, 4), (1, 1), (2, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1, 1),
    "odd orders": (("CWNH", "IHOW", "HCNW"), (6, 5), (3, 2), (1, 2), ((1, 0), (1, 1)), (1, 1), (1, 1), 1, 1),
    "one axis": (("NHC", "HIO", "NHC"), (11,), (4,), (2,), ((1, 2),), (1,), (2,), 1, 1),
    "three axes": (("NHWDC", "HWDIO", "NHWDC"), (4, 5, 3), (3, 2, 3), (1, 2, 1), ((1, 1), (0, 1), (1, 1)), (1, 1, 1),
                   (1, 1, 1), 1, 1),
}  # fmt: skip


LEFT = {
    "negative pads": "a transposed convolution that reaches beyond its kernel",  # the data gradient
    "transposed groups": "groups in the weights' gradient of a transposed convolution",
}


@pytest.mark.parametrize("name", TABLE)
def test_values_and_gradients(name):
    numbers, sizes, kernel, strides, pads, left, right, groups, batches = TABLE[name]
    lhs, rhs = shapes(numbers, groups, batches, sizes, kernel, c=1 if name == "depthwise" else 4)
    x, w = normal(*lhs), normal(*rhs, seed=1)
    options = {"dimension_numbers": numbers, "feature_group_count": groups, "batch_group_count": batches}

    def ours(x, w):
        return cj.conv_general_dilated(x, w, strides, pads, left, right, **options)

    def theirs(x, w):  # XLA is wrong about negative pads on CPUs: they are cut off before
        cut = dict(zip(space, pads, strict=True))
        x = lax.pad(x, 0.0, [(*(min(0, p) for p in cut.get(axis, (0, 0))), 0) for axis in range(x.ndim)])
        return lax.conv_general_dilated(
            x, w, strides, [[max(0, p) for p in pair] for pair in pads], left, right, **options
        )

    space = lax.conv_dimension_numbers(x.shape, w.shape, numbers).lhs_spec[2:]
    y = jax.jit(ours)(x, w)
    close(y, exact(x, w, strides, pads, left, right, numbers, groups, batches))
    dy = normal(*y.shape, seed=2)
    for got, wanted in zip(
        *(jax.jit(lambda x, w, f=f: jax.vjp(f, x, w)[1](dy))(x, w) for f in (ours, theirs)), strict=True
    ):
        close(got, wanted)
    reasons = list(cj.counters()["reasons"])
    assert len(reasons) == (name in LEFT), reasons
    assert all(reason.startswith(LEFT[name]) for reason in reasons)
    assert cj.counters()["ours"] == 3 - len(reasons)


@pytest.mark.parametrize("numbers", [NCHW, NHWC])
def test_gradients_are_gradients_and_nothing_is_turned_that_lies_right(numbers):
    """Weights' gradients run as such, reversed weights are not reversed, and XLA copies no picture."""
    x, w = normal(*shapes(numbers, 1, 1, (8, 8), (3, 3))[0]), normal(*shapes(numbers, 1, 1, (8, 8), (3, 3))[1])

    def loss(x, w):
        return cj.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=numbers).sum()

    text = jax.jit(jax.grad(loss, (0, 1))).lower(x, w).compile().as_text()
    assert text.count(f'custom_call_target="{calls.TARGET}"') == 2
    assert "bwd_data" in text
    assert "bwd_weights" in text
    assert " reverse(" not in text
    if numbers is NCHW:
        assert " transpose(" not in text
        assert " copy(" not in text


def test_transformations():
    x, w = normal(3, 2, 8, 8, 4), normal(3, 3, 3, 4, 5, seed=1)
    options = {"window_strides": (1, 2), "padding": "SAME", "dimension_numbers": NHWC}

    def both(case):
        return [case(functools.partial(f, **options)) for f in (cj.conv_general_dilated, lax.conv_general_dilated)]

    def loss(f):
        return lambda x, w: jnp.square(f(x, w)).sum()

    cases = {
        "vmap both": lambda f: jax.vmap(f)(x, w),
        "vmap left": lambda f: jax.vmap(f, (0, None))(x, w[0]),
        "vmap right": lambda f: jax.vmap(f, (None, 0), 1)(x[0], w),
        "gradients of examples": lambda f: jax.vmap(jax.grad(loss(f), (0, 1)), (0, None))(x, w[0]),
        "jvp": lambda f: jax.jvp(f, (x[0], w[0]), (x[1], w[1])),
        "gradient of a gradient": lambda f: jax.grad(lambda w: jnp.square(jax.grad(loss(f))(x[0], w)).sum())(w[0]),
        "forward over reverse": lambda f: jax.jvp(jax.grad(loss(f), 1), (x[0], w[0]), (x[1], w[1])),
        "checkpoint": lambda f: jax.grad(loss(jax.checkpoint(f)), (0, 1))(x[0], w[0]),
        "scan": lambda f: lax.scan(lambda c, w: (c + 1, f(x[0], w)), 0, w),
        "pmap": lambda f: jax.pmap(f)(x[:1], w[:1]),
        "map": lambda f: lax.map(lambda both: f(*both), (x, w)),
    }  # fmt: skip
    for name, case in cases.items():
        got, wanted = both(case)
        for mine, their in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            close(mine, their, 2e-5)
        assert cj.counters()["left"] == 0, (name, cj.counters()["reasons"])


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 1e-2), ("float16", 2e-3)])
def test_halves(dtype, bound):
    x, w = normal(2, 4, 7, 7, dtype=dtype), normal(8, 4, 3, 3, seed=1, dtype=dtype)
    got = cj.conv_general_dilated(x, w, (1, 1), "SAME")
    assert got.dtype == dtype
    wanted = exact(x, w, (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), NCHW)
    close(got, wanted, bound)
    wide = cj.conv_general_dilated(x, w, (1, 1), "SAME", preferred_element_type="float32")
    assert wide.dtype == "float32"
    close(wide, wanted)
    assert cj.counters()["ours"] == 2


def test_float64():
    with jax.enable_x64(True):
        x, w = (jnp.asarray(np.random.default_rng(0).standard_normal(s)) for s in ((1, 3, 5, 5), (2, 3, 3, 3)))
        assert x.dtype == "float64"
        close(cj.conv_general_dilated(x, w, (1, 1), "VALID"), lax.conv_general_dilated(x, w, (1, 1), "VALID"), 1e-13)
        assert cj.counters()["ours"] == 1


@pytest.mark.parametrize(
    ("dtype", "more", "reason"),
    [
        ("int32", {}, "float32, float64, float16, bfloat16 only, got int32"),
        ("complex64", {}, "float32, float64, float16, bfloat16 only, got complex64"),
        ("float32", {"lhs_dilation": (2, 1), "window_strides": (1, 2)}, "no steps of a dilated left side only"),
        ("float32", {"lhs_dilation": (2, 2), "padding": ((4, 1), (1, 1))}, "beyond its kernel"),
    ],
)  # fmt: skip
def test_what_is_left_is_right_and_has_a_reason(dtype, more, reason):
    x, w = (jnp.asarray(3 * normal(*s), dtype) for s in ((1, 2, 6, 6), (2, 2, 3, 3)))
    options = {"window_strides": (1, 1), "padding": ((1, 1), (1, 1))} | more
    got, wanted = (f(x, w, **options) for f in (cj.conv_general_dilated, lax.conv_general_dilated))
    np.testing.assert_array_equal(got, wanted)
    (found,) = cj.counters()["reasons"]
    assert reason in found
    assert cj.counters()["ours"] == 0


@pytest.mark.parametrize(("precision", "math"), [(None, None), ("high", None), ("highest", "ieee")])
def test_precision_decides_the_mathematics(precision, math):
    x, w = normal(1, 3, 6, 6), normal(4, 3, 3, 3)
    net = jax.make_jaxpr(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", precision=precision))(x, w)
    (layer,) = net.eqns
    avals = [variable.aval for variable in (*layer.invars, *layer.outvars)]
    assert primitive.planned("cpu", *avals, None, layer.params).problem.math == (math or "float32")


def test_errors_are_jaxs():
    with pytest.raises(ValueError, match="lhs feature dimension size divided by feature_group_count must equal"):
        cj.conv_general_dilated(normal(1, 3, 5, 5), normal(2, 4, 3, 3), (1, 1), "SAME")


def test_enable_routes_jaxs_own_and_disable_gives_it_back():
    x, w = normal(1, 3, 6, 6), normal(4, 3, 3, 3, seed=1)
    before = jax.jit(lambda x, w: lax.conv(x, w, (1, 1), "SAME"))
    wanted = before(x, w)
    assert cj.counters()["ours"] == 0
    with cj.enable():
        close(before(x, w), wanted)
        close(lax.conv(x, w, (1, 1), "SAME"), wanted)
        assert cj.counters()["ours"] == 2
        with cj.enable(math="ieee"):
            before(x, w)
        close(before(x, w), wanted)
        assert cj.counters()["ours"] == 4
    before(x, w)
    assert cj.counters()["ours"] == 4
    with pytest.raises(InvalidArgument, match="math must be None or one of float32"):
        cj.enable(math="double")


def differing(compute, whole):
    """Images of which ``compute`` gives other bits alone, or in a smaller batch, than in the whole one."""
    expected, wrong = np.asarray(compute(whole)), 0
    for images, start in ((1, 8), (3, 2)):
        part = np.asarray(compute(whole[start : start + images]))
        wrong += sum(part[i].tobytes() != expected[start + i].tobytes() for i in range(images))
    return wrong


def test_batch_invariance_of_results_and_gradients():
    """``enable`` asks for it; without it one image and many are different solvers here."""
    x, w = normal(300, 1600, 1, 1), normal(32, 1600, 1, 1, seed=1)

    def result(x):
        return jax.jit(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "VALID"))(x, w)

    def gradient(x):
        return jax.jit(jax.grad(lambda x, w: jnp.square(lax.conv_general_dilated(x, w, (1, 1), "VALID")).sum()))(x, w)

    with cj.enable():
        assert differing(result, x)
    with cj.enable(batch_invariant=True):
        assert differing(result, x) == 0
        assert differing(gradient, x) == 0
    assert not cj.counters()["left"]


def test_a_program_keeps_the_policy_under_which_it_was_compiled():
    """In the thread that calls it there may be another, and another program of the same problem has its own."""
    x, w = normal(300, 1600, 1, 1), normal(32, 1600, 1, 1, seed=1)
    programs = [jax.jit(lambda x, w: cj.conv_general_dilated(x, w, (1, 1), "VALID")) for _ in range(3)]
    ours, theirs, pinned = (functools.partial(program, w=w) for program in programs)
    for part in (x, x[8:9], x[2:5]):
        theirs(part)
        with policy(batch_invariant=True):
            ours(part)
        with policy(solver="im2col"):
            pinned(part)
    assert differing(theirs, x)
    assert differing(ours, x) == 0
    cj.reset_counters()
    pinned(x).block_until_ready()
    assert cj.counters()["solvers"] == {"im2col": 1}


def test_a_nan_stays_where_it_is_read():
    """Winograd, which would be chosen, spreads it over a tile."""
    x, w = normal(2, 64, 28, 28).at[1, 5, 10, 20].set(jnp.nan), normal(64, 64, 3, 3, seed=1)

    def reached():
        y = np.asarray(lax.conv_general_dilated(x, w, (1, 1), "SAME"))
        return {tuple(map(int, place)) for place in np.argwhere(np.isnan(y).any(1))}

    read = {(1, row, column) for row in (9, 10, 11) for column in (19, 20, 21)}
    with cj.enable():
        assert reached() > read
    with cj.enable(strict_nan=True):
        assert reached() == read
    for name in ("batch_invariant", "strict_nan"):
        with pytest.raises(InvalidPolicy, match=name):
            cj.enable(**{name: "yes"})


def test_threads():
    x, w = normal(2, 8, 16, 16), normal(8, 8, 3, 3, seed=1)
    run = jax.jit(lambda x: jax.grad(lambda w: jnp.square(cj.conv_general_dilated(x, w, (1, 1), "SAME")).sum())(w))
    wanted = np.asarray(run(x))

    def work(_):
        for _ in range(5):
            assert np.array_equal(run(x), wanted)

    together(work, 4)


def test_an_error_in_a_call_is_told(monkeypatch):
    run = jax.jit(lambda x, w: cj.conv_general_dilated(x, w, (1, 1), "SAME"))
    x, w = normal(1, 3, 9, 9), normal(2, 3, 3, 3)
    run(x, w)

    def fail(*_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(calls, "call_for", fail)
    with pytest.raises(Exception, match="convdispatch: RuntimeError: no such thing"):
        jax.block_until_ready(run(x, w))


def test_what_xla_refuses_a_handler_is_told(monkeypatch):
    """A CPU has no stream: the error that XLA makes is read and given back."""
    run = jax.jit(lambda x, w: cj.conv_general_dilated(x, w, (1, 1), "SAME"))
    x, w = normal(1, 3, 9, 9), normal(2, 3, 3, 3)
    run(x, w)
    asked = ffi.Frame.__init__
    monkeypatch.setattr(ffi.Frame, "__init__", lambda self, frame: asked(self, frame) or self.stream)
    with pytest.raises(Exception, match=r"convdispatch: MemoryError: XLA refused stream_get: .*GPU"):
        jax.block_until_ready(run(x, w))


def test_a_program_that_was_exported_runs():
    from jax import export

    x, w = normal(1, 3, 6, 6), normal(4, 3, 3, 3, seed=1)
    page = (ROOT / "docs" / "use" / "jax.md").read_text()
    assert f'DisabledSafetyCheck.custom_call("{calls.TARGET}")' in page
    allowed = [export.DisabledSafetyCheck.custom_call(calls.TARGET)]
    made = export.export(jax.jit(lambda x, w: cj.conv_general_dilated(x, w, (1, 1), "SAME")), disabled_checks=allowed)(
        x, w
    )
    again = export.deserialize(made.serialize())
    calls._calls.drop()  # as in another process: the problem is known by the program alone
    close(again.call(x, w), lax.conv_general_dilated(x, w, (1, 1), "SAME"))
    assert cj.counters()["ours"] == 1
