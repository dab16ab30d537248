"""Arrays that implementations derive from compressed rows at placement, outside the contract.

`jaxgraph.layout.placed` lists the derived arrays of each implementation. All sizes follow from the
manifest alone: every process, and a program compiled without data, has the same shapes.
"""
