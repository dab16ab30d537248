"""Arrays that implementations derive from compressed rows at placement, outside the contract.

`jaxgraph.layout.placed` lists which implementation derives what. All sizes follow from the manifest
alone, so that every process, and a program compiled without data, has the same shapes.
"""
