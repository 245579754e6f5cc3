"""The variables that a plugin's guide lists are those that it sets, and the errors that a guide names those made."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from outrider import Peer, Plugin, Secret, instance_info, plugins
from outrider.actors.interfaces import GaveUp, Reason
from outrider.engine.serialization.error_translation import gave_up_error

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
VARIABLE = re.compile(r"^\| `([A-Z_]+\*?)` \|", re.MULTILINE)

DEEPSPEED = {"zero_stage": 3, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0}
USES: dict[str, list[Plugin]] = {  # page and section, and uses that make its plugin set all it can
    "torch": [plugins.torch()],
    "jax": [plugins.jax(2, cpu_devices=2)],
    "keras#TensorFlow": [plugins.tensorflow(2)],
    "keras#Keras": [plugins.keras()],
    "huggingface#Hugging Face": [plugins.huggingface(Secret("hf_0123"), home="/data", offline=True)],
    "huggingface#accelerate": [
        plugins.accelerate(distributed_type="FSDP", use_cpu=True, debug=True, enable_cpu_affinity=True),
        plugins.accelerate(distributed_type="DEEPSPEED", deepspeed_config=DEEPSPEED, parallelism_config={"tp_size": 2}),
    ],
}
IN_SESSION = {"huggingface#Hugging Face": {"ACCELERATE_USE_CPU"}}  # known only when torch is there


def section(name: str) -> str:
    page, _, title = name.partition("#")
    text = (GUIDES / f"{page}.md").read_text()
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0] if title else text


@pytest.mark.parametrize("name", USES)
def test_the_listed_variables_are_those_that_are_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = set(VARIABLE.findall(section(name)))
    here = Peer(1, 0, "here", "127.0.0.1", 29501)
    peers = (replace(here, rank=0, port=29500), here)
    info = replace(
        instance_info(), rank=1, world_size=2, local_rank=1, local_world_size=2, accelerators=4, peers=peers,
        hostname="here", head_port=29500,
    )  # fmt: skip
    found = {variable for plugin in USES[name] for variable in plugin.env(info)} | IN_SESSION.get(name, set())
    groups = {variable for variable in listed if variable.endswith("*")}

    def group(variable: str) -> str:
        return next((each for each in groups if variable not in listed and variable.startswith(each[:-1])), variable)

    assert {group(variable) for variable in found} == listed


def test_the_error_for_want_of_a_replacement_is_the_one_that_is_made() -> None:
    made = gave_up_error(GaveUp(Reason.NO_REPLACEMENT, ()), "train")
    shrinking = (GUIDES / "lost-nodes.md").read_text().partition("## Pools that may shrink")[2].partition("\n## ")[0]
    assert f"the broadcast ends with `{type(made).__name__}`" in " ".join(shrinking.split())
