import pytest

from pallas_kernels.teams import LANES, Launch, team_for, teams_for


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("width", [1, 3, 7, 16, 32, 41, 64, 100, 128, 256, 602, 1024])
def test_a_team_reads_every_number_once(width, itemsize):
    team = team_for(width, itemsize)
    reads = [
        (lane + step * team.lanes) * team.count
        for step in range(team.steps)
        for lane in range(team.lanes)
    ]
    inside = sorted(read for read in reads if read < width)
    assert inside == list(range(0, width, team.count))
    assert team.lanes * team.teams == LANES
    assert team.count * itemsize <= 16
    # Registers: what is read ahead, once more for the sums.
    assert team.ahead == 1 or team.ahead * team.steps * team.count * itemsize <= 128


@pytest.mark.parametrize(
    ("width", "itemsize", "lanes", "count"),
    [(128, 4, 32, 4), (128, 2, 16, 8), (16, 4, 4, 4), (1, 4, 1, 1), (602, 4, 32, 2)],
)
def test_lanes_read_16_bytes_where_the_width_allows(width, itemsize, lanes, count):
    team = team_for(width, itemsize)
    assert (team.lanes, team.count) == (lanes, count)


@pytest.mark.parametrize(
    ("edges", "rows", "width", "itemsize", "passes"),
    [
        (2_654_283, 169_343, 128, 4, [(0, 128, 4)]),
        (115_081_821, 232_965, 128, 4, [(0, 64, 4), (64, 64, 4)]),
        (115_081_821, 232_965, 202, 2, [(0, 128, 2), (128, 74, 2)]),
        (115_081_821, 232_965, 41, 4, [(0, 41, 1)]),
        (10**9, 2_449_029, 256, 4, [(0, 256, 4)]),
    ],
)
def test_each_pass_reads_columns_that_the_cache_holds(edges, rows, width, itemsize, passes):
    teams = teams_for(edges, rows, width, itemsize, Launch())
    assert [(team.first, team.width, team.count) for team in teams] == passes
