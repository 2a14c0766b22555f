"""The rules by name. To add one: a function that finds its places, an example for its proof, and its line here."""

from collections.abc import Mapping

from weft.rewrite.rules import attention, elements, products, whole
from weft.rewrite.rules.base import Rule

__all__ = ["RULES", "Rule"]

RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("merge_qkv", "Three or more GEMMs on one input as one: fewer launches, fuller waves.",
             products.merge(3, 8), products.merge_example(3)),
        Rule("merge_gate_up", "Two GEMMs on one input, such as gate and up of an MLP, as one.",
             products.merge(2, 2), products.merge_example(2)),
        Rule("fold_batchnorm", "A batch normalisation folded into the filters of the convolution before it.",
             products.fold_batchnorm, products.fold_example),
        Rule("matmul_bias", "A bias added by the GEMM before it.", products.matmul_bias, products.bias_example),
        Rule("bias_gelu", "A bias and GeLU in one kernel.", elements.bias_gelu, elements.gelu_example),
        Rule("fuse_elementwise", "Element-wise operators in a row in one kernel.",
             elements.fuse_elementwise, elements.chain_example),
        Rule("dropout_add", "Bias, dropout and residual sum in one kernel.",
             elements.dropout_add, elements.dropout_example),
        Rule("add_norm", "A residual sum, with its dropout, and the norm after it in one kernel.",
             elements.add_norm, elements.norm_example),
        Rule("flash_attention", "Scores, scale, mask, softmax, dropout and values in one kernel.",
             attention.flash_attention, attention.attention_example),
        Rule("write_in_order", "Copies around fused attention left out, since the kernel takes strides.",
             attention.write_in_order, attention.order_example),
        Rule("overlap_reduce_scatter", "A GEMM and its reduce-scatter in parts that overlap.",
             products.overlap_reduce_scatter, products.scatter_example),
        Rule("fold_constants", "Operators on weights alone run once, before the graph.",
             whole.fold_constants, whole.constants_example),
        Rule("share_common", "What is computed twice from the same inputs is computed once.",
             whole.share_common, whole.common_example),
        Rule("drop_unused", "What nothing reads is not computed.", whole.drop_unused, whole.unused_example),
        Rule("cuda_graph", "All kernels launched as one graph.", whole.cuda_graph, whole.captured_example),
    )
}  # fmt: skip
"""Every rule by its name."""
