"""What the Ray plugin demands of a node, without Ray. tests/frameworks has it with Ray."""

from __future__ import annotations

import pytest

from outrider import SpecError
from outrider.engine.plugins.ray import check_tokens


@pytest.mark.parametrize("version", ["2.52.0", "2.60.1", "3.0.0.dev0"])
def test_a_ray_with_tokens_will_do(version: str) -> None:
    check_tokens(version)


@pytest.mark.parametrize("version", ["1.13.0", "2.9.3", "2.51.2"])
def test_a_ray_that_would_let_everybody_in_is_refused(version: str) -> None:
    with pytest.raises(SpecError, match=rf"has Ray {version}, .* install Ray 2.52 or newer there"):
        check_tokens(version)
