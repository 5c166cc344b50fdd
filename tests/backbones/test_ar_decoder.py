"""The autoregressive decoder: blind to the future, equal in all its forms."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from reattend.attention import MixerSpec, MultiHeadAttention
from reattend.attention.aft.local import AFTLocal
from reattend.attention.aft.simple import AFTSimple
from reattend.attention.contract import Mixer
from reattend.attention.primal import Primal
from reattend.backbones import ARDecoder, build_backbone
from reattend.backbones.positions import fairseq_sinusoids
from reattend.config import check_run, compose, read
from reattend.data.facts import data_facts
from reattend.errors import ReattendError
from reattend.tables.cells import cell_overrides, compose_cell
from reattend.tables.table import load_table

SHAPE: dict[str, Any] = {
    "vocabulary": 11,
    "num_outputs": 11,
    "max_length": 16,
    "dim": 12,
    "depth": 3,
    "num_heads": 2,
    "ff_dim": 24,
    "dropout": 0.0,
}
MIXERS: dict[str, Callable[[MixerSpec], Mixer]] = {
    "softmax": MultiHeadAttention,
    "linear": lambda spec: MultiHeadAttention(spec, kernel={"name": "linear"}),
    "aft_simple": AFTSimple,
    "aft_local": lambda spec: AFTLocal(spec, window=3),
}


def decoder(mixer: str = "softmax", **options: Any) -> ARDecoder:
    torch.manual_seed(0)
    model = ARDecoder(MIXERS[mixer], **(SHAPE | options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.double()


x = torch.randint(0, 11, (2, 13), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("reversible", [False, True])
def test_a_token_is_not_seen_by_its_own_logits_nor_by_those_before(mixer: str, reversible: bool) -> None:
    model = decoder(mixer, reversible=reversible).eval()
    changed = x.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = model(x)[0], model(changed)[0]
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.equal(before[:, 6:], after[:, 6:])


FAIRSEQ: dict[str, Any] = {
    "norm": "post",
    "activation": "relu",
    "positions": "fairseq",
    "scaled_embedding": True,
    "start_token": 2,
    "tied": True,
}


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("options", [{}, {"reversible": True}, {"positions": "sinusoidal", "tied": True}, FAIRSEQ])
def test_steps_give_what_the_parallel_form_gives(mixer: str, options: dict[str, Any]) -> None:
    model = decoder(mixer, **options).eval()
    given = x if "start_token" not in options else torch.nn.functional.pad(x[:, :-1], (1, 0), value=2)
    with torch.no_grad():
        expected = model(given)[0]
        state, previous = model.initial_state(2), None
        for place in range(x.shape[1]):
            logits, state = model.step(previous, place, state)
            torch.testing.assert_close(logits, expected[:, place])
            previous = x[:, place]


def test_a_post_norm_layer_is_that_of_torch() -> None:
    """Against torch's own decoder-only layer, which is post-norm with ReLU by default, on scaled embeddings."""
    model = decoder(depth=1, **FAIRSEQ).eval()
    (layer,) = model.layers
    theirs = torch.nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True).double().eval()
    mine = dict(layer.named_parameters())
    names = {
        "self_attn.in_proj_weight": "mixer.qkv.weight",
        "self_attn.in_proj_bias": "mixer.qkv.bias",
        "self_attn.out_proj.weight": "mixer.proj.weight",
        "self_attn.out_proj.bias": "mixer.proj.bias",
        "linear1.weight": "expand.weight",
        "linear1.bias": "expand.bias",
        "linear2.weight": "contract.weight",
        "linear2.bias": "contract.bias",
        "norm1.weight": "mixer_norm.weight",
        "norm1.bias": "mixer_norm.bias",
        "norm2.weight": "ff_norm.weight",
        "norm2.bias": "ff_norm.bias",
    }
    theirs.load_state_dict({name: mine[own].detach() for name, own in names.items()})
    assert len(mine) == len(names)
    embedded = model.tokens.weight[x] * 12**0.5 + model.positions[:13]  # type: ignore[index]
    causal = torch.nn.Transformer.generate_square_subsequent_mask(13, dtype=torch.float64)
    expected = theirs(embedded, src_mask=causal) @ model.tokens.weight.T
    torch.testing.assert_close(model(x)[0], expected)


def test_positions_of_fairseq_have_all_sines_first_and_begin_at_two() -> None:
    table = fairseq_sinusoids(5, 6)
    for n in range(5):
        rates = [1.0, 10_000**-0.5, 10_000**-1.0]
        expected = [math.sin((n + 2) * rate) for rate in rates] + [math.cos((n + 2) * rate) for rate in rates]
        assert table[n].tolist() == pytest.approx(expected, abs=1e-6)


