"""Several processes of one run: started, watched and ended together.

It imports the standard library only.
"""
