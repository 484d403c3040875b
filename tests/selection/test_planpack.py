"""Plan packs: what was made travels in a file and is used as it is; what does not fit is said once and made anew; a
file from anywhere is read or refused in a sentence."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pytest
import small_net
from hypothesis import given, seed
from hypothesis import strategies as st
from strategies import FUZZ, answer, mutated

from convdispatch import constant, conv, frozen, inference, load_pack
from convdispatch.api import ConvDispatchWarning, Frozen, InvalidArgument
from convdispatch.device.cache import artifact_store
from convdispatch.device.programs import kernels
from convdispatch.selection import decision_store, dispatch, planpack
from convdispatch.selection.planpack import decisions, reading
from convdispatch.selection.planpack import reading as form

SHAPE = (2, 3, 13, 13)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")
    decisions._reported.clear()
    yield
    artifact_store._in_force.clear()
    forget()


def forget():
    dispatch.forget()
    kernels.forget()


_made = {}


@pytest.fixture
def made(queue, tmp_path_factory):
    """A pack of the small net, the net's answer without it, and what was gathered; one a device."""
    if queue.device not in _made:
        path = tmp_path_factory.mktemp("packs") / "net.cdpack"
        forget()
        with artifact_store.gathering(queue.device, all_weights=True) as gathered:
            net = inference.build(small_net.net(queue), SHAPE, queue=queue)
        planpack.write(path, gathered)
        _made[queue.device] = path, net(small_net.normal(*SHAPE)), gathered
        forget()
    return _made[queue.device]


def bring_up(queue):
    return inference.build(small_net.net(queue), SHAPE, queue=queue)


def test_a_pack_compiles_nothing_and_works_frozen(queue, made, compiled, monkeypatch):
    path, expected, gathered = made
    assert all(gathered.tables[table] for table in artifact_store.TABLES)
    monkeypatch.setattr(decision_store, "choices", lambda *given: pytest.fail("solvers are not ranked"))
    monkeypatch.setattr(kernels, "_template", lambda *given: pytest.fail("nothing is rendered"))
    net = small_net.net(queue)
    packed = []
    real = artifact_store.find
    monkeypatch.setattr(
        artifact_store, "find", lambda table, key, device=None: packed.append(table) or real(table, key, device)
    )
    with load_pack(path) as pack, frozen():
        assert pack.misfits == ()
        built = inference.build(net, SHAPE, queue=queue)
    assert not compiled
    assert set(packed) == set(artifact_store.TABLES)
    assert all(layer.source == f"plan pack {path}" for layer in built.layers if layer.problem)
    np.testing.assert_array_equal(built(small_net.normal(*SHAPE)), expected)


def test_without_the_pack_frozen_refuses(queue, made):
    pack = load_pack(made[0])
    pack.close()
    with frozen(), pytest.raises(Frozen):
        bring_up(queue)


def test_other_weights_are_packed_anew(queue, made):
    with load_pack(made[0]):
        other = inference.build(small_net.net(queue, seed=1), SHAPE, queue=queue)
    forget()
    plain = inference.build(small_net.net(queue, seed=1), SHAPE, queue=queue, layout=other.layout)
    x = small_net.normal(*SHAPE)
    np.testing.assert_allclose(other(x), plain(x), rtol=1e-4, atol=1e-5)
    assert np.abs(other(x) - made[1]).max() > 1e-3


_CHILD = """
import sys
import numpy as np
from convdispatch.api import ConvProblem, frozen
from convdispatch import conv
from convdispatch.device.programs import binary_cache
from convdispatch.device import runtime
queue = runtime.queue()  # tries the devices, with a kernel of its own
binary_cache._from_text = lambda *given: sys.exit("compiled")
shapes = enumerate([(1, 8, 9, 9), (16, 8, 3, 3)])
x, w = (np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in shapes)
np.save(sys.argv[1], conv(x, w, padding=1))
"""


def test_another_process_takes_it_from_the_environment(queue, tmp_path, compiled):
    x, w = (small_net.normal(*shape, seed=i) for i, shape in enumerate([(1, 8, 9, 9), (16, 8, 3, 3)]))
    with artifact_store.gathering(queue.device) as gathered:
        expected = conv(x, w, padding=1, queue=queue)
    assert compiled
    planpack.write(tmp_path / "one.cdpack", gathered)
    environment = {**os.environ, "CONVDISPATCH_PACK": str(tmp_path / "one.cdpack")}
    subprocess.run([sys.executable, "-c", _CHILD, str(tmp_path / "y.npy")], env=environment, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected)


