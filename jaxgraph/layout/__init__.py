"""The arrays of the parts of a graph: who owns what, which rows travel where, edges by row.

Everything here is NumPy on the host.
"""
