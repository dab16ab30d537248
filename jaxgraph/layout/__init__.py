"""The arrays of the parts of a graph, in two halves; everything is NumPy on the host.

The *contract* is all that parts must agree on and that a source of parts lists: the rows that
travel between parts (`manifest`), node and edge data, compressed rows in both orientations, and
tables of halos (`node_tables`, `edge_tables`, `part_tables`, `column_tables`). `schema` has a row
for each array. It knows no kernel.

`derived` holds the arrays that implementations compute from the contract when a part is placed, one
module per layout; their shapes follow from the manifest alone. `placed` lists the derived arrays of
each implementation, and joins both halves into the arrays that a device holds.
"""
