"""The formulas and algorithms of the field that no other room needs, each a function with a number.

Collectives and parameter servers (`collectives`), consistency of replicas and ZeRO (`replicas`), tiles, intensity and
launches of kernels (`tiling`, `kernels`), number formats (`quantization`), checkpoints of tensors
(`rematerialization`), and searches for a parallel plan: borders of stages (`borders`), shardings (`shard`,
`strategies`, `resharding`) and stages on meshes (`meshes`, `alpa`).
"""
