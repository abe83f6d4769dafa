"""Kernels run in Triton's interpreter where there is no accelerator: that checks indexing and masks, not speed.

Triton reads this when it is imported, and what imports it depends on which tests are collected first. So: here.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
