"""The fast engine: the whole cycle on the device, as one captured graph where there are graphs.

`cycle.py` is the file to read first: draft, verify, accept, with nothing that waits for the host. `target.py` is the
seam's Target over it. It imports the seam from `speculate`, and model files and kernels; nothing below imports it.
"""
