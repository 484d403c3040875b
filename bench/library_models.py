"""Models as their libraries make them, with random seeded weights: by library, name to what makes it.

A maker answers ``(module, args, kwargs)``; nothing is downloaded beyond packages. ``width`` and depths are as published
but for diffusers' and transformers', whose configurations are small; pictures are small so that hundreds of runs pass.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

__all__ = ["LIBRARIES", "scoring", "tensors_of"]


def picture(size: int, batch: int = 1, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(1))


def tensors_of(answer: Any) -> list[torch.Tensor]:
    """The floating-point tensors in whatever a model answers, in a fixed order."""
    if isinstance(answer, torch.Tensor):
        return [answer] if answer.is_floating_point() else []
    if isinstance(answer, dict):
        return [t for key in sorted(answer) for t in tensors_of(answer[key])]
    if isinstance(answer, list | tuple):
        return [t for each in answer for t in tensors_of(each)]
    return tensors_of(vars(answer)) if hasattr(answer, "__dict__") else []


# --- torchvision -----------------------------------------------------------------------------------------------------

_CLASSIFIERS = """
alexnet vgg11_bn resnet18 resnet50 resnext50_32x4d wide_resnet50_2 densenet121 googlenet inception_v3 squeezenet1_1
shufflenet_v2_x1_0 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet1_0 efficientnet_b0 efficientnet_v2_s
regnet_y_400mf regnet_x_400mf convnext_tiny vit_b_32 swin_t swin_v2_t maxvit_t
"""
_SEGMENTERS = "deeplabv3_mobilenet_v3_large deeplabv3_resnet50 fcn_resnet50 lraspp_mobilenet_v3_large"
_DETECTORS = "retinanet_resnet50_fpn fasterrcnn_mobilenet_v3_large_320_fpn ssdlite320_mobilenet_v3_large"
_SIZES = {"inception_v3": 299, "maxvit_t": 224, "vit_b_32": 224}


def _torchvision(name: str) -> Any:
    import torchvision

    models, more = torchvision.models, {}
    if name in _SEGMENTERS.split():
        return models.get_model(name, weights=None, weights_backbone=None, num_classes=21), (picture(128),), {}
    if name in _DETECTORS.split():
        _suppress()
        if name.startswith("retinanet"):
            more = {"min_size": 192, "max_size": 256}
        if not name.startswith("fasterrcnn"):  # few of few, or roundings change which ones are found
            more |= {"num_classes": 5, "detections_per_img": 20}
        net = models.get_model(name, weights=None, weights_backbone=None, **more)
        return net, ([picture(200)[0], picture(160)[0]],), {}
    if name in ("r3d_18", "mc3_18", "r2plus1d_18", "swin3d_t"):
        clip = torch.randn(1, 3, 8, 64, 64, generator=torch.Generator().manual_seed(1))
        return models.get_model(name, weights=None), (clip,), {}
    if name == "raft_small":
        return models.get_model(name, weights=None), (picture(128), picture(128).flip(3)), {"num_flow_updates": 2}
    if name in ("googlenet", "inception_v3"):
        more = {"init_weights": True, "aux_logits": False} if name == "googlenet" else {"init_weights": False}
    return models.get_model(name, weights=None, **more), (picture(_SIZES.get(name, 128), 2),), {}


def scoring(net: torch.nn.Module) -> list[torch.nn.Module]:
    """A detector's layers that score boxes."""
    layer = re.compile(r"(cls_logits|cls_score|classification_head\.module_list\.\d+\.1)$")
    return [module for name, module in net.named_modules() if layer.search(name)]


def _suppress() -> None:
    """Suppression of boxes in Python where torchvision's operators do not load, as CUDA's beside a CPU build."""
    from torchvision import extension, ops

    if extension._has_ops():
        return

    def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
        order, kept = scores.argsort(descending=True, stable=True).numpy(), []
        apart = (ops.box_iou(boxes, boxes) <= iou_threshold).numpy()
        while len(order):
            first, order = int(order[0]), order[1:]
            kept.append(first)
            order = order[apart[first, order]]
        return torch.tensor(kept, dtype=torch.long)

    ops.boxes.nms = nms


# --- timm ------------------------------------------------------------------------------------------------------------

