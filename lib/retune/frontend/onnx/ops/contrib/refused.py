"""Operators of onnxruntime that are refused, each with what to do instead."""

from retune.frontend.onnx.ops.registry import refuse_op
from retune.proto.scope import MICROSOFT

refuse_op(
    *("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch", "NGramRepeatBlock"),
    "BifurcationDetector",
    domain=MICROSOFT,
    advice="it is the loop of text generation: export the decoder's step alone, and search in the "
    "application",
)
refuse_op(
    *("PackedAttention", "PackedMultiHeadAttention", "LongformerAttention", "SparseAttention"),
    *("PagedAttention", "RemovePadding", "RestorePadding", "DecoderAttention"),
    "DecoderMaskedSelfAttention",
    domain=MICROSOFT,
    advice="it is a form of attention for GPUs: optimise the model for the CPU (MultiHeadAttention "
    "or GroupQueryAttention), or not at all",
)
refuse_op(
    *("MoE", "QMoE", "MoEPacked"),
    domain=MICROSOFT,
    advice="mixtures of experts are not tuned: export dense layers",
)
refuse_op(
    "Tokenizer",
    domain=MICROSOFT,
    advice="it reads text: tokenize in the application, and cut the model behind it",
)
refuse_op(
    *("Conv", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "Upsample"),
    *("ReorderInput", "ReorderOutput"),
    domain="com.microsoft.nchwc",
    advice="its layout is that of one machine: save the optimised model at ORT_ENABLE_EXTENDED, "
    "or give the original model",
)
