"""What cloud-init is told: readable by YAML as it was meant, the lease first, within EC2's limit."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.aws.catalogue import VENDOR
from outrider.providers.cloud import machine_start
from outrider.providers.cloud.machine_start import GRACE_S, LEASE, HostKey, host_key, user_data

KEY = HostKey("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n", "ssh-ed25519 AAAA")
CLIENT = "ssh-ed25519 BBBB"


def config(**changes: Any) -> dict[str, Any]:
    text = user_data(VENDOR, **{"host_key": KEY, "client_key": CLIENT, "user": "ubuntu", "lease_s": 120.0, **changes})
    first, _, rest = text.partition("\n")
    assert first == "#cloud-config"
    loaded = yaml.safe_load(text)
    assert loaded == json.loads(rest)
    assert isinstance(loaded, dict)
    return loaded


def arming(config: dict[str, Any]) -> list[str]:
    """The arguments of ``lease.sh arm``."""
    words: list[str] = config["bootcmd"][0]
    assert words[:2] == ["sh", "-c"]
    assert (words[4], words[5]) == (LEASE.rpartition("/")[0], machine_start.lease_script())
    return words[6:]


def test_the_lease_comes_first() -> None:
    made = config()
    assert next(iter(made)) == "bootcmd"
    assert arming(made) == ["120", str(GRACE_S), "0"]


@pytest.mark.parametrize(
    ("lease_s", "lifetime_s", "told"), [(0.2, None, ["1", "0"]), (9.5, 0.1, ["10", "1"]), (60, 3600.4, ["60", "3601"])]
)
def test_the_script_counts_whole_seconds(lease_s: float, lifetime_s: float | None, told: list[str]) -> None:
    lease, _, lifetime = arming(config(lease_s=lease_s, max_lifetime_s=lifetime_s))
    assert [lease, lifetime] == told


def test_the_host_key_is_ours_and_the_only_one() -> None:
    made = config()
    assert made["ssh_keys"] == {"ed25519_private": KEY.private, "ed25519_public": KEY.public}
    assert made["ssh_deletekeys"] is True
    assert made["ssh_genkeytypes"] == ["ed25519"]


@pytest.mark.parametrize(("user", "refused"), [("ubuntu", True), ("root", False)])
def test_the_pools_key_lets_in_its_user(user: str, refused: bool) -> None:
    made = config(user=user)
    assert made["users"][0] == "default"
    assert (made["users"][1]["name"], made["users"][1]["ssh_authorized_keys"]) == (user, [CLIENT])
    assert made["disable_root"] is refused
    assert made["ssh_pwauth"] is False


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=80))
def test_arguments_are_never_interpreted(text: str) -> None:
    made = config(user=text, client_key=text)
    assert made["users"][1]["name"] == text
    assert made["users"][1]["ssh_authorized_keys"] == [text]


def test_a_real_one_leaves_half_of_the_limit() -> None:
    text = user_data(VENDOR, host_key=host_key(), client_key=CLIENT, user="ec2-user", lease_s=120, max_lifetime_s=86400)
    assert len(text) < VENDOR.user_data_bytes / 2


def test_further_commands_come_after_the_lease_at_each_boot() -> None:
    text = user_data(VENDOR, host_key=KEY, client_key=CLIENT, user="ubuntu", lease_s=120, at_boot=["echo hello"])
    first, second = json.loads(text.partition("\n")[2])["bootcmd"]
    assert first[3] == "outrider-lease"
    assert second == ["sh", "-c", "echo hello"]


def test_too_long_user_data_is_refused() -> None:
    with pytest.raises(ValueError, match="EC2 takes 16384"):
        config(client_key="x" * 12_000)
