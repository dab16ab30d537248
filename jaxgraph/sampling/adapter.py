import dataclasses
import numpy as np
from jaxgraph.sampling import native
from jaxgraph.sampling.draw import Draws
from jaxgraph.layout.block_tables import block_tables


@dataclasses.dataclass
class Drawn:
    nodes: tuple
    edges: tuple


class One:
    def __init__(self, s):
        self.s = s

    def draw(self, seeds, key):
        d = self.s.draw(seeds, key)
        return Drawn(tuple((x,) for x in d.nodes), tuple((x,) for x in d.edges))

    def write(self, layer, number, sizes, out):
        self.s.write(layer, sizes, out)

    def node_ids(self, number, out):
        self.s.node_ids(out)


class Many:
    def __init__(self, n, d, ends, target):
        self.n, self.d, self.ends, self.target = n, d, ends, target

    def draw(self, seeds, key):
        sets = 1 + max(max(e) for e in self.ends)
        rng = np.random.default_rng(key % 2**32)
        cur = [[] for _ in range(sets)]
        cur[self.target] = list(map(int, seeds))
        label = [{v: i for i, v in enumerate(c)} for c in cur]
        nodes = [tuple(map(len, cur))]
        self.layers = []
        for l in reversed(range(len(self.d.fanouts))):
            counts = list(map(len, cur))
            of = []
            for e, (s, r) in enumerate(self.ends):
                k = self.d.fanouts[l][e]
                S = []
                R = []
                P = []
                for i in range(counts[r]):
                    a, b = self.n[e].pointers[cur[r][i] : cur[r][i] + 2]
                    pos = np.arange(a, b)
                    if 0 <= k < len(pos):
                        pos = np.sort(rng.choice(pos, k, replace=False))
                    for p in pos:
                        u = int(self.n[e].senders[p])
                        if u not in label[s]:
                            label[s][u] = len(cur[s])
                            cur[s].append(u)
                        S.append(label[s][u])
                        R.append(i)
                        P.append(p)
                of.append((np.array(S, np.int64), np.array(R, np.int64), np.array(P, np.int64)))
            self.layers.insert(0, of)
            nodes.insert(0, tuple(map(len, cur)))
        self.cur = cur
        return Drawn(tuple(nodes), tuple(tuple(len(x[0]) for x in of) for of in self.layers))

    def node_ids(self, number, out):
        out[...] = 0
        out[: len(self.cur[number])] = self.cur[number]

    def write(self, layer, number, sizes, out):
        s, r, p = self.layers[layer][number]
        t, e, _ = block_tables(s, r, {}, sizes.num_senders, sizes.num_receivers, sizes)
        for k, v in t.items():
            k = k.removeprefix("block/")
            if k in out:
                out[k][...] = v
        if "edges" in out:
            out["edges"][...] = 0
            out["edges"][: len(e)] = self.n[number].edges[p[e]]


def sampler_of(neighbors, draws, ends, target):
    if len(neighbors) > 1:
        return Many(neighbors, draws, ends, target)
    return One(
        native.sampler_of(
            neighbors[0], Draws(tuple(x for (x,) in draws.fanouts), draws.replace, draws.method)
        )
    )
