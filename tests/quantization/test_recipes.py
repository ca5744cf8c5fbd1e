"""The registry of recipes."""

from __future__ import annotations

import pytest

from resetcli.base.errors import UsageError
from resetcli.quantization.recipes import RECIPES, get_recipe, with_exclusions


def test_rtn_is_nvfp4_for_weights_and_activations_and_leaves_the_cache_alone():
    config = get_recipe("rtn").config()
    on = {e["quantizer_name"]: e["cfg"] for e in config["quant_cfg"] if e.get("cfg")}
    assert set(on) == {"*weight_quantizer", "*input_quantizer"}
    for cfg in on.values():
        assert tuple(cfg["num_bits"]) == (2, 1)
        assert cfg["block_sizes"][-1] == 16 and tuple(cfg["block_sizes"]["scale_bits"]) == (4, 3)
        assert not cfg.get("rotate")
    assert {"quantizer_name": "*lm_head*", "enable": False} in config["quant_cfg"]


def test_each_call_gives_a_fresh_configuration():
    with_exclusions(get_recipe("rtn").config(), ["*down_proj"])
    assert "*down_proj.*" not in {e["quantizer_name"] for e in get_recipe("rtn").config()["quant_cfg"]}


def test_unknown_names_get_the_nearest_known():
    with pytest.raises(UsageError, match="did you mean rtn"):
        get_recipe("rtnn")
    assert all(name == recipe.name and recipe.summary for name, recipe in RECIPES.items())
