"""ONNX's nine nets with seeded weights, nets of the catalogue, any files: errors against onnxruntime, times of engines.

``python -m bench onnx_engines [--nets resnet50,vgg19] [--files a.onnx,b.onnx] [--batches 1,8]
[--catalogue resnet50,googlenet,vgg16,alexnet,efficientnet_lite0] [--int8]
[--engines convdispatch,...] [--rounds 5] [--device NAME] [--json FILE]``

Each engine runs in a process of its own, as many threads as there are cores; the processes take turns, and all but one
stand still meanwhile. A time is the median over rounds of the least of some runs; a ratio is of two in one session.
With ``--int8`` onnxruntime's tool quantizes each net, u8 activations and s8 weights by channels; our float32 form is
timed beside it.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.workers import Served

ENGINES = ("convdispatch", "onnxruntime", "openvino")
SAMPLE_S = 0.3
MAX_PROCESS_S = 3600.0


def convdispatch_engine(path: str, feeds: dict, device: str | None):
    import convdispatch.onnx

    net = convdispatch.onnx.load(path, device=device)
    first = list(net(feeds).values())
    tensors, built = [feeds[port.name] for port in net.inputs], net.latest

    def run():
        return built(*tensors)

    return run, first, f"{built.layout}, {built.commands} commands"


def onnxruntime_engine(path: str, feeds: dict, device: str | None):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return (lambda: session.run(None, feeds)), session.run(None, feeds), onnxruntime.__version__


def openvino_engine(path: str, feeds: dict, device: str | None):
    import openvino

    core = openvino.Core()
    options = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(core.read_model(path), "CPU", options)
    request = compiled.create_infer_request()
    first = [np.array(value) for value in request.infer(feeds).values()]
    return (lambda: request.infer(feeds)), first, openvino.__version__


def serve(engine: str, path: str, arrays: str, device: str | None) -> Iterator[dict]:
    """Makes the engine ready, writes what it answers, then runs at each request."""
    with np.load(arrays) as held:
        feeds = {name: held[name] for name in held.files}
    start = time.perf_counter()
    try:
        run, first, note = globals()[f"{engine}_engine"](path, feeds, device)
    except Exception as error:
        yield {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
        return
    ready_s = time.perf_counter() - start
    np.savez(f"{arrays}.{engine}.npz", *first)
    yield {"ready_s": ready_s, "note": note}
    while True:
        samples, until = [], time.perf_counter() + SAMPLE_S
        run()
        while not samples or time.perf_counter() < until:
            begin = time.perf_counter()
            run()
            samples.append(time.perf_counter() - begin)
        yield {"ms": min(samples) * 1e3}


def measure(name: str, path: str, feeds: dict, given) -> dict:
    """One file on one set of arrays by every engine."""
    from onnx_nets import error

    arrays = f"{path}.in.npz"
    np.savez(arrays, **feeds)
    processes = {engine: Served(serve, (engine, path, arrays, given.device), MAX_PROCESS_S) for engine in given.engines}
    row: dict = {"net": name, "busy": os.getloadavg()[0]}
    row |= {engine: process.send(None) for engine, process in processes.items()}
    ready = [engine for engine in given.engines if "failed" not in row[engine]]
    samples: dict[str, list[float]] = {engine: [] for engine in ready}
    for _ in range(given.rounds):
        for engine in ready:
            samples[engine].append(processes[engine].send("sample")["ms"])
    answers = {}
    for engine, process in processes.items():
        process.close()
        if engine in ready:
            row[engine]["ms"] = statistics.median(samples[engine])
            with np.load(f"{arrays}.{engine}.npz") as held:
                answers[engine] = [held[key] for key in held.files]
    if {"convdispatch", "onnxruntime"} <= answers.keys():
        pairs = zip(answers["convdispatch"], answers["onnxruntime"], strict=True)
        row["error"] = max(error(got, wanted) for got, wanted in pairs)
    others = [row[engine]["ms"] for engine in ready if engine != "convdispatch"]
    if others and "convdispatch" in ready:
        row["ratio"] = min(others) / row["convdispatch"]["ms"]
    return row


def show(row: dict, engines) -> None:
    times = "  ".join(
        f"{e} {row[e]['ms']:.2f} ms" if "ms" in row[e] else f"{e} {row[e]['failed'][:60]}" for e in engines
    )
    words = f"{row['net']:24} {times}"
    words += f"  ratio {row['ratio']:.2f}" if "ratio" in row else ""
    words += f"  error {row['error']:.1e}" if "error" in row else ""
    ours = row.get("convdispatch", {})
    print(
        f"{words}  ({ours.get('note', '')}; ready {ours.get('ready_s', math.nan):.1f} s; load {row['busy']:.1f})",
        flush=True,
    )


def exported(name: str, batch: int, path: str) -> dict:
    """Write a net of ``convdispatch.models``, as PyTorch exports it, to ``path``; its input."""
    import torch

    from bench.torch_nets import to_torch
    from convdispatch.models import catalogue

    net = catalogue.create(name)
    net.eval()
    size = getattr(net, "SIZE", 224)
    x = np.random.default_rng(1).standard_normal((batch, 3, size, size), dtype=np.float32)
    module = to_torch(net).eval()
    torch.onnx.export(module, torch.from_numpy(x), path, input_names=["x"], output_names=["y"], dynamo=False)
    return {"x": x}


def quantized(path: str, feeds: dict) -> str:
    """The path of the file's net in 8 bits, calibrated on ``feeds``."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        left = iter([feeds])

        def get_next(self):
            return next(self.left, None)

    prepared, made, kinds = f"{path}.prepared.onnx", f"{path}.int8.onnx", quantization.QuantType
    logging.disable(logging.WARNING)
    quantization.quant_pre_process(path, prepared)
    types = {"activation_type": kinds.QUInt8, "weight_type": kinds.QInt8}
    quantization.quantize_static(prepared, made, Reader(), per_channel=True, **types)
    logging.disable(logging.NOTSET)
    return made


