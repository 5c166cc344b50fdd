"""Models of timm with their weights, by name."""

from __future__ import annotations

from typing import Any

import torch

from reattend.attention import MultiHeadAttention
from reattend.errors import ReattendError, nearest

TIMM = "timm:"
_SUCH_AS = "deit_tiny_patch16_224.fb_in1k"


def check_timm_name(name: str) -> None:
    """Looks up "<model>" or "<model>.<tag>" in timm's lists, without a network.

    Raises:
        ReattendError: there is no such model, or no such weights of it; with the nearest, and what there is.
    """
    import timm

    model, _, tag = name.partition(".")
    names = timm.list_pretrained()
    told = f"{TIMM}{name}: timm has no"
    if not timm.is_model(model):
        models = dict.fromkeys(found.partition(".")[0] for found in names)
        close = nearest(model, models) or f" Name one, such as {TIMM}{_SUCH_AS}."
        raise ReattendError(f"{told} such model.{close} All: {_listing('*deit*')}")
    tags = [found.partition(".")[2] for found in names if found.partition(".")[0] == model]
    if not tags:
        close = nearest(model, {found.partition(".")[0] for found in names})
        raise ReattendError(f"{told} weights of {model}.{close} Those that it has: {_listing('*vit*')}")
    if tag and tag not in tags:
        valid = ", ".join(f"{TIMM}{model}.{own}" if own else f"{TIMM}{model}" for own in tags)
        raise ReattendError(f"{told} weights '{tag}' of {model}.{nearest(tag, tags)} It has: {valid}.")


def timm_model(name: str, instead: str) -> Any:
    """A model of timm with its weights; `instead` says what else a person could do who cannot get them.

    Raises:
        ReattendError: there is no such model, or its weights cannot be got.
    """
    import timm

    check_timm_name(name)
    try:
        return timm.create_model(name, pretrained=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise ReattendError(
            f"{TIMM}{name}: timm could not get the weights ({type(error).__name__}). On a machine with a network:"
            f" python -c \"import timm; timm.create_model('{name}', pretrained=True)\"; its ~/.cache/huggingface can be"
            f" copied here. {instead}"
        ) from error


def model_of_timm(name: str) -> Any:
    """A plain vision transformer of timm with its weights, as ours with softmax attention, in evaluation mode.

    Raises:
        ReattendError: there is no such model, it cannot be got, or it has other parts than ours.
    """
    # Imported here: it imports timm, which runs without other weights do without.
    from reattend.backbones.vision_transformer import VisionTransformer

    theirs = timm_model(name, "A finished run needs no such weights: run=<its folder>.")
    try:
        ours = VisionTransformer(
            MultiHeadAttention,
            image_size=theirs.patch_embed.img_size[0],
            channels=theirs.patch_embed.proj.in_channels,
            num_outputs=theirs.num_classes,
            patch_size=theirs.patch_embed.patch_size[0],
            dim=theirs.embed_dim,
            depth=len(theirs.blocks),
            num_heads=theirs.blocks[0].attn.num_heads,
            pooling="class_token" if theirs.global_pool == "token" else "mean",
        )
        ours.load_state_dict(theirs.state_dict())
        ours.pretrained_cfg = ours.default_cfg = theirs.pretrained_cfg
        ours.eval()
        # The same names may stand for other functions: another activation, another epsilon.
        x = torch.randn(2, *theirs.patch_embed.proj.weight.shape[1:2], *theirs.patch_embed.img_size)
        with torch.no_grad():
            torch.testing.assert_close(ours(x)[0], theirs.eval()(x), rtol=1e-4, atol=1e-5)
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ReattendError(f"{TIMM}{name} is no plain vision transformer, such as {TIMM}{_SUCH_AS}.") from error
    return ours


def _listing(pattern: str) -> str:
    """The command that lists what timm has weights of."""
    return f"python -c \"import timm; print(*timm.list_pretrained('{pattern}'), sep='\\n')\""
