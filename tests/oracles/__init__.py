"""Float64 NumPy references, written without any operation of the library.

They are functions of arrays and say nothing of gradients, which `tape.differentiate` gives.
"""