def test_chunks_and_checkpoints_change_nothing() -> None:
    found = []
    for options in ({}, {"ff_chunk": 4}, {"checkpointing": True}, {"ff_chunk": 5, "checkpointing": True}):
        model = decoder(**options)
        logits = model(x)[0]
        logits.square().sum().backward()
        found.append([logits, *(parameter.grad for parameter in model.parameters())])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_reversible_layers_have_the_gradients_of_the_plain_computation(dropout: float) -> None:
    model = decoder(reversible=True, dropout=dropout)
    torch.manual_seed(3)
    logits = model(x)[0]
    logits.square().sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()

    def plainly(hidden: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        first = second = hidden
        for layer in model.layers:
            first = first + layer.mix(second, mask)
            second = second + layer.dropout(layer.feed_forward(first))
        return (first + second) / 2, {}

    model._through = plainly  # type: ignore[method-assign]
    torch.manual_seed(3)
    expected = model(x)[0]
    expected.square().sum().backward()
    torch.testing.assert_close(logits, expected)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, msg=name)


def test_the_random_stream_moves_as_if_nothing_were_computed_again() -> None:
    model = decoder(reversible=True, dropout=0.3)
    torch.manual_seed(3)
    logits = model(x)[0]
    state = torch.get_rng_state()
    logits.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_memory_of_reversible_layers_does_not_grow_with_depth() -> None:
    def saved(depth: int, reversible: bool) -> int:
        model = decoder(depth=depth, reversible=reversible)
        sizes: list[int] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.numel() if not isinstance(tensor, torch.nn.Parameter) else 0)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(x)
        return sum(sizes)

    assert saved(6, True) == saved(2, True)
    assert saved(6, False) > 2 * saved(2, False)


def test_losses_come_out_and_have_no_place_in_reversible_layers() -> None:
    model = ARDecoder(lambda spec: Primal(spec, rank=4), **SHAPE)
    assert model(x)[1]["ksvd"].shape == (2,)
    with pytest.raises(ValueError, match="no place for the losses of a mixer: ksvd"):
        ARDecoder(lambda spec: Primal(spec, rank=4), **SHAPE, reversible=True)(x)


def test_reversible_layers_are_pre_norm() -> None:
    with pytest.raises(ReattendError, match="norm=pre"):
        decoder(reversible=True, norm="post")


def test_a_tied_head_is_the_embedding_and_too_long_a_sequence_is_refused() -> None:
    model = decoder(tied=True)
    assert model.head.weight is model.tokens.weight
    with pytest.raises(ValueError, match="have 17 tokens, the decoder has positions for 16"):
        model(torch.zeros(1, 17, dtype=torch.int64))


@pytest.mark.parametrize(
    ("table", "millions"),
    [
        (
            "aft/table2",
            {"softmax_12": 39.7, "softmax_24": 19.9, "aft_local_12": 41.2, "aft_local_24": 27.7, "aft_simple": 18.3},
        ),
        (
            "aft/table4",
            {"softmax_12": 38.6, "softmax_24": 19.4, "aft_local_12": 41.8, "aft_local_24": 30.4, "aft_simple": 17.8},
        ),
    ],
)
def test_parameters_are_those_that_the_paper_s_sizes_make(table: str, millions: dict[str, float]) -> None:
    """No total is published; Table 3's 9.6 and 0.6 million a layer say that AFT has three projections there."""
    for row, expected in millions.items():
        known = load_table(table)
        (column,) = known.columns
        config = compose_cell(row, column, cell_overrides(known, row, column, ["data=standin"])).config
        assert config is not None
        with torch.device("meta"):
            model = build_backbone(config, data_facts(config).shape)
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(expected, abs=0.06), row


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("backbone.options.reversible=true", "reversible=true has no place for losses, and attention=primal_plus has"),
        ("+backbone.options.start_token=3", "backbone.options.start_token: the data says it"),
        ("backbone.options.ff_chunk=0", "ff_chunk: expected int at least 1"),
        ("backbone.options.dropout=1.5", "dropout: expected float below 1"),
        ("+recipe.augmentation.mixup=0.8", "recipe.augmentation.mixup=0.8: char_lm/enwik8 has no images for it"),
    ],
)
def test_what_a_decoder_of_bytes_cannot_have_is_told(override: str, told: str) -> None:
    with pytest.raises(ReattendError, match=re.escape(told)):
        check_run(read(compose(["task=char_lm/enwik8", "attention=primal_plus", override])))
