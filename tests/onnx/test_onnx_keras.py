"""Nets that Keras exports, on its torch backend: pictures with channels last, sizes open; against Keras itself."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from convdispatch.onnx import load

ENVIRONMENT = os.environ | {"KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cpu"}
EXPORT = """
import sys
import keras, numpy as np
from keras import layers as l

def mobile(x):
    x = l.ReLU(6.0)(l.BatchNormalization()(l.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(x)))
    x = l.Activation("swish")(l.DepthwiseConv2D(3, padding="same")(x))
    s = l.Conv2D(8, 1, activation="hard_sigmoid")(l.GlobalAveragePooling2D(keepdims=True)(x))
    x = l.Multiply()([x, s])
    return l.Dense(10, activation="softmax")(l.Dropout(0.2)(l.GlobalAveragePooling2D()(x)))

def residual(x):
    x = l.MaxPooling2D(3, 2, padding="same")(l.Conv2D(8, 7, strides=2, activation="relu")(l.ZeroPadding2D(3)(x)))
    y = l.BatchNormalization()(l.Conv2D(8, 3, padding="same", groups=2)(x))
    x = l.Activation("gelu")(l.Add()([x, y]))
    return l.Dense(5)(l.Flatten()(l.AveragePooling2D(2)(x)))

def unet(x):
    a = l.Conv2D(8, 3, padding="same", activation="elu")(x)
    b = l.LeakyReLU(0.1)(l.GroupNormalization(4)(l.SeparableConv2D(16, 3, padding="same")(l.MaxPooling2D()(a))))
    up = l.Conv2DTranspose(8, 3, strides=2, padding="same")(b)
    x = l.Concatenate()([a, up, l.UpSampling2D(interpolation="bilinear")(b)])
    return l.Conv2D(2, 1, activation="softmax")(l.Cropping2D(1)(x))

def dense(x):
    x = l.Conv2D(4, 3, dilation_rate=2, padding="same")(x)
    for _ in range(3):
        y = l.Conv2D(4, 3, padding="same")(l.ReLU()(l.BatchNormalization()(x)))
        x = l.Concatenate()([x, y])
    x = l.PReLU(shared_axes=[1, 2])(l.UpSampling2D(2)(x))
    return l.Reshape((-1, 4))(l.Permute((2, 1, 3))(x))

for make in (mobile, residual, unet, dense):
    keras.utils.set_random_seed(0)
    given = keras.Input((32, 24, 3))
    net = keras.Model(given, make(given))
    rng = np.random.default_rng(0)
    for weight in net.weights:
        if "moving_variance" in weight.path:
            weight.assign(rng.uniform(0.5, 2, weight.shape))
        elif "moving_mean" in weight.path or weight.path.endswith(("gamma", "beta", "bias", "alpha")):
            weight.assign(rng.standard_normal(weight.shape))
    x = rng.standard_normal((2, 32, 24, 3)).astype("float32")
    y = net(x).detach().numpy()
    net.export(f"{sys.argv[1]}/{make.__name__}.onnx", format="onnx", verbose=False)
    np.savez(f"{sys.argv[1]}/{make.__name__}.npz", x=x, y=y)
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras")
    if not all(importlib.util.find_spec(name) for name in ("keras", "onnxscript")):
        pytest.skip("keras or onnxscript is not installed (extra: peers)")
    made = subprocess.run([sys.executable, "-c", EXPORT, folder], capture_output=True, text=True, env=ENVIRONMENT)
    assert made.returncode == 0, made.stderr[-2000:]
    return folder


@pytest.mark.parametrize("name", ["mobile", pytest.param("residual", marks=pytest.mark.full), "unet", "dense"])
def test_a_net_that_keras_exports(exported, name):
    with np.load(exported / f"{name}.npz") as held:
        x, wanted = held["x"], held["y"]
    assert wanted.std() > 0.01  # something is to be seen
    net = load(exported / f"{name}.onnx")
    np.testing.assert_allclose(net(x), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(net(x[:1]), wanted[:1], rtol=1e-4, atol=1e-5)  # the batch is open
