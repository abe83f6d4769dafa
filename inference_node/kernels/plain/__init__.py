"""The building blocks in ordinary torch. Rows (tokens) are the first axis everywhere; there is no batch axis.

The reference forward is made of block_attention, causal_conv, experts and gated_delta, by rows.py. The rest are twins
of the kernels of the same name in `triton`, with their tensors and rules, and what both share.
"""
