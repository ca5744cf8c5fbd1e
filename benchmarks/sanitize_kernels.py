"""Small launches of every kernel, to be run under compute-sanitizer:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python benchmarks/sanitize_kernels.py
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck python benchmarks/sanitize_kernels.py \\
        --no-shared-copies

Shapes end inside tiles and chunks; each family runs a few of its configurations, clusters among them. Without torch's
caching every tensor is an allocation of its own, so that a read or write beyond it is seen. Prints the number of
launches and exits with 1 if a product is not finite.
"""

from __future__ import annotations

import argparse

import torch

from resetcli.cuda import activations
from resetcli.cuda.build import architecture
from resetcli.cuda.families import families, family

SHAPES = ((72, 272), (200, 1040), (130, 512))
LARGE = (4160, 1040, 300)
"""N, K and M of the family for many tokens: enough work for a grid that is cut evenly to use its rings again."""
MANY = (
    (2, 64, 1, 1, 0), (4, 64, 2, 1, 0), (2, 128, 1, 1, 0), (4, 128, 1, 1, 0), (2, 256, 1, 1, 0), (2, 256, 2, 1, 0),
    (4, 32, 1, 1, 132), (4, 64, 1, 1, 132), (2, 128, 1, 1, 132), (2, 256, 1, 1, 132),
    (4, 64, 1, 2, 0), (2, 256, 1, 2, 0), (2, 128, 2, 4, 0), (2, 256, 1, 2, 132), (4, 64, 1, 2, 132),
)  # fmt: skip
"""Its configurations there: groups, tokens, slices, side, ctas."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", help="names, separated by commas (default: all)")
    parser.add_argument("--configs", type=int, default=6, help="configurations of a family, M and shape")
    parser.add_argument(
        "--no-shared-copies", action="store_true",
        help="leave out CTAs that copy for each other: racecheck does not follow a barrier that another CTA arrives at",
    )  # fmt: skip
    options = parser.parse_args()
    chosen = None if options.families is None else set(options.families.split(","))
    arch = architecture(torch.cuda.get_device_capability())
    draw = torch.Generator("cuda").manual_seed(0)
    launches = wrong = 0
    for n, k in SHAPES:
        weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda", generator=draw)
        scale = torch.randint(1, 120, (n, k // 16), dtype=torch.uint8, device="cuda", generator=draw)
        scale = scale.view(torch.float8_e4m3fn)
        for each in families():
            if chosen is not None and each.name not in chosen:
                continue
            prepared = each.prepare(weight, scale)
            for m, mode in ((1, "w4a4"), (3, "w4a4"), (8, "w4a4"), (13, "w4a4"), (2, "w4a16")):
                if not each.supports(arch, m, n, k, torch.bfloat16, mode)[0]:
                    continue
                x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda", generator=draw)
                acts = activations.quantize(x, 1e-2, each.form_for(mode))
                configs = each.configs(m, n, k, 132, mode)
                if options.no_shared_copies:
                    configs = [config for config in configs if config.get("side", 1) == 1]
                for config in configs[:: max(1, len(configs) // options.configs)][: options.configs]:
                    out = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device="cuda")
                    each.run(config, acts, prepared, out, 1e-4, n=n, k=k)
                    torch.cuda.synchronize()
                    launches += 1
                    if not bool(torch.isfinite(out.cpu()).all()):
                        wrong += 1
                        print(f"not finite: {each.name} {config} M={m} {n}x{k} {mode}")
    if chosen is None or "wide" in chosen:
        more, bad = many_tokens(arch, draw, not options.no_shared_copies)
        launches, wrong = launches + more, wrong + bad
    if chosen is None:
        x, w = (torch.randn(3, 272, dtype=torch.bfloat16, device="cuda", generator=draw) for _ in range(2))
        for form, number in activations.FORMS.items():
            if number is not None:
                activations.quantize_rmsnorm(x, w[0], 1e-6, 1e-2, form)
                activations.quantize_silu(x, w, 1e-2, form)
                activations.quantize(x, 1e-2, form, rotate=True)
                launches += 3
        torch.cuda.synchronize()
    print(f"{launches} launches, {wrong} with outputs that are not finite")
    return int(wrong > 0)


def many_tokens(arch: str, draw: torch.Generator, shared: bool) -> tuple[int, int]:
    """Launches of the family for many tokens, of each way to cut the work, and how many were not finite."""
    n, k, m = LARGE
    wide = family("wide")
    if not wide.supports(arch, m, n, k, torch.bfloat16, "w4a4")[0]:
        return 0, 0
    weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda", generator=draw)
    scale = torch.randint(1, 120, (n, k // 16), dtype=torch.uint8, device="cuda", generator=draw)
    prepared = wide.prepare(weight, scale.view(torch.float8_e4m3fn))
    acts = activations.quantize(
        torch.randn(m, k, dtype=torch.bfloat16, device="cuda", generator=draw), 1e-2, wide.form_for("w4a4")
    )
    launches = wrong = 0
    for groups, tokens, slices, side, ctas in MANY:
        if side > 1 and not shared:
            continue
        config = {"groups": groups, "tokens": tokens, "slices": slices, "side": side, "ctas": ctas}
        out = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device="cuda")
        wide.run(config, acts, prepared, out, 1e-4, n=n, k=k)
        torch.cuda.synchronize()
        launches += 1
        if not bool(torch.isfinite(out.cpu()).all()):
            wrong += 1
            print(f"not finite: wide {config} M={m} {n}x{k}")
    return launches, wrong


if __name__ == "__main__":
    raise SystemExit(main())
