"""Edge lists as people write them: each is read as meant, or refused with advice."""

import gzip
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.datasets import AmbiguousFileError, BrokenFileError, ReadReport, read_edge_list

FAULTS = (BrokenFileError, AmbiguousFileError)
Found = tuple[list[tuple[int, int]], list[float] | None, list[Any] | None, int]


def read(folder: Path, content: str | bytes, name: str = "a.txt", **options: Any) -> Found:
    """The edges, weights, names and number of nodes of a file with this content."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    graph = read_edge_list(path, **options)
    pairs = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    weights = None if graph.edge_weight is None else graph.edge_weight.tolist()
    names = None if graph.node_names is None else graph.node_names.tolist()
    return pairs, weights, names, graph.num_nodes


def report_of(folder: Path, content: str, name: str = "a.txt", **options: Any) -> ReadReport:
    """Reads a file with this content and returns the reader's report."""
    reports: list[ReadReport] = []
    read(folder, content, name, on_report=reports.append, **options)
    (report,) = reports
    return report


PATH = [(0, 1), (1, 2), (2, 3)]
LINE = (PATH, None, None, 4)


def named(*names: str, weights: list[float] | None = None) -> Found:
    """A path through nodes of three names."""
    return [(0, 1), (1, 2)], weights, list(names), 3


READ: list[tuple[str | bytes, dict[str, Any], Found]] = [
    # The first line is an edge where it holds numbers.
    (b"\xef\xbb\xbf0,1\n1,2\n2,3\n", {}, LINE),
    ("0,1\n1,2\n2,3\n".encode("utf-16"), {}, LINE),
    ("0.000000000000000000e+00 1.0e+00\n1 2\n2 3\n", {}, LINE),
    ('"0","1"\n"1","2"\n2,3\n', {}, LINE),
    ("\u22120,1\n1,2\n2,3\n", {}, LINE),
    ("\u200b0,1\n1,2\u200b\n2,3\n", {}, LINE),
    ("0, 1\r\n1 ,2\r\n2,3\r\n", {}, LINE),
    ("0 1 \n1\t2\n\n# a comment between edges\n  2 3\n", {}, LINE),
    ("% first\n0|1\n1|2\n2|3", {}, LINE),
    *((f"from{m}to\n0{m}1\n1{m}2\n2{m}3\n", {}, LINE) for m in ",;\t "),
    ("# a comment, with commas\n\n% more\n0;1\n1;2\n2;3\n", {}, LINE),
    # Names decide where there are names.
    (",src,dst\n0,5,7\n1,7,2\n", {}, ([(5, 7), (7, 2)], None, None, 8)),
    ("id,source,target\n9,5,7\n8,7,2\n", {}, ([(5, 7), (7, 2)], None, None, 8)),
    ("weight,source,target\n.5,5,7\n2,7,2\n", {}, ([(5, 7), (7, 2)], [0.5, 2], None, 8)),
    ("sender\treceiver\ttime\n5\t7\t1082040961\n", {}, ([(5, 7)], None, None, 8)),
    (
        "Source,Target,Type,Id,Label,Weight\n5,7,Directed,0,,1.5\n",
        *({}, ([(5, 7)], [1.5], None, 8)),
    ),
    ("this,that\n5,7\n", {}, ([(5, 7)], None, None, 8)),
    (",this,that,weight\n0,5,7,3\n", {}, ([(5, 7)], [3], None, 8)),
    # Options resolve what a file leaves open.
    ("a,b,c\n0,1,2\n", {"columns": ("c", "a")}, ([(2, 0)], None, None, 3)),
    ("4 3\n0 1\n1 2\n2 3\n", {"counts": True}, LINE),
    ("1 2 9\n", {"weights": 2}, ([(1, 2)], [9.0], None, 3)),
    ("1 2 9\n", {"weights": False}, ([(1, 2)], None, None, 3)),
    ("src,dst,n\n1,2,9\n", {"weights": "n"}, ([(1, 2)], [9.0], None, 3)),
    ("1000000000,7\n", {"relabel": True}, ([(1, 0)], None, [7, 10**9], 2)),
    ("1000000000,7\n", {"relabel": False}, ([(10**9, 7)], None, None, 10**9 + 1)),
    ("1000000000,7\n", {"num_nodes": 2 * 10**9}, ([(10**9, 7)], None, None, 2 * 10**9)),
    (
        "9223372036854775807,-7\n",
        {"relabel": True},
        ([(1, 0)], None, [-7, 9223372036854775807], 2),
    ),
    ("a,1\n1,b\n", {"relabel": True}, ([(0, 1), (1, 2)], None, ["a", "1", "b"], 3)),
    ("who,whom\nann,bob\n", {"header": True}, ([(0, 1)], None, ["ann", "bob"], 2)),
    ("0:1\n1:2\n2:3\n", {"separator": ":"}, LINE),
    ("0\t1\n1\t2\n2\t3\n", {"separator": "\\t"}, LINE),
    # Ids that are names are kept in order.
    ("ann,bob\nbob,cid\n", {}, named("ann", "bob", "cid")),
    ("source,target\nann,bob\nbob,cid\n", {}, named("ann", "bob", "cid")),
    ('"Smith, Ann",bob\nbob,"C# § é"\n', {}, named("Smith, Ann", "bob", "C# § é")),
    ("New York\tRome\nRome\tNaN\n", {}, named("New York", "Rome", "NaN")),
    ("ann,bob,0.5\nbob,cid,2.0\n", {}, named("ann", "bob", "cid", weights=[0.5, 2])),
]