def test_constant_weights_of_a_call(queue, tmp_path, compiled):
    x, w = (small_net.normal(*shape, seed=i) for i, shape in enumerate([(1, 8, 9, 9), (16, 8, 3, 3)]))
    with artifact_store.gathering(queue.device, all_weights=True) as gathered:
        expected = conv(x, constant(w), padding=1, queue=queue)
    planpack.write(tmp_path / "one.cdpack", gathered)
    forget()
    compiled.clear()
    out = np.empty_like(expected)
    with load_pack(tmp_path / "one.cdpack"), frozen():
        conv(x, constant(w), padding=1, out=out, queue=queue)
    assert not compiled
    np.testing.assert_array_equal(out, expected)


# --- what does not fit -----------------------------------------------------------------------------------------------


def changed(path, target, change, member=form.MANIFEST):
    """The pack with one JSON member changed."""
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(target, "w") as out:
        for info in archive.infolist():
            content = archive.read(info)
            if info.filename == member:
                values = json.loads(content)
                change(values)
                content = json.dumps(values).encode()
            out.writestr(info, content)
    return target


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m["device"].update(driver="0.1"), "the driver of .* was 0.1, is "),
        (lambda m: m["device"].update(device="Imaginary 9000"), "it is for Imaginary 9000, the devices here are "),
        (lambda m: m["plugins"].update(dict.fromkeys(m["plugins"], "0.0.1")), "plugin .* was 0.0.1, is "),
        (lambda m: m["plugins"].update(acme="1"), "plugin acme is not here"),
    ],
    ids=["driver", "device", "plugin", "missing plugin"],
)
def test_what_does_not_fit_is_said_once_and_made_anew(queue, made, tmp_path, change, words):
    path = changed(made[0], tmp_path / "other.cdpack", change)
    with pytest.warns(ConvDispatchWarning, match=words) as said:
        pack = load_pack(path)
    assert len(pack.misfits) >= 1
    built = bring_up(queue)
    assert [str(w.message) for w in said if "plan pack" in str(w.message)] == [str(said[0].message)]
    np.testing.assert_allclose(built(small_net.normal(*SHAPE)), made[1], rtol=1e-4, atol=1e-5)


def test_kernels_that_read_otherwise_are_compiled_with_one_warning(queue, made, tmp_path, compiled):
    path = changed(made[0], tmp_path / "other.cdpack", lambda texts: texts.clear(), form.TEXTS)
    path = changed(path, tmp_path / "third.cdpack", lambda m: m["programs"].clear())
    load_pack(path)
    with pytest.warns(ConvDispatchWarning, match="read otherwise than when it was made") as said:
        built = bring_up(queue)
    assert len(said) == 1
    assert compiled
    np.testing.assert_array_equal(built(small_net.normal(*SHAPE)), made[1])


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        ({"solver": "no.such"}, "which no plugin provides"),
        ({"solver": "winograd.f2x7"}, "which refuses: "),
        ({"config": {"tile": "1; evil()"}}, "a configuration .* does not offer"),
    ],
    ids=["solver", "refusal", "configuration"],
)
def test_decisions_choose_among_what_is_offered(queue, made, tmp_path, decision, words):
    def change(manifest):
        for each in manifest["decisions"].values():
            each.update(decision)

    load_pack(changed(made[0], tmp_path / "other.cdpack", change))
    with pytest.warns(ConvDispatchWarning, match=words) as said:
        built = bring_up(queue)
    assert len(said) == 1
    np.testing.assert_allclose(built(small_net.normal(*SHAPE)), made[1], rtol=1e-4, atol=1e-5)


@pytest.fixture
def asked(monkeypatch):
    """Solvers that were asked whether they offer a configuration."""
    found, real = [], decisions.query
    monkeypatch.setattr(decisions, "query", lambda solver, *more: found.append(solver.name) or real(solver, *more))
    yield found
    decisions._sources.cache_clear()


def test_a_sealed_decision_is_taken_without_asking_for_all_configurations(queue, made, asked):
    with load_pack(made[0]):
        bring_up(queue)
    assert not asked


def test_a_broken_seal_asks(queue, made, asked, tmp_path, monkeypatch):
    def another(manifest):
        for each in manifest["decisions"].values():
            each["seal"] = "0" * 64

    with load_pack(changed(made[0], tmp_path / "other.cdpack", another)):
        bring_up(queue)
    assert asked
    asked.clear()
    forget()
    decisions._sources.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(decisions.keys, "stamp", lambda home: f"{home}, written otherwise")
        with load_pack(made[0]):
            bring_up(queue)
    assert asked
    asked.clear()
    forget()
    decisions._sources.cache_clear()
    monkeypatch.setattr(decision_store, "serves", lambda solver, info: False)
    with load_pack(made[0]):
        bring_up(queue)
    assert asked, "as where a library is gone"


