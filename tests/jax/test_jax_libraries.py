"""Flax, Equinox and Keras on JAX, unchanged, under enable(): results and gradients as XLA's, convolutions counted."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed (extra: jax)")
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp  # noqa: E402

import convdispatch.jax as cj  # noqa: E402
from convdispatch.calls.framework.fallback import Fallback, cpu_device  # noqa: E402

try:
    cpu_device(pointers=True)
except Fallback as reason:
    pytest.skip(f"nothing runs here: {reason}", allow_module_level=True)


def flax():
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(8, (3, 3))(x))
            return nn.ConvTranspose(4, (2, 2), (2, 2))(nn.Conv(8, (3, 3), feature_group_count=8)(x)).mean((1, 2))

    net, x = Net(), jnp.asarray(np.random.default_rng(0).standard_normal((2, 9, 9, 3)), jnp.float32)
    return net.init(jax.random.key(0), x), lambda weights, x: net.apply(weights, x), x


def nnx():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(3, 8, (3, 3), strides=2, rngs=rngs)
            self.depthwise = nnx.Conv(8, 8, (3, 3), feature_group_count=8, rngs=rngs)
            self.up = nnx.ConvTranspose(8, 4, (3, 3), strides=(2, 2), rngs=rngs)

        def __call__(self, x):
            return self.up(nnx.gelu(self.depthwise(self.conv(x))))

    definition, weights = nnx.split(Net(nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 8, 8, 3)), jnp.float32)
    return weights, lambda weights, x: nnx.merge(definition, weights)(x), x


def equinox():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    one, two, three = jax.random.split(jax.random.key(0), 3)
    strided, up = eqx.nn.Conv2d(8, 4, 3, 2, groups=2, key=two), eqx.nn.ConvTranspose2d(4, 4, 3, 2, key=three)
    net = eqx.nn.Sequential([eqx.nn.Conv2d(3, 8, 3, padding=1, key=one), eqx.nn.Lambda(jax.nn.relu), strided, up])
    weights, rest = eqx.partition(net, eqx.is_array)

    def apply(weights, x):
        return jax.vmap(eqx.combine(weights, rest))(x)

    return weights, apply, jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 9, 9)), jnp.float32)


@pytest.mark.parametrize(("make", "count"), [(flax, 3), (nnx, 3), (equinox, 3)])
def test_a_librarys_layers(make, count):
    weights, apply, x = make()

    def both(weights, x):
        return apply(weights, x), jax.grad(lambda w, x: (apply(w, x) ** 2).sum(), (0, 1))(weights, x)

    wanted = jax.tree.leaves(jax.jit(both)(weights, x))
    cj.reset_counters()
    with cj.enable():
        got = jax.block_until_ready(jax.tree.leaves(jax.jit(lambda *given: both(*given))(weights, x)))
    assert cj.counters()["lowered"] >= 3 * count, cj.counters()
    assert cj.counters()["ours"], cj.counters()
    assert cj.counters()["left"] == 0, cj.counters()
    for one, other in zip(got, wanted, strict=True):
        assert np.linalg.norm(one - other) <= 1e-5 * max(np.linalg.norm(other), 1e-6)


KERAS = """
import json, numpy as np, keras, convdispatch.jax as cj
keras.utils.set_random_seed(0)
L = keras.layers
parts = L.Conv2D(8, 3, activation="relu"), L.DepthwiseConv2D(3), L.Flatten(), L.Dense(2)
net = keras.Sequential([L.Input((9, 9, 3)), *parts])
net.compile(keras.optimizers.SGD(0.01), "mse")
x, y = np.random.randn(4, 9, 9, 3).astype("float32"), np.random.randn(4, 2).astype("float32")
start = net.get_weights()
wanted = net.predict(x, verbose=0), net.fit(x, y, epochs=2, verbose=0).history["loss"]
net.set_weights(start)
again = keras.models.clone_model(net)
again.set_weights(start)
again.compile(keras.optimizers.SGD(0.01), "mse")
with cj.enable():
    got = again.predict(x, verbose=0), again.fit(x, y, epochs=2, verbose=0).history["loss"]
errors = [float(np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(b)) for a, b in zip(got, wanted)]
print(json.dumps([errors, {key: cj.counters()[key] for key in ("ours", "left", "reasons")}]))
"""


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed")
def test_keras_on_jax():
    """In a process of its own: Keras has one backend a process."""
    words = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", KERAS], env={**os.environ, **words}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    errors, counters = json.loads(done.stdout.splitlines()[-1])
    assert max(errors) < 1e-5
    assert counters["ours"] >= 8, counters
    assert counters["left"] == 0, counters