@pytest.mark.parametrize(("content", "options", "found"), READ)
def test_a_file_is_read_as_it_is_meant(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], found: Found
) -> None:
    assert read(tmp_path, content, **options) == found


LEFT_OPEN = [
    ("a,b,c\n0,1,2\n", r"'a', 'b', 'c'.*columns=\('a','b'\)"),
    ("src,from,dst\n0,1,2\n", "'src' and 'from' may all hold senders"),
    ("4 3\n0 1\n1 2\n2 3\n", "counts=True .*counts=False"),
    ("4 4 2\n1 2\n3 4\n", "'4 4 2'.*MatrixMarket.*counts=True"),
    ("1 2 1082040961\n2 3 1082040962\n", "third column.*'1082040961'.*--weight-column 2"),
    ("0 1 3\n1 2 4\n", "may be a weight, a time or a type"),
    ("0,1,1,1\n", "4 columns without names"),
    ("0\n1\n", "1 column; expected at least two.*separator="),
    ("1000000000,7\n", "largest id is 1000000000.*--relabel"),
    ("99999999999999999999,7\n", "line 1: the id '99999999999999999999'.*--relabel"),
    ("0,1\n2,x\n", "line 2: the id 'x' is no whole number.*relabel=True"),
    ("0,1\n2.5,1\n", "line 2: the id '2.5' is no whole number"),
    ("a,1\nb,2\n", "line 1: the id '1' is a number, unlike"),
    ("person,friend\nann,bob\nbob,cid\n", "header=True.*header=False"),
]
DAMAGED = [
    ("", "no line of numbers or names"),
    ("from,to\n", "line 1: 'from,to' holds names of columns.*header=False"),
    ("# c\n0,1\n\n2\n", "line 4: has 1 columns, and the first edge 2"),
    ("src,dst,n\n0,1\n", "line 2: has 2 columns, and the header 3"),
    ("0,1\n,2\n", "line 2: has an empty id"),
    ("0,1\n-2,1\n", "line 2: has a negative id"),
    ("# c\n0,1,.5\n1,2,nan\n", "line 3: has a weight that is not finite"),
    ("src,dst,weight\n0,1,0,5\n", "line 2: has 4 columns, and the header 3"),
    ("0;1;0,5\n1;2;0,7\n", "line 1: '0,5' is no number in column 2.*--weight-column none"),
    ("src,dst,weight\n0,1,2\n1,2,\n", "line 3: nothing is in column 2; expected a weight"),
    ("5 9\n0 1 .5\n", "declares 9 edges and 1 follow"),
    (b"0,1\n\xe9,2\n", "not UTF-8; save it as UTF-8"),
    (b"0\0,\x001\n", "line 1: holds a zero byte"),
    ("0,1\n" + "1" * 2**20, "line 2: has over 1,048,576 characters"),
]


