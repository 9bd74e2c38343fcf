"""What the engine remembers: a tree of prefixes, the K/V slots, each request's slot table.

Import from the modules themselves (`from minisgl.cache.radix_cache import RadixCache`): the tree is
pure Python, and importing it here beside the tensors would make it wait for torch.
"""
