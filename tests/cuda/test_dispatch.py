"""Which kernel is chosen: tables before cost model, user's before shipped, stale and damaged tables, buckets."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from resetcli.base.errors import ResetError
from resetcli.cuda import dispatch as module
from resetcli.cuda import kernel_table
from resetcli.cuda.activations import FORMS, UNQUANTIZED
from resetcli.cuda.build import ARCHITECTURES, Build, kernels_folder
from resetcli.cuda.dispatch import Dispatcher, Plan, Target, layouts_for, supported
from resetcli.cuda.families import families, family
from resetcli.cuda.families.base import EARLY, LATE, Family
from resetcli.cuda.kernel_table import (
    Entry,
    KernelTable,
    Key,
    Timed,
    bucket,
    buckets,
    file_name,
    load_table,
    save_table,
    user_path,
)

BF16 = torch.bfloat16
H200 = Target("NVIDIA H200", "sm_90a", 132)


class Counted(Family):
    """A family for M up to ``most``, whose configurations are widths; it computes nothing here."""

    def __init__(self, name: str, most: int, *, layout: str = "rows", cost: tuple[float, float] = (1.0, 1.0)):
        self.name, self.most, self.layout, self.form = name, most, layout, "int8"
        self.costs = {"w4a4": ((1, sum(cost)), (2, cost[0] + 2 * cost[1]))}

    def supports(self, arch, m, n, k, dtype, activations):
        return (m <= self.most, "" if m <= self.most else f"M={m} is over {self.most}")

    def configs(self, m, n, k, multiprocessors, activations):
        return [{"width": 8, "tokens": m}, {"width": 16, "tokens": m}]

    def builds(self, arch):
        return [Build("f.cu")]

    def prepare(self, weight, scale):
        return weight, scale

    def run(self, config, acts, prepared, out, alpha, *, n, k, pdl=False):
        raise AssertionError("not run here")


SMALL, LARGE = Counted("small", 8, cost=(1.0, 0.2)), Counted("large", 10**6, layout="tiles", cost=(1.5, 0.05))


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def chooser(notes, kernel_cache, tmp_path, monkeypatch) -> Dispatcher:
    """A dispatcher over two families, with empty tables of the user and of the package."""
    monkeypatch.setattr(module, "shipped_path", lambda device: tmp_path / "shipped" / file_name(device))
    return Dispatcher((SMALL, LARGE), notes.append)


def table(device: str = H200.name, **choices: list[Timed]) -> KernelTable:
    """Entries for 4096x4096 in BF16 and W4A4; names are "m4" and so on."""
    entries = {
        Key(int(name[1:]), 4096, 4096, "bfloat16", "w4a4"): Entry(value, 20.0) for name, value in choices.items()
    }
    return KernelTable(device, entries)


def plan(chooser: Dispatcher, m: int, n: int = 4096, **more) -> Plan:
    return chooser.plan(more.pop("where", H200), m, n, 4096, BF16, "w4a4", **more)


def test_buckets():
    assert [bucket(m) for m in (1, 2, 7, 8, 9, 16, 17, 33, 65, 128, 129, 256, 257, 5000)] == [
        1, 2, 7, 8, 16, 16, 32, 64, 128, 128, 256, 256, 512, 8192,
    ]  # fmt: skip
    assert buckets(128) == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128]
    assert buckets(300)[-2:] == [256, 512] and buckets(1) == [1]
    assert all(m <= bucket(m) and bucket(bucket(m)) == bucket(m) for m in range(1, 3000))


def test_a_cost_model_chooses_without_tables_and_says_so_once(chooser, notes):
    assert plan(chooser, 1).family is SMALL and plan(chooser, 1).config == {"width": 8, "tokens": 1}
    assert plan(chooser, 5).family is LARGE and plan(chooser, 100).source == "cost model"
    assert plan(chooser, 1, 8192).us is None and not plan(chooser, 1).slower_than_bf16
    assert len(notes) == 1 and "cost model" in notes[0] and "--tune" in notes[0] and "H200" in notes[0]
    plan(chooser, 1, where=Target("NVIDIA A100", "sm_80", 108))
    assert len(notes) == 2
    assert plan(chooser, 3).pdl and not plan(chooser, 3, where=Target("NVIDIA A100", "sm_80", 108)).pdl


def test_the_users_table_goes_before_the_shipped_one(chooser, notes):
    save_table(table(m4=[Timed("large", {"width": 16, "tokens": 4}, False, 9.0)]), module.shipped_path(H200.name))
    shipped = plan(chooser, 4)
    assert (shipped.family, shipped.config["width"], shipped.source, shipped.us) == (LARGE, 16, "shipped table", 9.0)
    save_table(table(m4=[Timed("small", {"width": 16, "tokens": 4}, True, 8.0)]), user_path(H200.name))
    assert plan(chooser, 4) is shipped  # fixed until tables are read anew
    chooser.forget()
    mine = plan(chooser, 4)
    assert (mine.family, mine.config["width"], mine.pdl, mine.source) == (SMALL, 16, True, "user table")
    assert mine.bf16_us == 20.0 and not mine.slower_than_bf16 and not notes
    assert mine.form == "int8"
    assert chooser.plan(H200, 4, 4096, 4096, BF16, "w4a16").source == "cost model"  # other activations


def test_a_measured_choice_that_varies_gives_way_to_the_cost_models(notes, kernel_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "shipped_path", lambda device: tmp_path / "shipped" / file_name(device))
    wide = family("wide")
    configs = wide.configs(16, 4096, 4096, 132, "w4a4")
    varying = next(config for config in configs if not wide.steady(config, 16, 4096, 4096, 132))
    other = next(config for config in configs[1:] if wide.steady(config, 16, 4096, 4096, 132))
    for measured, runs in ((varying, configs[0]), (other, other)):
        save_table(table(m16=[Timed("wide", measured, 1, 9.0)]), user_path(H200.name))
        assert plan(Dispatcher((wide,), notes.append), 16).config == runs


@pytest.mark.parametrize("activations", ["w4a4", "w4a16"])
def test_prefill_stays_with_the_family_that_was_measured_fastest(activations, notes, kernel_cache):
    blind = Dispatcher(notify=notes.append)
    for m in (128, 1024, 2048, 4096, 1 << 16):
        where = Target("no table", "sm_90a", 132)
        assert blind.plan(where, m, 4096, 4096, BF16, activations, ("tiles",)).family.name == "wide"


def test_layouts_at_hand_decide_among_measured_choices(chooser):
    choices = [
        Timed("large", {"width": 16, "tokens": 8}, False, 9.0),
        Timed("small", {"width": 16, "tokens": 8}, False, 9.5),
    ]
    save_table(table(m8=choices), user_path(H200.name))
    assert plan(chooser, 8).family is LARGE
    assert plan(chooser, 8, layouts=("rows",)).family is SMALL
    with pytest.raises(ResetError, match=r"M=9, .* large: it needs the weight in layout tiles"):
        plan(chooser, 9, layouts=("rows",))


def test_layouts_chosen_for_decoding_serve_prefill_where_they_can(chooser):
    args = (H200, [1], [16], 4096, 4096, BF16, "w4a4", chooser)
    assert layouts_for(*args) == ("rows", "tiles")  # small cannot do M = 16
    assert layouts_for(H200, [8], [1, 16], 4096, 4096, BF16, "w4a4", chooser) == ("tiles",)
    assert layouts_for(H200, [1], [4], 4096, 4096, BF16, "w4a4", chooser) == ("rows",)


def test_a_table_of_another_version_costs_speed_at_most(chooser):
    stale = [Timed("gone", {"a": 1}, False, 1.0), Timed("small", {"width": 99}, True, 2.0)]
    save_table(table(m2=stale, m16=[Timed("large", {"width": 16, "tokens": 16}, False, 3.0)]), user_path(H200.name))
    assert plan(chooser, 2).family is SMALL and plan(chooser, 2).config == {"width": 8, "tokens": 2}
    between = plan(chooser, 11)  # the bucket's configuration is not one for 11 tokens: the family's own first
    assert between.family is LARGE and between.config == {"width": 8, "tokens": 11} and between.source == "user table"
    assert plan(chooser, 16).config["width"] == 16


def test_a_shape_that_bf16_does_faster_is_marked(chooser):
    save_table(table(m4=[Timed("small", {"width": 8, "tokens": 4}, False, 21.0)]), user_path(H200.name))
    assert plan(chooser, 4).slower_than_bf16


@pytest.mark.parametrize("text", ["{", '{"format": 9, "device": "x", "entries": []}', '{"format": 1}',
                                  '{"format": 2, "device": "x", "entries": [{"m": "four"}]}', "[]",
                                  '{"format": 1, "device": "x", "entries": []}'])  # fmt: skip
def test_a_damaged_table_is_told_and_ignored(chooser, notes, text):
    path = user_path(H200.name)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert plan(chooser, 1).source == "cost model"
    assert len(notes) == 2 and str(path) in notes[0] and "ignored" in notes[0]
    save_table(table(m1=[Timed("large", {"width": 8, "tokens": 1}, False, 1.0)]), path)
    chooser.forget()
    assert plan(chooser, 1).source == "user table"


def test_tables_survive_the_disk_and_add_up(kernel_cache):
    path = user_path("NVIDIA H200")
    assert path.name == "nvidia-h200.json" and load_table(path) is None
    one = table(m1=[Timed("small", {"width": 8, "split": [1, 2]}, True, 1.25)])
    two = table(m1=[Timed("large", {"width": 16}, False, 1.0)], m2=[Timed("small", {}, False, 3.0)])
    save_table(one, path)
    assert load_table(path) == one
    save_table(two, path)
    merged = load_table(path)
    assert merged is not None and merged.entries == two.entries  # the newer figure of M = 1
    save_table(one, path)
    merged = load_table(path)
    assert merged is not None and merged.entries == {**two.entries, **one.entries}
    assert json.loads(path.read_text())["format"] == kernel_table.FORMAT
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_when_the_next_launch_may_start_is_kept(tmp_path):
    """0, EARLY and LATE, and nothing else."""
    path = tmp_path / "t.json"
    save_table(table(m1=[Timed("small", {}, pdl, 1.0 + pdl) for pdl in (0, EARLY, LATE)]), path)
    text = path.read_text()
    found = load_table(path)
    assert found is not None and [choice.pdl for choice in next(iter(found.entries.values())).choices] == [0, 1, 2]
    for wrong in ("3", "-1", "1.5", '"late"', "null"):
        path.write_text(text.replace('"pdl": 2', f'"pdl": {wrong}'))
        with pytest.raises(ResetError, match="damaged .*pdl is"):
            load_table(path)


def _save_many(job: tuple[Path, int]) -> None:
    path, m = job
    for _ in range(10):
        save_table(table(**{f"m{m}": [Timed("small", {"width": 8}, False, float(m))]}), path)
        assert load_table(path) is not None  # never half a table


def test_writers_at_once_never_leave_half_a_table(tmp_path):
    path = tmp_path / "t.json"
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(_save_many, [(path, 1), (path, 2)]))
    found = load_table(path)
    assert found is not None and found.entries


@pytest.mark.parametrize(
    ("change", "words"),
    [({"m": 0}, "M=0 has nothing"), ({"k": 4104}, "K=4104 is not a positive multiple of 16"), ({"n": 0}, "N=0"),
     ({"dtype": torch.float32}, "bfloat16 or float16, not float32"), ({"activations": "w8a8"}, "unknown activations")],
)  # fmt: skip
def test_what_no_family_supports(chooser, change, words):
    args = {"m": 1, "n": 4096, "k": 4096, "dtype": BF16, "activations": "w4a4"} | change
    assert supported("sm_90a", **args) == (False, supported("sm_90a", **args)[1])
    assert words in supported("sm_90a", **args)[1]
    with pytest.raises(ResetError, match=words):
        chooser.plan(H200, *args.values())


real = pytest.mark.parametrize("each", families(), ids=lambda each: each.name)


@real
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_families_keep_their_promises(each, arch):
    """Names, configurations that JSON keeps, builds that name files that are there; reasons where unsupported."""
    assert family(each.name) is each
    assert each.form_for("w4a4") in set(FORMS) - set(UNQUANTIZED) and each.form_for("w4a16") in UNQUANTIZED
    supports = {}
    for activations in ("w4a4", "w4a16"):
        for m in (1, 2, 3, 5, 8, 16, 33, 64, 128, 300):
            for n, k in ((4096, 4096), (8, 16), (24, 48), (151936, 4096), (248320, 2560), (5120, 25600)):
                can, why = each.supports(arch, m, n, k, BF16, activations)
                supports[m, n, k, activations] = can
                assert can or why
                if not can:
                    continue
                configs = each.configs(m, n, k, 132, activations)
                assert configs and all(json.loads(json.dumps(config)) == config for config in configs)
                assert len({json.dumps(config, sort_keys=True) for config in configs}) == len(configs)
    builds = each.builds(arch)
    assert any(supports.values()) or not builds
    assert all((kernels_folder() / build.source).is_file() for build in builds)
    assert len(set(builds)) == len(builds)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_ordinary_product_has_a_family(arch):
    for activations in ("w4a4", "w4a16"):
        for m in (1, 3, 8, 16, 33, 64, 128, 2048):
            for n, k in ((4096, 4096), (151936, 4096), (248320, 2560), (24, 48)):
                can, why = supported(arch, m, n, k, BF16, activations)
                assert can, f"M={m} {n}x{k} {activations}: {why}"


def test_an_unknown_family_is_named():
    with pytest.raises(ResetError, match="unknown kernel family 'gemw'"):
        family("gemw")
