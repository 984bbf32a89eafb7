"""Architectures of timm, torchvision, transformers and plain torch, as models with random weights.

Read `ARCHITECTURES`. Each is made where those packages are; naming them needs none of them. timm's
and torchvision's come in their real sizes, transformers' with few layers and a small vocabulary.
Nothing is downloaded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

Exporter = Literal["legacy", "dynamo"]
Call = Callable[..., Any]
"""The outputs of a model (first argument) for its inputs: tensors, nested as the model has them."""

VOCABULARY = 1000
TOKENS = 64
LEGACY_OPSET = 17
"""Of the exporter that traces; the other one chooses its own."""


@dataclass(frozen=True, slots=True)
class Example:
    """A model as torch has it, and inputs to trace it with."""

    model: Any
    inputs: tuple[Any, ...]
    call: Call | None = None
    """How it is run, where calling it with the inputs is not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture by `SOURCE:NAME`."""

    name: str
    family: str
    make: Callable[[], Example]
    exporters: tuple[Exporter, ...]
    opset: int = LEGACY_OPSET
    """For the exporter that traces."""
    normalised: bool = True
    """Its batch norms may take their statistics from a batch of two random inputs."""


def _timm(family: str, name: str, *exporters: Exporter, opset: int = LEGACY_OPSET) -> Architecture:
    def make() -> Example:
        model = import_module("timm").create_model(name, pretrained=False, exportable=True)
        return Example(model, (_image(*model.default_cfg["input_size"]),))

    return Architecture(
        name=f"timm:{name}", family=family, make=make, exporters=exporters, opset=opset
    )


def _vision(
    family: str,
    name: str,
    *exporters: Exporter,
    shape: tuple[int, ...] = (3, 224, 224),
    call: Call | None = None,
    copies: int = 1,
    **settings: Any,
) -> Architecture:
    """One of torchvision's; `settings` are its function's."""

    def make() -> Example:
        model = import_module("torchvision").models.get_model(name, weights=None, **settings)
        return Example(model, tuple(_image(*shape) for _ in range(copies)), call)

    return Architecture(
        name=f"torchvision:{name}",
        family=family,
        make=make,
        exporters=exporters,
        normalised=call is not _detections,
    )


def _transformer(
    family: str,
    model: str,
    *exporters: Exporter,
    inputs: Callable[[], tuple[Any, ...]] | None = None,
    call: Call | None = None,
    **config: Any,
) -> Architecture:
    """One of transformers' classes; `config` goes to its configuration."""

    def make() -> Example:
        kind = getattr(import_module("transformers"), model)
        made = kind(kind.config_class(**{k: _built(v) for k, v in config.items()}))
        return Example(made, (inputs or _tokens)(), call or _first_output)

    return Architecture(
        name=f"transformers:{model}", family=family, make=make, exporters=exporters, opset=14
    )


def _plain(family: str, name: str, *exporters: Exporter) -> Architecture:
    """One of `benchmarks.torch_networks`."""

    def make() -> Example:
        return Example(*import_module("benchmarks.torch_networks").NETWORKS[name]())

    return Architecture(name=f"torch:{name}", family=family, make=make, exporters=exporters)


@dataclass(frozen=True, slots=True)
class _Config:
    """A configuration inside another one, made when torch is there."""

    kind: str
    settings: Mapping[str, Any]


def _built(value: Any) -> Any:
    if isinstance(value, _Config):
        return getattr(import_module("transformers"), value.kind)(**value.settings)
    return value


# -- inputs and outputs ----------------------------------------------------------------------------


def _image(*shape: int) -> Any:
    """Uniform in [-1, 1), with a batch of one before the shape."""
    return import_module("torch").rand(1, *shape) * 2 - 1


