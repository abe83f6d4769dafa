"""Numeric building blocks. They know tensors and nothing of models, requests or text.

`plain` holds them in ordinary torch, for any device: the reference forward is made of these, and they are the twins
that the fast kernels are compared with.
"""
