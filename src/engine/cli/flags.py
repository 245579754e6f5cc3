"""Options that several verbs have."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Flag = Parameter(negative="")
AsJson = Annotated[bool, Parameter(name="--json", negative="")]
