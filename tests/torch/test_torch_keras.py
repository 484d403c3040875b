"""Keras 3 on its torch backend under enable(): an unchanged model trains and predicts, every convolution is ours."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
ENVIRONMENT = os.environ | {"KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cpu"}

CODE = """
import keras, numpy as np, torch
import convdispatch.torch as ct

def model():
    keras.utils.set_random_seed(0)
    made = keras.Sequential([
        keras.Input((12, 12, 3)),
        keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
        keras.layers.SeparableConv2D(8, 3),
        keras.layers.Conv2DTranspose(4, 2, strides=2),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(3),
    ])
    made.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError())
    return made

x = np.random.default_rng(0).standard_normal((16, 12, 12, 3)).astype("float32")
y = np.random.default_rng(1).standard_normal((16, 3)).astype("float32")

def trained():
    made = model()
    made.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return made.predict(x, verbose=0)

expected = trained()
with ct.enable():
    got = trained()
assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max(), np.abs(got - expected).max()
counted = ct.counters()
# Four convolutions: forward and backward in four steps, forward in one prediction.
assert counted["left"] == 0 and counted["convolution_backward"] == 16 and counted["convolution"] >= 20, counted
"""


def test_an_unchanged_model_trains_and_predicts():
    if importlib.util.find_spec("keras") is None:
        pytest.skip("keras is not installed (extra: peers)")
    finished = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, env=ENVIRONMENT, timeout=300
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