@pytest.mark.parametrize(("content", "message"), LEFT_OPEN + DAMAGED)
def test_what_is_open_or_damaged_is_refused(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    kinds = AmbiguousFileError if (content, message) in LEFT_OPEN else FAULTS
    with pytest.raises(kinds, match=rf"a\.txt: .*{message}") as raised:
        read(tmp_path, content)
    assert str(raised.value).count(str(tmp_path)) == 1


@pytest.mark.parametrize(
    ("content", "num_nodes", "weights"),
    [
        ("3\n0 1\n1 2\n2 3\n", 4, None),
        ("6 3\n0 1 .5\n1 2 .5\n2 3 .5\n", 6, [0.5] * 3),
    ],
)
def test_a_line_of_counts_with_fewer_columns_is_recognised(
    tmp_path: Path, content: str, num_nodes: int, weights: list[float] | None
) -> None:
    assert read(tmp_path, content) == (PATH, weights, None, num_nodes)
    counts = tuple(int(count) for count in content.partition("\n")[0].split())
    assert report_of(tmp_path, content).declared_counts == counts


@pytest.mark.parametrize(
    ("content", "ends"),
    [("0,1,\n1,2, \n2,3,\n", (0, 1)), ('src\tdst\t\n0\t1\t""\n1\t2\t\n2\t3\t\n', ("src", "dst"))],
)
def test_an_empty_column_is_ignored_and_reported(
    tmp_path: Path, content: str, ends: tuple[int | str, int | str]
) -> None:
    assert read(tmp_path, content) == (PATH, None, None, 4)
    report = report_of(tmp_path, content)
    assert (report.columns, report.weight_column, len(report.ignored_columns)) == (ends, None, 1)


@pytest.mark.parametrize(
    "content",
    [
        "7 11\n5 3 2\n1 3 4\n5 4 2 1\n2 3 6 7\n1 3 6\n5 4 7\n6 4\n",
        "% c\n3 2 001\n2 5\n1 5 3 1\n2 1\n",
        "4 2 011\n5 2 .5\n5 1 .5\n5 4 .5\n5 3 .5\n",  # would pass for edges with weights
    ],
)
def test_a_graph_of_metis_under_the_name_of_a_text_is_told(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match=r"METIS graph.*name it \.graph, or pass format='METIS'"):
        read(tmp_path, content)


@pytest.mark.parametrize(
    "content", ["0 1\n1\n", "9 3\n1 2\n12\n", "a b\nb c\nc\n", "1 2\n2 3\n3\n"]
)
def test_a_damaged_list_is_not_taken_for_a_graph_of_metis(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match=r"a\.txt") as raised:
        read(tmp_path, content)
    assert "METIS" not in str(raised.value)


def test_a_few_long_names_do_not_make_all_of_them_long(tmp_path: Path) -> None:
    names = "".join(f"a{i} b{i}\n" for i in range(20_000))
    with pytest.raises(BrokenFileError, match="an id has 100,000 characters"):
        read(tmp_path, names + "c" * 100_000 + " d\n", header=False)


def test_the_report_says_what_was_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = "# Nodes: 3 Edges: 2\n% c\nid;src;dst;weight\n7;ann;bob;2\n8;bob;cid;3\n"
    with caplog.at_level(logging.INFO, "jaxgraph.datasets"):
        report = report_of(tmp_path, content)
    assert (report.format, report.separator, report.num_comments) == ("text", ";", 2)
    assert report.header == ("id", "src", "dst", "weight")
    assert (report.columns, report.weight_column) == (("src", "dst"), "weight")
    assert (report.ignored_columns, report.declared_counts) == (("id",), (3, 2))
    assert (report.relabelled, report.num_nodes, report.num_edges) == (True, 3, 2)
    assert str(report) == (
        f"{tmp_path / 'a.txt'}: text; separator semicolon; a header; edges from column 'src' to "
        "'dst'; weights from column 'weight'; ignored columns 'id'; comment lines 2; declared "
        "counts 3 2; ids in node_names; 3 nodes, 2 edges."
    )
    assert str(report) in caplog.text
    plain = report_of(tmp_path, "0 1\n")
    assert (plain.header, plain.columns, plain.separator) == (None, (0, 1), None)


def test_a_comment_that_declares_other_counts_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = report_of(tmp_path, "# Nodes: 4 Edges: 5\n0\t1\n")
    assert report.declared_counts == (4, 5) and report.notes
    assert "declares 5 edges, and there are 1" in caplog.text


@given(
    pairs=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=30),
    separator=st.sampled_from([",", " ", ";", "\t", "|"]),
    weighted=st.booleans(),
    packed=st.booleans(),
    suffix=st.sampled_from([".csv", ".tsv", ".txt", ".edges"]),
)
def test_both_readers_find_the_same_edges(
    tmp_path_factory: pytest.TempPathFactory,
    pairs: list[tuple[int, int]],
    separator: str,
    weighted: bool,
    packed: bool,
    suffix: str,
) -> None:
    rows = [[str(u), str(v)] + [f"{u + v / 64:.6f}"] * weighted for u, v in pairs]
    text = "\n".join(separator.join(row) for row in rows)
    odd = separator.join([f"+{rows[-1][0]}.0", *rows[-1][1:]])
    folder = tmp_path_factory.mktemp("text")
    for last in ("\n", "\n" + odd):
        content = (text + last).encode()
        found = read(
            folder,
            gzip.compress(content) if packed else content,
            f"graph{suffix}.gz" if packed else f"graph{suffix}",
            num_nodes=100,
            counts=False,
            weights=None if weighted else False,
        )
        expected = [*pairs, pairs[-1]] if last != "\n" else pairs
        weights = [u + v / 64 for u, v in expected] if weighted else None
        assert found == (expected, weights, None, 100)