_TIMM = """
resnet26d resnetv2_50 resnest14d resnet50_gn seresnext26d_32x4d ecaresnet26t hrnet_w18_small res2net50_26w_4s
convnext_atto convnextv2_atto efficientnet_b0 tf_efficientnetv2_b0 mobilenetv4_conv_small mobilenetv3_large_100
mobilenetv2_100 mnasnet_small lcnet_050 ghostnet_100 nfnet_f0 dm_nfnet_f0 eca_nfnet_l0 regnetx_002 regnety_002 repvgg_a0
mobileone_s0 fastvit_t8 vgg11 densenet121 dla34 cspresnet50 cspdarknet53 darknet53 xception41 inception_next_tiny
rexnet_100 selecsls42 tresnet_m vovnet39a hardcorenas_a fbnetc_100 edgenext_xx_small mobilevit_xxs coatnet_0_rw_224
maxvit_tiny_tf_224 vit_tiny_patch16_224 deit_tiny_patch16_224 swin_tiny_patch4_window7_224 poolformer_s12
efficientformer_l1 levit_128s pit_ti_224 gernet_s starnet_s1 repghostnet_050 skresnet18
"""
_TIMM_LARGE = ("coatnet", "maxvit", "vit_", "deit", "swin", "efficientformer", "levit", "pit_")


def _timm(name: str) -> Any:
    import timm

    size = 224 if name.startswith(_TIMM_LARGE) else 256 if name.startswith(("mobilevit", "edgenext")) else 128
    return timm.create_model(name, pretrained=False), (picture(size),), {}


# --- diffusers -------------------------------------------------------------------------------------------------------


_DIFFUSERS = ["AutoencoderKL", "AutoencoderKL decode 512", "UNet2DConditionModel", "UNet2DModel", "ControlNetModel"]
_DIFFUSERS += ["VQModel"]


def _vae() -> Any:
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 3, "up_block_types": ["UpDecoderBlock2D"] * 3}
    return AutoencoderKL(block_out_channels=[32, 64, 64], layers_per_block=1, latent_channels=4, **blocks)