def main() -> None:
    import onnx
    import onnx_nets

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", default=",".join(onnx_nets.NAMES))
    parser.add_argument(
        "--files", default="", help="ONNX files; their inputs are random, open sizes 1, 224 for pictures"
    )
    parser.add_argument("--catalogue", default="", help="nets of convdispatch.models, as PyTorch exports them")
    parser.add_argument("--int8", action="store_true", help="quantize each net first")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.engines = given.engines.split(",")
    rows = []

    def compare(name: str, path: str, feeds: dict) -> None:
        rows.append(measure(name, quantized(path, feeds) if given.int8 else path, feeds, given))
        show(rows[-1], given.engines)
        if given.int8:
            alone = argparse.Namespace(**{**vars(given), "engines": ["convdispatch"]})
            ours = measure(name, path, feeds, alone)["convdispatch"].get("ms", math.nan)
            rows[-1]["float"] = ours / rows[-1]["convdispatch"].get("ms", math.nan)
            print(f"{'':24} our float32 {ours:.2f} ms, {rows[-1]['float']:.2f} times int8's", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for batch in map(int, given.batches.split(",")):
            for name in filter(None, given.nets.split(",")):
                model, input_name, shape = onnx_nets.seeded(name, batch)
                path = f"{folder}/{name}_{batch}.onnx"
                onnx.save(model, path)
                compare(f"{name} {batch}", path, {input_name: onnx_nets.picture(shape)})
            for name in filter(None, given.catalogue.split(",")):
                path = f"{folder}/{name}_{batch}.onnx"
                compare(f"{name} {batch}", path, exported(name, batch, path))
            for path in filter(None, given.files.split(",")):
                from convdispatch.onnx import load
                from convdispatch.tools.problems import input_shapes

                net, random = load(path, device=given.device), np.random.default_rng(0)
                shapes = zip(net.inputs, input_shapes(net, batch))
                feeds = {port.name: random.standard_normal(shape, np.float32) for port, shape in shapes}
                copy = shutil.copy(path, folder)
                compare(f"{Path(path).stem} {batch}", copy, feeds)
    for key, words in (("ratio", "the better of the others over ours"), ("float", "our float32 over our int8")):
        if ratios := [row[key] for row in rows if row.get(key, math.nan) > 0]:
            mean, least = statistics.geometric_mean(ratios), min(ratios)
            print(f"{len(ratios)} runs: {words}, geometric mean {mean:.3f}, least {least:.3f}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