def _images(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (_image(*shape),)


def _tokens(count: int = TOKENS) -> tuple[Any, ...]:
    """Small numbers of words."""
    return (import_module("torch").randint(0, 16, (1, count)),)


def _few_tokens() -> tuple[Any, ...]:
    return _tokens(16)


def _two_texts() -> tuple[Any, ...]:
    return (*_tokens(), *_tokens(TOKENS // 2))


def _first_output(model: Any, *inputs: Any) -> Any:
    return model(*inputs, return_dict=False)[0]


def _masked(model: Any, words: Any) -> Any:
    """Words 0 to 2 are padding."""
    return model(words, attention_mask=(words > 2).long(), return_dict=False)[0]


def _of_encoder(model: Any, *inputs: Any) -> Any:
    return model.get_encoder()(*inputs).last_hidden_state


def _of_both(model: Any, source: Any, target: Any) -> Any:
    """An encoder's text and what the decoder has said so far."""
    return model(input_ids=source, decoder_input_ids=target, return_dict=False)[0]


def _first_two(model: Any, *inputs: Any) -> Any:
    return model(*inputs, return_dict=False)[:2]


def _mask_of_classes(model: Any, image: Any) -> Any:
    return model(image)["out"]


def _detections(model: Any, image: Any) -> Any:
    return tuple(model([image[0]])[0].values())


def _last_flow(model: Any, first: Any, second: Any) -> Any:
    return model(first, second, num_flow_updates=2)[-1]


# -- the list --------------------------------------------------------------------------------------

_SMALL: dict[str, Any] = {"num_hidden_layers": 2, "vocab_size": VOCABULARY}
_DECODER: dict[str, Any] = {
    **_SMALL, "hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 704,
    "use_cache": False,
}  # fmt: skip
_SEGMENTATION: dict[str, Any] = {"weights_backbone": None, "call": _mask_of_classes}
_DETECTION: dict[str, Any] = {
    "weights_backbone": None, "call": _detections, "shape": (3, 320, 320),
}  # fmt: skip

ARCHITECTURES: tuple[Architecture, ...] = (
    _timm("ResNet", "resnet18", "legacy", "dynamo"),
    _timm("ResNet", "resnet50", "dynamo"),
    _timm("ResNet", "ecaresnet26t", "legacy"),
    _timm("ResNet", "resnetblur50", "dynamo"),
    _timm("ResNeXt", "resnext50_32x4d", "legacy", opset=13),
    _timm("ResNeXt", "seresnext26t_32x4d", "dynamo"),
    _timm("Res2Net", "res2net50_14w_8s", "dynamo"),
    _timm("ResNeSt", "resnest14d", "legacy"),
    _timm("SKNet", "skresnet18", "dynamo"),
    _timm("DenseNet", "densenet121", "dynamo"),
    _timm("DPN", "dpn48b", "legacy"),
    _timm("VGG", "vgg11_bn", "dynamo"),
    _timm("InceptionV4", "inception_v4", "legacy"),
    _timm("EfficientNet", "efficientnet_b0", "legacy", "dynamo"),
    _timm("EfficientNet", "mixnet_s", "dynamo"),
    _timm("EfficientNetV2", "tf_efficientnetv2_b0", "dynamo"),
    _timm("MobileNetV3", "mobilenetv3_small_100", "legacy", "dynamo", opset=13),
    _timm("MobileNetV4", "mobilenetv4_conv_small", "dynamo"),
    _timm("LCNet", "lcnet_050", "legacy"),
    _timm("GhostNet", "ghostnet_100", "legacy"),
    _timm("Xception", "xception41", "legacy"),
    _vision("VGG", "vgg16", "legacy"),
    _timm("ReXNet", "rexnet_100", "dynamo"),
    _timm("RegNet", "regnety_002", "dynamo"),
    _timm("RegNet", "regnetx_002", "legacy", opset=11),
    _timm("RepVGG", "repvgg_a0", "legacy"),
    _timm("MobileOne", "mobileone_s0", "dynamo"),
    _timm("VoVNet", "ese_vovnet19b_dw", "dynamo"),
    _timm("CSPNet", "cspresnet50", "legacy"),
    _timm("HRNet", "hrnet_w18_small", "dynamo"),
    _timm("DLA", "dla34", "legacy"),
    _timm("HGNet", "hgnetv2_b0", "dynamo"),
    _timm("SelecSLS", "selecsls42b", "dynamo"),
    _timm("NFNet", "nfnet_l0", "dynamo"),
    _timm("NFNet", "nf_resnet26", "legacy"),
    _timm("ConvNeXt", "convnext_atto", "legacy", "dynamo"),
    _timm("ConvNeXtV2", "convnextv2_atto", "legacy", "dynamo"),
    _timm("InceptionNeXt", "inception_next_atto", "dynamo"),
    _timm("StarNet", "starnet_s1", "legacy"),
    _timm("MambaOut", "mambaout_femto", "dynamo"),
    _timm("ViT", "vit_tiny_patch16_224", "legacy", "dynamo", opset=14),
    _timm("ViT", "vit_little_patch16_reg4_gap_256", "dynamo"),
    _timm("ViT", "vit_small_patch16_rope_224", "dynamo"),
    _timm("ViT", "eva02_tiny_patch14_224", "dynamo"),
    _timm("DeiT", "deit_tiny_distilled_patch16_224", "legacy"),
    _timm("DeiT", "deit3_small_patch16_224", "dynamo"),
    _timm("BEiT", "beit_base_patch16_224", "dynamo"),
    _timm("Swin", "swin_tiny_patch4_window7_224", "legacy", "dynamo"),
    _timm("SwinV2", "swinv2_tiny_window8_256", "dynamo"),
    _timm("MaxViT", "maxvit_pico_rw_256", "legacy"),
    _timm("CoAtNet", "coatnet_pico_rw_224", "dynamo"),
    _timm("CoaT", "coat_lite_tiny", "dynamo"),
    _timm("CoaT", "coat_tiny", "legacy"),
    _timm("LeViT", "levit_128s", "dynamo"),
    _timm("MobileViT", "mobilevit_xxs", "legacy", "dynamo"),
    _timm("MobileViT", "mobilevitv2_050", "dynamo"),
    _timm("EfficientFormer", "efficientformer_l1", "dynamo"),
    _timm("EfficientFormer", "efficientformerv2_s0", "legacy"),
    _timm("EfficientViT", "efficientvit_b0", "dynamo"),
    _timm("FastViT", "fastvit_t8", "dynamo"),
    _timm("RepViT", "repvit_m0_9", "legacy"),
    _timm("TinyViT", "tiny_vit_5m_224", "dynamo"),
    _timm("PoolFormer", "poolformer_s12", "legacy"),
    _timm("CAFormer", "caformer_s18", "dynamo"),
    _timm("MLP-Mixer", "mixer_s32_224", "dynamo"),
    _timm("gMLP", "gmlp_ti16_224", "legacy"),
    _timm("ResMLP", "resmlp_12_224", "dynamo"),
    _timm("VOLO", "volo_d1_224", "dynamo"),
    _timm("XCiT", "xcit_nano_12_p16_224", "legacy", "dynamo"),
    _timm("Twins", "twins_pcpvt_small", "legacy"),
    _timm("Twins", "twins_svt_small", "dynamo"),
    _timm("CaiT", "cait_xxs24_224", "dynamo"),
    _timm("PVT", "pvt_v2_b0", "dynamo"),
    _timm("FocalNet", "focalnet_tiny_srf", "dynamo"),
    _timm("EdgeNeXt", "edgenext_xx_small", "legacy", "dynamo"),
    _timm("CrossViT", "crossvit_tiny_240", "dynamo"),
    _timm("PiT", "pit_ti_224", "legacy"),
    _timm("Nest", "nest_tiny", "dynamo"),
    _timm("TNT", "tnt_s_legacy_patch16_224", "dynamo"),
    _timm("ConViT", "convit_tiny", "dynamo"),
    _timm("Visformer", "visformer_tiny", "legacy"),
    _timm("DaViT", "davit_tiny", "dynamo"),
    _timm("GCViT", "gcvit_xxtiny", "dynamo"),
    _timm("MViTv2", "mvitv2_tiny", "dynamo"),
    _timm("Hiera", "hiera_tiny_224", "dynamo"),
    _timm("Sequencer2D", "sequencer2d_s", "legacy"),
    _timm("ByoaNet", "halonet26t", "dynamo"),
    _timm("ByoaNet", "botnet26t_256", "legacy"),
    _vision("MobileNetV2", "mobilenet_v2", "legacy"),
    _vision("ShuffleNetV2", "shufflenet_v2_x0_5", "dynamo"),
    _vision("MNASNet", "mnasnet0_5", "dynamo"),
    _vision("GoogLeNet", "googlenet", "legacy", init_weights=False, aux_logits=False),
    _vision("LRASPP", "lraspp_mobilenet_v3_large", "legacy", "dynamo", **_SEGMENTATION),
    _vision("DeepLabV3", "deeplabv3_mobilenet_v3_large", "legacy", "dynamo", **_SEGMENTATION),
    _vision("FCN", "fcn_resnet50", "dynamo", **_SEGMENTATION),
    _vision("SSDlite", "ssdlite320_mobilenet_v3_large", "legacy", **_DETECTION),
    _vision("RetinaNet", "retinanet_resnet50_fpn", "legacy", **_DETECTION),
    _vision(
        "Faster R-CNN", "fasterrcnn_mobilenet_v3_large_320_fpn", "legacy", box_score_thresh=0.005,
        **_DETECTION,
    ),
    _vision("ResNet 3D", "r3d_18", "legacy", shape=(3, 8, 112, 112)),
    _vision("R(2+1)D", "r2plus1d_18", "dynamo", shape=(3, 8, 112, 112)),
    _vision("S3D", "s3d", "dynamo", shape=(3, 16, 224, 224)),
    _vision("RAFT", "raft_small", "dynamo", shape=(3, 128, 128), call=_last_flow, copies=2),
    _transformer("BERT", "BertForMaskedLM", "legacy", "dynamo", call=_masked, **_SMALL),
    _transformer(
        "DistilBERT", "DistilBertForSequenceClassification", "legacy", n_layers=2,
        vocab_size=VOCABULARY,
    ),
    _transformer("RoBERTa", "RobertaForTokenClassification", "dynamo", call=_masked, **_SMALL),
    _transformer(
        "ALBERT", "AlbertModel", "dynamo", hidden_size=768, num_attention_heads=12,
        intermediate_size=3072, **_SMALL,
    ),
    _transformer("ELECTRA", "ElectraForPreTraining", "legacy", **_SMALL),
    _transformer("MobileBERT", "MobileBertModel", "dynamo", **_SMALL),
    _transformer("MPNet", "MPNetModel", "dynamo", **_SMALL),
    _transformer(
        "DeBERTa", "DebertaV2Model", "dynamo", hidden_size=384, num_attention_heads=6,
        intermediate_size=1536, relative_attention=True, position_buckets=32,
        pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", share_att_key=True,
        position_biased_input=False, **_SMALL,
    ),
    _transformer(
        "GPT-2", "GPT2LMHeadModel", "dynamo", n_layer=2, vocab_size=VOCABULARY,
        use_cache=False,
    ),
    _transformer(
        "GPT-Neo", "GPTNeoModel", "dynamo", hidden_size=256, num_layers=2, num_heads=8,
        attention_types=[[["global", "local"], 1]], window_size=8, vocab_size=VOCABULARY,
        use_cache=False,
    ),
    _transformer("GPT-NeoX", "GPTNeoXModel", "dynamo", **_DECODER),
    _transformer(
        "OPT", "OPTModel", "dynamo", hidden_size=256, num_attention_heads=8, ffn_dim=1024,
        word_embed_proj_dim=256, use_cache=False, **_SMALL,
    ),
    _transformer(
        "Llama", "LlamaForCausalLM", "dynamo", num_key_value_heads=4, **_DECODER
    ),
    _transformer("Qwen2", "Qwen2Model", "dynamo", num_key_value_heads=2, call=_masked, **_DECODER),
    _transformer(
        "Gemma 3", "Gemma3TextModel", "dynamo", num_key_value_heads=2, head_dim=32,
        query_pre_attn_scalar=32, sliding_window=16, pad_token_id=0,
        layer_types=["sliding_attention", "full_attention"], **_DECODER,
    ),
    _transformer(
        "T5 encoder", "T5EncoderModel", "legacy", "dynamo", num_layers=2, vocab_size=VOCABULARY
    ),
    _transformer(
        "T5", "T5ForConditionalGeneration", "dynamo", inputs=_two_texts, call=_of_both,
        num_layers=2, vocab_size=VOCABULARY, use_cache=False,
    ),
    _transformer(
        "BART encoder", "BartModel", "dynamo", call=_of_encoder, encoder_layers=2,
        decoder_layers=1, vocab_size=VOCABULARY, d_model=512,
    ),
    _transformer(
        "Whisper encoder", "WhisperModel", "legacy", inputs=_images(80, 200), call=_of_encoder,
        encoder_layers=2, decoder_layers=1, max_source_positions=100, encoder_attention_heads=6,
        vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    ),
    _transformer(
        "Wav2Vec2", "Wav2Vec2ForCTC", "dynamo", inputs=_images(8000), num_hidden_layers=2
    ),
    _transformer(
        "CLIP text", "CLIPTextModel", "legacy", "dynamo", pad_token_id=0, bos_token_id=1,
        eos_token_id=2, **_SMALL,
    ),
    _transformer(
        "CLIP vision", "CLIPVisionModel", "dynamo", inputs=_images(3, 224, 224),
        num_hidden_layers=2,
    ),
    _transformer(
        "DINOv2", "Dinov2Model", "dynamo", inputs=_images(3, 224, 224), num_hidden_layers=2
    ),
    _transformer(
        "SegFormer", "SegformerForSemanticSegmentation", "legacy", "dynamo",
        inputs=_images(3, 256, 256),
    ),
    _transformer(
        "DPT", "DPTForDepthEstimation", "dynamo", inputs=_images(3, 224, 224), image_size=224,
        num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3],
    ),
    _transformer(
        "YOLOS", "YolosForObjectDetection", "dynamo", inputs=_images(3, 224, 224),
        call=_first_two, image_size=[224, 224], hidden_size=192, num_attention_heads=3,
        intermediate_size=768, num_hidden_layers=2,
    ),
    _transformer(
        "DETR", "DetrForObjectDetection", "dynamo", inputs=_images(3, 256, 256), call=_first_two,
        encoder_layers=2, decoder_layers=2,
        backbone_config=_Config(
            "ResNetConfig", {"depths": [1, 1, 1, 1], "out_features": ["stage4"]}
        ),
    ),
    _transformer(
        "Mamba", "MambaModel", "dynamo", inputs=_few_tokens, hidden_size=128, use_cache=False,
        use_associative_scan=False, **_SMALL,
    ),
    _plain("U-Net", "unet", "legacy", "dynamo"),
    _plain("DCGAN", "dcgan_generator", "legacy", "dynamo"),
    _plain("ESPCN", "espcn", "legacy", "dynamo"),
    _plain("LSTM tagger", "lstm_tagger", "legacy", "dynamo"),
    _plain("GRU tagger", "gru_tagger", "legacy", "dynamo"),
    _plain("Conv1d keyword spotting", "keyword_spotting", "legacy", "dynamo"),
    _plain("TCN", "temporal_convolutions", "dynamo"),
    _plain("Transformer", "transformer_encoder", "legacy", "dynamo"),
    _plain("VAE", "autoencoder", "dynamo"),
)  # fmt: skip
"""Families from the plainest to the latest; within a package the smallest variant of each."""
