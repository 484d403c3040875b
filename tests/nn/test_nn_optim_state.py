"""The optimiser's numbers as arrays: taken up by another optimiser, or refused whole."""

import numpy as np
import pytest
from small_net import normal

from convdispatch.api.errors import InvalidArgument
from convdispatch.elementwise import reduce
from convdispatch.nn import Adam, Linear, Tape
from convdispatch.tensor import Tensor


def test_optimizer_states(queue):
    layer = Linear(3, 2, queue=queue)
    optimizer = Adam(layer.parameters(), 0.01)
    with Tape() as tape:
        loss = reduce("sum", "y", y=layer(Tensor.from_numpy(normal(4, 3), queue)))
    tape.backward(loss)
    optimizer.step()
    state = optimizer.state_dict()
    assert state["mean.0"].shape == (2, 3)
    other = Adam(Linear(3, 2, queue=queue).parameters(), 0.5)
    other.load_state_dict(state)
    assert (other.steps, other.lr) == (1, 0.01)
    for name, array in other.state_dict().items():
        np.testing.assert_array_equal(array, state[name])
    with pytest.raises(InvalidArgument, match=r"does not fit: mean\.0"):
        Adam(Linear(4, 2, queue=queue).parameters()).load_state_dict(state)
