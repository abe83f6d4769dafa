"""Kernels run in Triton's interpreter where there is no accelerator: that checks indexing and masks, not speed."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel's module is imported, so before the tests are
