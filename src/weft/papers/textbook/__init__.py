"""Formulas and algorithms of the field that no other package needs, each a function with a number.

Collectives and parameter servers (`collectives`), consistency of replicas and ZeRO (`replicas`), intensity, launches
and access patterns of kernels (`kernels`), number formats (`quantization`), checkpoints of tensors
(`rematerialization`), and searches for a parallel plan: shardings (`shard`, `strategies`), borders of stages and meshes
(`meshes`, `alpa`).
"""