class _Decoder(torch.nn.Module):
    """What runs at the end of a diffusion: latents to a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.vae = _vae()

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.vae.decode(z).sample  # type: ignore[no-any-return]


def _unet(**more: Any) -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        block_out_channels=(32, 64), layers_per_block=1, sample_size=32, cross_attention_dim=32, attention_head_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=32, **more,
    )  # fmt: skip


def _diffusers(name: str) -> Any:
    noise, words = picture(32, 1, 4), torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(2))
    if name == "AutoencoderKL":
        return _vae(), (picture(64),), {}
    if name == "AutoencoderKL decode 512":
        return _Decoder(), (picture(128, 1, 4),), {}
    if name == "UNet2DConditionModel":
        return _unet(), (noise, 10, words), {}
    if name == "UNet2DModel":
        from diffusers import UNet2DModel

        blocks = {
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        }
        return UNet2DModel(block_out_channels=(32, 64), layers_per_block=1, **blocks), (picture(32), 10), {}
    if name == "ControlNetModel":
        from diffusers import ControlNetModel

        net = ControlNetModel.from_unet(_unet(), conditioning_embedding_out_channels=(16, 32))
        return net, (noise, 10, words, picture(64)), {}
    from diffusers import VQModel

    return VQModel(block_out_channels=[32], norm_num_groups=32), (picture(64),), {}


# --- transformers ----------------------------------------------------------------------------------------------------


def _transformers(name: str) -> Any:
    import transformers as t

    if name == "ConvNextV2":
        config = t.ConvNextV2Config(depths=[1, 1, 2, 1], hidden_sizes=[32, 64, 96, 128])
        return t.ConvNextV2Model(config), (picture(96),), {}
    if name == "wav2vec2":
        config = t.Wav2Vec2Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
        return t.Wav2Vec2Model(config), (torch.randn(1, 8000, generator=torch.Generator().manual_seed(1)),), {}
    if name == "Whisper":
        sizes = {"encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
        config = t.WhisperConfig(
            d_model=64, max_source_positions=200, encoder_ffn_dim=128, decoder_ffn_dim=128, **sizes
        )
        heard = torch.randn(1, 80, 400, generator=torch.Generator().manual_seed(1))
        return t.WhisperModel(config), (heard,), {"decoder_input_ids": torch.ones(1, 4, dtype=torch.long)}
    if name == "SegFormer":
        config = t.SegformerConfig(depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 128], decoder_hidden_size=64)
        return t.SegformerForSemanticSegmentation(config), (picture(128),), {}
    if name == "DETR":
        backbone = t.ResNetConfig(
            depths=[1, 1, 1, 1], hidden_sizes=[64, 128, 128, 256], embedding_size=32, out_features=["stage4"]
        )
        config = t.DetrConfig(
            use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=64,
            encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=128, decoder_ffn_dim=128, num_queries=10,
        )  # fmt: skip
        return t.DetrModel(config), (picture(160),), {}
    if name == "Mamba":
        config = t.MambaConfig(vocab_size=100, hidden_size=64, num_hidden_layers=2, state_size=8)
        return t.MambaModel(config), (torch.arange(32)[None] % 100,), {}
    if name == "ResNet":
        return t.ResNetModel(t.ResNetConfig(depths=[2, 2, 2, 2], layer_type="basic")), (picture(128),), {}
    config = t.MobileViTConfig(image_size=128)
    return t.MobileViTModel(config), (picture(128),), {}


# --- segmentation_models_pytorch, MONAI, Keras -----------------------------------------------------------------------

_SMP = "Unet UnetPlusPlus MAnet Linknet FPN PSPNet DeepLabV3 DeepLabV3Plus PAN UPerNet"


def _smp(name: str) -> Any:
    import segmentation_models_pytorch as smp

    net = getattr(smp, name)("resnet18", encoder_weights=None, classes=4)
    return net, (picture(128),), {}


def _monai(name: str) -> Any:
    from monai.networks import nets

    volume = torch.randn(1, 1, 32, 32, 32, generator=torch.Generator().manual_seed(1))
    makers = {
        "UNet": lambda: nets.UNet(3, 1, 2, (8, 16, 32), (2, 2), num_res_units=1),
        "SegResNet": lambda: nets.SegResNet(init_filters=8, in_channels=1, out_channels=2),
        "DynUNet": lambda: nets.DynUNet(3, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[8, 16, 32]),
        "BasicUNet": lambda: nets.BasicUNet(3, 1, 2, features=(8, 8, 16, 16, 32, 8)),
        "VNet": lambda: nets.VNet(out_channels=2),
        "AttentionUnet": lambda: nets.AttentionUnet(3, 1, 2, (8, 16, 32), (2, 2)),
        "DenseNet121": lambda: nets.DenseNet121(3, 1, 2),
        "HighResNet": lambda: nets.HighResNet(3, 1, 2),
    }
    return makers[name](), (volume,), {}


_KERAS = "MobileNetV2 EfficientNetB0 ResNet50 DenseNet121 Xception ConvNeXtTiny NASNetMobile InceptionV3"


def _keras(name: str) -> Any:
    import keras

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = getattr(keras.applications, name)(weights=None, input_shape=(96, 96, 3), classes=10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x, training=self.training)  # type: ignore[no-any-return]

    return Net(), (picture(96).permute(0, 2, 3, 1).contiguous(),), {}


def _named(make: Any, names: str | list[str]) -> dict[str, Any]:
    listed = names.split() if isinstance(names, str) else names
    return {name: functools.partial(make, name) for name in listed}


LIBRARIES = {
    "torchvision": _named(
        _torchvision, f"{_CLASSIFIERS} {_SEGMENTERS} {_DETECTORS} raft_small r3d_18 mc3_18 r2plus1d_18 swin3d_t"
    ),
    "timm": _named(_timm, _TIMM),
    "diffusers": _named(_diffusers, _DIFFUSERS),
    "transformers": _named(_transformers, "ConvNextV2 wav2vec2 Whisper SegFormer DETR Mamba ResNet MobileViT"),
    "segmentation_models_pytorch": _named(_smp, _SMP),
    "monai": _named(_monai, "UNet SegResNet DynUNet BasicUNet VNet AttentionUnet DenseNet121 HighResNet"),
    "keras": _named(_keras, _KERAS),
}
"""By library, name of a model to what makes it."""
