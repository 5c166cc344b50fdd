"""What the summary of a run says of the settings that its attention takes."""

from __future__ import annotations

import pytest

from reattend.config import compose, read
from reattend.train.summary import _settings

OWN_WINDOW = "window of the mechanism's own choice (assumed)"
SCALES = "scales [1, 1, 2, 2, 4, 4, 8, 8] (primal-dual paper, Appendix A)"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["attention=softmax"], []),
        (["attention=pool_mean"], ["pooled windows of 4 tokens (assumed)"]),
        (["attention=pool_conv", "attention.options.scaled_heads.scales=3"], ["pooled windows of 3 tokens (chosen)"]),
        (["attention=bn_sh"], [SCALES, "beta 1.0 (assumed)"]),
        (["attention=bn", "beta=learnable"], ["beta starts at 1.0 (chosen)"]),
        (["attention=bn", "attention.options.recenter.beta=0.3"], ["beta 0.3 (chosen)"]),
        (["attention=sh", "scales=none"], ["scales none: whole heads (chosen)"]),
        (["attention=longformer"], [OWN_WINDOW]),
        (["attention=sparse", "window.value=8"], ["window 8 (chosen)"]),
        (["attention=layers", "attention.default=sh", "attention.at={-1: sparse}"], [SCALES, OWN_WINDOW]),
    ],
)
def test_settings_are_those_that_the_attention_takes(overrides: list[str], told: list[str]) -> None:
    assert _settings(read(compose(overrides)), overrides) == told
