"""Files of problems in every dialect, and errors that name file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from convdispatch.api.errors import InvalidProblem
from convdispatch.api.problem import ConvProblem
from convdispatch.measurement.grammar import read_file

P = ConvProblem.parse
RESNET = P("mb1ic3ih224iw224oc64kh7kw7sh2sw2ph3pw3")


def lines(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_benchdnn_batch_file(tmp_path):
    lines(tmp_path / "shapes", '# vgg\n\nmb1ic3ih8oc4kh3ph1n"c1*3"   # thrice\nmb1ic4ih8oc4kh3dh1\n')
    text = "--dt=f16,bf16\n--batch=shapes\n--reset\n--dir=BWD_D\nmb9ic1ih9oc1oh7kh3\nmb1ic1ih9oc1kh3\n"
    entries = list(read_file(lines(tmp_path / "harness", text)))
    dilated = "mb1ic4ih8oc4kh3dh2"
    assert [(e.name, str(e.problem), e.count) for e in entries] == [
        ("c1", str(P("f16_mb1ic3ih8oc4kh3ph1")), 3),
        ("c1", str(P("bf16_mb1ic3ih8oc4kh3ph1")), 3),
        ("mb1ic4ih8oc4kh3dh1", str(P("f16_" + dilated)), 1),
        ("mb1ic4ih8oc4kh3dh1", str(P("bf16_" + dilated)), 1),
        ("mb9ic1ih9oc1oh7kh3", str(P("bwd_data_mb9ic1ih9oc1kh3")), 1),
        ("mb1ic1ih9oc1kh3", str(P("bwd_data_mb1ic1ih9oc1kh3")), 1),
    ]


def test_a_file_may_mix_dialects(tmp_path):
    text = """\
// three ways to say it
MIOpenDriver conv -n 1 -c 3 -H 224 -W 224 -k 64 -y 7 -x 7 -p 3 -q 3 -u 2 -v 2 -F 1   # MIOpen
std::make_tuple(224, 224, 3, 1, 64, 7, 7, 3, 3, 2, 2),
mb1ic3ih224oc64kh7sh2ph3  stem *2
"""
    entries = list(read_file(lines(tmp_path / "mixed.txt", text)))
    assert [entry.problem for entry in entries] == [RESNET] * 3
    assert (entries[2].name, entries[2].count) == ("stem", 2)


def test_a_trace_replays(tmp_path):
    text = "convdispatch,1,fwd_f32_mb1ic3ih8iw8oc4kh3kw3,im2col.gemm,CPU,0,1.5\n" * 2
    assert [e.problem for e in read_file(lines(tmp_path / "trace", text))] == [P("mb1ic3ih8oc4kh3")] * 2


@pytest.mark.parametrize(
    "line",
    [
        "mb{}ic3ih8oc4kh3  n{}",
        'mb{}ic3ih8oc4oh6kh3n"n{}"',
        "MIOpenDriver conv -n {} -c 3",
        "({}, 8, 3, {}, 4, 3, 3, 0, 0, 1, 1)",
    ],
)
def test_a_file_of_each_dialect(tmp_path, line):
    path = lines(tmp_path / "list", "\n".join(line.format(mb, mb) for mb in range(3, 7)))
    assert [entry.problem.mb for entry in read_file(path)] == [3, 4, 5, 6]


def test_errors_name_file_and_line(tmp_path):
    path = lines(tmp_path / "list.txt", "mb1ic3ih8oc4kh3\n\n# fine\nmb1ic3ih8oc4kh9\n")
    with pytest.raises(InvalidProblem, match=r"list\.txt:4: the kernel must fit"):
        list(read_file(path))
    lines(tmp_path / "outer", "--dir=FWD_D\n--batch=inner\n")
    lines(tmp_path / "inner", "ic3ih8oc4kh\n")
    with pytest.raises(InvalidProblem, match=r"outer:2: .*inner:1: "):
        list(read_file(tmp_path / "outer"))
    lines(tmp_path / "self", "--batch=self\n")
    with pytest.raises(InvalidProblem, match="includes itself"):
        list(read_file(tmp_path / "self"))
    with pytest.raises(InvalidProblem, match="cannot read"):
        list(read_file(tmp_path / "missing"))


def test_the_shape_tables_are_read():
    from convdispatch.measurement import shapes

    for name in shapes.names():
        path = Path(shapes.__file__).with_name(name + ".txt")
        assert tuple(read_file(path)) == shapes.load(name)
