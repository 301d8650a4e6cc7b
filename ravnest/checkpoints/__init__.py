"""A run's folder and its checkpoints: written atomically, verified by hash, read back whole or refused.

In: tensors by name, span by span. Out: safetensors files and a manifest, and the same tensors again.
"""
