from benchmarks.cpu.tasks import Attention, Epoch, SpMM, Triad
from benchmarks.cpu.work import Arrays, Size, Work, arrays, work

SIZE = Size(num_nodes=10, num_edges=50, num_features=8, num_classes=4, num_missing_loops=9)
INDICES = 4 * (50 + 11)


def test_a_sum_reads_a_row_per_edge_or_per_node():
    found = work(SpMM(16), SIZE)
    assert found == Work(INDICES + 4 * 16 * (50 + 10), INDICES + 4 * 16 * (10 + 10), 0)


def test_weights_are_read_once_per_edge():
    plain, weighted = work(SpMM(16), SIZE), work(SpMM(16, weighted=True), SIZE)
    assert plain is not None and weighted is not None
    assert weighted.gathered_bytes - plain.gathered_bytes == 4 * 50
    assert weighted.single_bytes - plain.single_bytes == 4 * 50


def test_attention_reads_values_and_logits_of_senders():
    found = work(Attention(2, 3), SIZE)
    assert found is not None
    assert found.gathered_bytes == INDICES + 4 * (50 * (6 + 2) + 10 * (6 + 2))


def test_a_backward_costs_more_than_a_forward():
    forward, both = work(Attention(2, 3), SIZE), work(Attention(2, 3, backward=True), SIZE)
    assert forward is not None and both is not None
    assert both.gathered_bytes > 2 * forward.gathered_bytes


def test_products_of_a_gcn_epoch():
    found = work(Epoch("gcn"), SIZE)
    assert found is not None
    # The first layer needs no gradient of the features.
    assert found.operations == 2 * 10 * (2 * 8 * 128 + 3 * 128 * 4)


def test_sums_of_a_gcn_epoch_are_over_edges_and_missing_loops():
    found = work(Epoch("gcn"), SIZE)
    indices = 4 * (59 + 11)
    # An epoch sums the 4 columns after the second product, forward and backward; the sums of the
    # features are the same in every epoch.
    assert found is not None
    assert found.gathered_bytes == 2 * (indices + 4 * 4 * (59 + 10))


def test_what_measures_the_machine_has_no_work():
    assert work(Triad(100), SIZE) is None


def test_arrays_of_an_op_are_its_inputs_and_outputs():
    assert arrays(SpMM(16), SIZE) == Arrays(4 * 10 * 16, 4 * 10 * 16)
    assert arrays(Attention(2, 3), SIZE) == Arrays(4 * 10 * (6 + 2 + 2), 4 * 10 * 6)
    both = 4 * 10 * (6 + 2 + 2 + 6)
    assert arrays(Attention(2, 3, backward=True), SIZE) == Arrays(both, both)
    assert arrays(Epoch("gcn"), SIZE) is None
