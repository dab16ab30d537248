"""The arrays of the parts of a graph, in two halves; everything is NumPy on the host.

The *contract* is what parts must agree on and what a source of parts lists: which rows travel where
(`manifest`), node and edge data, compressed rows in both orientations, and tables of halos
(`node_tables`, `edge_tables`, `sar_tables`, `domain_tables`, `column_tables`). It knows no kernel.

`derived` is what implementations make of it when a part is placed, a module for each layout; its
shapes follow from the manifest alone. `placed` says which implementation derives what, and joins
both halves to the arrays that a device holds.
"""
