"""Tables of TOML as the options of a pool, and several of them laid over each other."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import AWS, SSH, Host, Image, Nodes, Pool, Secret, Spec, Volume, Worker
from outrider.engine.config import tables
from outrider.engine.config.tables import POOL_KEYS, at, merged, pool_options
from outrider.engine.pool_options import DEFAULTS, PoolOptions
from outrider.errors import SpecError

WHOLE = """
name = "train-1"
provider = { name = "aws", region = "eu-west-1" }
nodes = { min = 0, max = 8, scale = "load" }
accelerator = "L4:2"
vcpus = 8
memory_gb = 32
disk_gb = 100
architecture = "x86_64"
allocation = "spot"
max_hourly_cost = 2.5
interconnect = "efa"
selection = "first"
worker = { concurrency = 2, kind = "thread" }
image = { pip = ["numpy"], env = { TOKEN = { secret = "A_TOKEN" }, PLAIN = "x" } }
plugins = [{ name = "huggingface" }]
on_loss = "restart"
checkpoints = "s3://bucket/checkpoints"
volumes = [{ url = "s3://bucket", mount = "/data" }]
boot_timeout = 300
replace_timeout = 60.5
lease = 60
max_lifetime = 3600
max_cost = 10
max_idle = 1800
sample_every = 0
console = "plain"
chaos = { mtbf = 15, seed = 7 }
keep = "log"
run = "train"
trackers = [{ kind = "webhook", url = "http://host/hook" }]
flush_timeout = 0
"""


def options(text: str) -> PoolOptions:
    return pool_options(tomllib.loads(text), "here")[1]


def test_every_option_of_a_pool_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "secret-1")
    made: Any = options(WHOLE)
    assert made.keys() == {*PoolOptions.__annotations__} & made.keys()
    assert tables._OPTIONS.keys() - made.keys() == {"specs"}, "an option with a form of its own that is not tried here"
    for other in PoolOptions.__annotations__.keys() - tables._OPTIONS.keys():
        assert pool_options({other: "x"}, "here") == ((), {other: "x"}), "`Pool` checks it"
    assert made["provider"] == AWS(region="eu-west-1")
    assert made["nodes"] == Nodes(min=0, max=8, scale="load")
    assert made["worker"] == Worker(2, kind="thread")
    assert made["image"] == Image(pip=["numpy"], env={"TOKEN": Secret("secret-1"), "PLAIN": "x"})
    assert made["volumes"] == [Volume("s3://bucket", mount="/data")]
    assert [plugin.name for plugin in made["plugins"]] == ["huggingface"]
    assert (made["chaos"].mtbf, made["chaos"].seed) == (15, 7)


def test_a_pool_is_made_of_it() -> None:
    specs, made = pool_options(tomllib.loads('nodes = [2, 4]\nworker = 3\nconsole = "silent"\n'), "here")
    assert Pool(*specs, **made)._settings.nodes == Nodes.of((2, 4))
    assert DEFAULTS.keys() <= POOL_KEYS


def test_hosts_and_several_kinds_of_machines() -> None:
    hosts = 'provider = { name = "ssh", hosts = ["a", { name = "b", port = 2222 }] }'
    assert options(hosts)["provider"] == SSH(hosts=["a", Host("b", port=2222)])
    specs, _ = pool_options(tomllib.loads('specs = [{ provider = "aws", vcpus = 8 }, { vcpus = 4 }]'), "here")
    assert specs == (Spec(provider=AWS(), vcpus=8), Spec(vcpus=4))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('acelerator = "L4"', "here: a pool has no option 'acelerator': did you mean 'accelerator'?"),
        ('provider = "amazon"', "or 'lambda' or 'vast' or 'hyperstack' or 'runpod', not 'amazon'"),
        ('provider = { name = "aws", regoin = "x" }', "here: AWS has no option 'regoin': did you mean 'region'?"),
        ('provider = { region = "x" }', "here: provider takes a name"),
        ('provider = { name = "ssh" }', "here: the provider ssh needs hosts"),
        ("nodes = { minimum = 1 }", "here: Nodes has no option 'minimum'"),
        ('image = { pip = "numpy" }', "here: image.pip takes a list"),
        ('image = { pipp = ["numpy"] }', "here: Image has no option 'pipp': did you mean 'pip'?"),
        ('image = "numpy"', "here: image takes a table"),
        ('image = { env = { A = { secret = "NOT_SET_ANYWHERE" } } }', "NOT_SET_ANYWHERE is not set"),
        ('plugins = "torch"', "here: plugins takes a list"),
        ('plugins = ["troch"]', "did you mean torch?"),
        ('plugins = [{ name = "torch", rank = 2 }]', "here: plugins.torch has no option 'rank'"),
        ("volumes = [1]", "here: volumes takes tables"),
        ("specs = [1]", "here: specs takes tables"),
        ('accelerator = { name = "A100", memory = "90GB" }', "here: A100 comes with 40 GB or 80 GB"),
        ('specs = [{ accelerator = { nam = "A100" } }]', "here: accelerator has no option 'nam'"),
        ("specs = [{ vcpu = 1 }]", "here: Spec has no option 'vcpu': did you mean 'vcpus'?"),
    ],
)
def test_what_is_wrong_is_told_with_the_table_and_what_was_meant(text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        options(text)
    assert told in str(caught.value)


_tables = st.dictionaries(
    st.sampled_from(["nodes", "lease", "keep", "image"]),
    st.integers(0, 3)
    | st.dictionaries(
        st.sampled_from(["name", "env", "pip"]), st.dictionaries(st.sampled_from("ab"), st.integers(0, 3))
    ),
    max_size=4,
)


@given(_tables, _tables)
def test_the_later_table_wins(first: dict[str, Any], second: dict[str, Any]) -> None:
    whole = merged(first, second)
    assert whole.keys() == first.keys() | second.keys()
    assert merged(whole) == whole
    assert merged({}, first) == merged(first, {}) == first
    for key, value in second.items():
        if isinstance(value, dict) and isinstance(whole[key], dict):
            assert all(whole[key][name] == each or name == "env" for name, each in value.items())
        else:
            assert whole[key] == value


def test_images_and_providers_are_joined() -> None:
    image = {"image": {"pip": ["numpy"], "env": {"A": "1", "B": "1"}}}
    over = {"image": {"apt": ["git"], "env": {"B": "2"}}}
    assert merged(image, over)["image"] == {"pip": ["numpy"], "apt": ["git"], "env": {"A": "1", "B": "2"}}
    assert merged(image, {"image": {"pip": ["rich"]}})["image"]["pip"] == ["rich"]
    aws = {"provider": {"name": "aws", "region": "eu-west-1"}}
    assert merged(aws, {"provider": {"profile": "work"}})["provider"] == aws["provider"] | {"profile": "work"}
    assert merged(aws, {"provider": "aws"}) == aws
    assert merged(aws, {"provider": "local"}) == {"provider": "local"}


def test_relative_paths_are_meant_from_the_files_folder_on(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    table = {
        "image": {"requirements": "r.txt", "lock": "/abs/uv.lock", "includes": ["lib", "some_module"]},
        "checkpoints": "runs",
    }
    moved = at(table, tmp_path)
    assert moved["image"] == {
        "requirements": str(tmp_path / "r.txt"),
        "lock": "/abs/uv.lock",
        "includes": [str(tmp_path / "lib"), "some_module"],
    }
    assert moved["checkpoints"] == str(tmp_path / "runs")
    assert at({"checkpoints": "s3://b/c"}, tmp_path) == {"checkpoints": "s3://b/c"}


def test_the_pool_of_the_guide_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Path(__file__).parents[3] / "docs" / "guides" / "scripts.md"
    (block,) = [each for each in guide.read_text().split("```") if each.lstrip().startswith("[pools.train]")]
    (tmp_path / "requirements.txt").write_text("numpy\n")
    monkeypatch.setenv("HF_TOKEN", "hf_1")
    table = at(tomllib.loads(block)["pools"]["train"], tmp_path)
    assert table.pop("ranks_per_node") == 1
    specs, made = pool_options(table, "the guide")
    assert Pool(*specs, **made)._settings.nodes == Nodes(4)
