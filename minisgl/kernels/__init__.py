"""Tensors in, tensors out; each file: a torch reference, a Triton kernel and its launcher."""