def test_damaged_weights_are_packed_anew(queue, made, tmp_path):
    content = bytearray(made[0].read_bytes())
    with zipfile.ZipFile(made[0]) as archive:
        for info in archive.infolist():
            if info.filename.startswith("weights/"):
                content[info.header_offset + 60 + len(info.filename)] ^= 255
    path = tmp_path / "damaged.cdpack"
    path.write_bytes(content)
    with load_pack(path):
        built = bring_up(queue)
    np.testing.assert_array_equal(built(small_net.normal(*SHAPE)), made[1])


# --- files from anywhere ---------------------------------------------------------------------------------------------


EMPTY = {"plan pack": 1} | {name: {} for name in ("device", "plugins", "decisions", "forms", "programs", "weights")}


def packed(**members):
    """An archive of these members, and the two that a pack must have."""
    file = io.BytesIO()
    members = {n.replace("__", "/"): c for n, c in members.items()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in ({form.MANIFEST: json.dumps(EMPTY), form.TEXTS: "{}"} | members).items():
            if content is not None:
                out.writestr(name, content)
    return file.getvalue()


def manifest(**changes):
    return packed(**{form.MANIFEST: json.dumps(EMPTY | changes)})


def twice():
    file = io.BytesIO(packed())
    with warnings.catch_warnings(), zipfile.ZipFile(file, "a") as out:
        warnings.simplefilter("ignore")
        out.writestr(form.TEXTS, "{}")
    return file.getvalue()


def claiming(size):
    """A stored member that claims another size, in the directory at the end."""
    content = bytearray(packed(programs__0=None, **{"programs/0.bin": b"x" * 10}))
    place = content.rfind(b"PK\x01\x02", 0, content.rfind(b"programs/0.bin"))
    content[place + 24 : place + 28] = size.to_bytes(4, "little")
    return bytes(content)


HOSTILE = {
    "empty": (b"", "it is empty"),
    "no archive": (b"x" * 1000, "not a zip file"),
    "truncated": (packed()[:-30], "not a zip file"),
    "no manifest": (packed(**{form.MANIFEST: None}), "it has no manifest.json"),
    "no texts": (packed(**{form.TEXTS: None}), "it has no texts.json"),
    "traversal": (packed(**{"../../evil.py": "boom"}), "a member '../../evil.py'"),
    "absolute": (packed(**{"/etc/passwd": "boom"}), "a member '/etc/passwd'"),
    "pickle": (packed(**{"weights/0.pkl": "boom"}), "a member 'weights/0.pkl'"),
    "twice": (twice(), "two members"),
    "bomb": (packed(**{"programs/0.bin": b"\0" * (8 << 20)}), "claims 8388608 bytes of"),
    "claims much": (claiming(0xFFFFFFF0), "claims 4294967280 bytes of"),
    "other form": (manifest(**{"plan pack": 2}), "of another form"),
    "list": (packed(**{form.MANIFEST: "[]"}), "of another form"),
    "deep": (packed(**{form.MANIFEST: "[" * 4000}), "is not JSON"),
    "layout": (manifest(forms={"a": {"layout": "../x"}}), "a form has a layout"),
    "problem": (manifest(decisions={"fwd_mb0x": {"solver": "im2col", "config": {}}}), "fwd_mb0x"),
    "no solver": (manifest(decisions={"mb1ic1ih1oc1": {"config": {}}}), "names no solver"),
    "config": (manifest(decisions={"mb1ic1ih1oc1": {"solver": "im2col", "config": [1]}}), "is a mapping"),
    "plugins": (manifest(plugins={"a": 1}), "maps words to words"),
    "no member": (manifest(programs={"a": "programs/7.bin"}), "which it does not have"),
    "texts as member": (manifest(weights={"a": "texts.json"}), "not stored as it is"),
    "texts": (packed(**{form.TEXTS: '{"a": 1}'}), "maps keys to texts"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "words"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused_in_a_sentence(tmp_path, content, words):
    path = tmp_path / "hostile.cdpack"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument) as error:
        load_pack(path)
    assert words.lower() in str(error.value).lower()
    assert str(error.value).startswith(f"{path} is no plan pack")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == [path]


def test_no_file(tmp_path):
    with pytest.raises(InvalidArgument, match="no such file"):
        load_pack(tmp_path / "none.cdpack")


@seed(1)
@FUZZ
@given(st.data())
def test_any_change_of_bytes_is_read_or_refused(tmp_path_factory, data):
    whole = packed(**{"programs/0.bin": b"code" * 20})
    content = data.draw(mutated(whole))
    path = tmp_path_factory.mktemp("fuzz") / "any.cdpack"
    path.write_bytes(content)
    found, words = answer(InvalidArgument, lambda: reading.read(path))
    assert found is not None or words.startswith(f"{path} is no plan pack")
    for member in found.weights if found else ():
        found.content(member)
