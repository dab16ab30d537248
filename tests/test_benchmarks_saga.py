"""`benchmarks.saga` on small graphs: products per node, and narrower rows that travel."""

import pytest

from benchmarks import saga


def test_products_run_once_per_node() -> None:
    edges, degree, width = 4096, 16, 32
    rows = {row["form"]: row for row in saga.measure("G-GCN", degree, edges, width, 4, 1)}
    nodes = edges // degree
    assert (
        rows["all edges"]["rows_multiplied"] == rows["as written"]["rows_multiplied"] == 2 * edges
    )
    assert rows["rewritten"]["rows_multiplied"] == 2 * nodes
    assert rows["rewritten"]["temporary_MB"] < rows["all edges"]["temporary_MB"]


@pytest.mark.slow
def test_a_network_has_one_product_per_edge() -> None:
    rows = {row["form"]: row for row in saga.measure("interaction network", 16, 4096, 32, 4, 1)}
    assert rows["all edges"]["rows_multiplied"] == 2 * 4096
    # The second map, and that of the edge's features; those of the ends run once per node.
    assert rows["rewritten"]["rows_multiplied"] == 2 * 4096 + 2 * 256


def test_narrow_messages_travel() -> None:
    rows = {row["form"]: row["MB"] for row in saga.traffic(4, 2048, 8, 64, 8)}
    # 8 columns instead of 64; the backward sends the gradients of 8.
    assert 3 * rows["rewritten"] < rows["as written"]
