"""Any problem there is, for Hypothesis, how two readings of one are compared, and files with bytes changed."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from convdispatch.api.activations import ACTIVATIONS, parse_activation
from convdispatch.api.errors import InvalidProblem
from convdispatch.api.problem import ConvProblem


@st.composite
def problems(draw, plain=False) -> ConvProblem:
    """Any problem there is; with ``plain`` forward, float32, without epilogue."""
    ndim, small = draw(st.integers(1, 3)), st.integers(1, 4)
    g = draw(small)
    values = {"ndim": ndim, "mb": draw(st.integers(0, 5)), "g": g, "ic": g * draw(small), "oc": g * draw(small)}
    for axis in "dhw"[3 - ndim :]:
        values |= {letter + axis: draw(small) for letter in "ksd"}
        values |= {"i" + axis: draw(st.integers(1, 20))}
        values |= {"p" + axis: draw(st.integers(0, 3))}
        values |= {f"p{axis}_r": draw(st.one_of(st.just(values["p" + axis]), st.integers(0, 3)))}
    if not plain:
        values["direction"] = draw(st.sampled_from(["fwd", "fwd", "bwd_data", "bwd_weights"]))
        values["dtype"] = draw(st.sampled_from(["float32", "float32", "float16", "bfloat16", "float64"]))
        values["layout"] = draw(st.sampled_from(["nchw", "nchw", "nhwc"]))
        values["math"] = draw(st.sampled_from(["float32", "float32", "ieee", "tf32", "fast"]))
        if values["direction"] != "bwd_weights":
            values["bias"], values["residual"] = draw(st.booleans()), draw(st.booleans())
            words = ["clip(-1,2.5)", "leaky_relu(0.25)", *ACTIVATIONS]
            values["activation"] = draw(st.one_of(st.none(), st.sampled_from(words)))
        values["accumulate"] = values.get("activation") is None and draw(st.booleans())
        values["norm"] = draw(st.sampled_from([None, None, None, "identity", "relu", "leaky_relu(0.25)"]))
        values["sums"] = draw(st.integers(0, 3)) == 0
        if values["direction"] == "bwd_data" and values["norm"]:
            values |= {"bias": False, "activation": None, "accumulate": False}
        possible = {"fwd": values["mb"] and not values["accumulate"], "bwd_data": values["mb"] and values["norm"]}
        values["sums"] = values["sums"] and bool(possible.get(values["direction"]))
        values["constant_weights"] = draw(st.integers(0, 3)) == 0
    try:
        return ConvProblem(**values)
    except InvalidProblem:
        assume(False)


def same(one: ConvProblem, other: ConvProblem) -> bool:
    """Equal, or equal but for far padding that adds no output, numbers of an activation written out."""

    def reduced(problem):
        far = {f"p{axis}_r": 0 for axis in problem.axes}
        values = {f: getattr(problem, f) for f in problem.__dataclass_fields__} | far
        if problem.activation:
            name, numbers = parse_activation(problem.activation)
            values["activation"] = ("clip", (0.0, 6.0)) if name == "relu6" else (name, numbers)
        return values

    return reduced(one) == reduced(other)


def answer(error, call):
    """What ``call()`` answers, or None and the words of its ``error``."""
    try:
        return call(), ""
    except error as refusal:
        return None, str(refusal)


FUZZ = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
"""A short profile, the same examples each time."""


def mutated(text: bytes) -> st.SearchStrategy[bytes]:
    """``text`` with a few bytes put in, taken out or replaced."""
    change = st.tuples(st.integers(0, len(text)), st.integers(0, 20), st.binary(max_size=6))

    def apply(changes):
        out = text
        for place, removed, added in changes:
            out = out[:place] + added + out[place + removed :]
        return out

    return st.lists(change, min_size=1, max_size=4).map(apply)
