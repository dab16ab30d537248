"""Float64 NumPy references, written without any operation of the library.

Every function returns its value and a closure that maps the gradient of the value to the gradients
of the inputs: `y, backward = relu(x)`, then `grad_x = backward(grad_y)`. Functions with parameters
take them as a dict of arrays, and their closure returns `(grad_x, grads)` with the same names.
"""
