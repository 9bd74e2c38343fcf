"""The kernels: tensors in, tensors out; each file holds a torch reference, a Triton kernel and its launcher."""
