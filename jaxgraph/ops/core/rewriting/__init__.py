"""Rewriting of message functions: what depends on one end of an edge is computed once per node."""
