"""Plugins: found by entry point, merged by name, put on functions by `integrations`."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import pytest

from outrider import Plugin, SpecError, compute, integrations, plugins, silent
from outrider.engine.api.plugin import Ports, merged, one_listens
from outrider.engine.plugins import registry
from outrider.engine.plugins.torch import Torch


class Named(Plugin):
    def __init__(self, name: str, value: int = 0) -> None:
        self.name = name  # type: ignore[misc]
        self.value = value


class Third(Plugin):
    """As a third party's package would bring it."""

    name: ClassVar[str] = "third"


def test_plugins_are_found_by_their_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("third", f"{__name__}:Third", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.GROUP else [])
    found: Any = registry.Plugins()

    assert isinstance(found.third(), Plugin)
    assert found.third().name == "third"
    assert "third" in dir(found)


def test_an_unknown_plugin_names_what_there_is() -> None:
    unknown: Any = plugins
    with pytest.raises(AttributeError, match=r"did you mean torch\? There are: .*torch"):
        unknown.troch()
    with pytest.raises(AttributeError, match="is its package installed"):
        unknown.mxnet()
    assert not hasattr(plugins, "__wrapped__")


def test_a_functions_plugins_replace_the_pools_of_the_same_name() -> None:
    a, b, own = Named("a"), Named("b", 1), Named("b", 2)
    assert merged([a, b], [own]) == (a, own)
    assert merged([], []) == ()


class Bringing(Named):
    def __init__(self, name: str, *brought: Plugin) -> None:
        super().__init__(name)
        self.brought = brought

    def brings(self) -> Sequence[Plugin]:
        return self.brought


def test_brought_plugins_come_first_and_once() -> None:
    base, other = Named("base"), Named("other")
    first, second = Bringing("first", base), Bringing("second", base, other)
    assert merged([first, second], []) == (base, first, other, second)
    deep = Bringing("deep", second)
    assert merged([deep], []) == (base, other, second, deep)


def test_given_plugin_replaces_a_brought_one() -> None:
    brought, own = Named("base", 1), Named("base", 2)
    bringing = Bringing("first", brought)
    assert merged([own], [bringing]) == (own, bringing)
    assert merged([bringing], [own]) == (own, bringing)


def test_plugins_that_bring_each_other_come_to_an_end() -> None:
    first, second = Bringing("first"), Bringing("second")
    first.brought, second.brought = (second,), (first,)
    assert set(merged([first], [])) == {first, second}


def test_one_plugin_of_a_broadcast_may_listen() -> None:
    class Head(Named):
        ports: ClassVar[Ports] = "head"

    class Ranks(Named):
        ports: ClassVar[Ports] = "ranks"

    assert one_listens([]) == "none"
    assert one_listens([Named("a"), Ranks("b")]) == "ranks"
    with pytest.raises(SpecError, match=r"a and b .* @integrations\.a or @integrations\.b"):
        one_listens([Head("a"), Named("c"), Ranks("b")])


def test_a_plugins_defaults_do_nothing() -> None:
    plugin: Any = Plugin()
    assert (plugin.collective, plugin.fresh_process, plugin.ranks_per_node(None), plugin.env(None)) == (
        False,
        False,
        1,
        {},
    )
    assert (plugin.ports, plugin.brings()) == ("none", ())
    with plugin.session(None) as entered:
        assert entered is None


def test_integrations_put_plugins_on_the_function_bare_and_with_options() -> None:
    @compute
    @integrations.torch
    def bare() -> int:
        return 1

    @compute
    @integrations.torch(backend="gloo", ranks_per_node=2)
    def optioned() -> int:
        return 2

    @integrations.torch(backend="mpi")
    @compute
    def over() -> int:
        return 3

    @compute
    @silent
    @integrations.torch
    def wrapped() -> int:
        return 4

    @compute
    def without() -> int:
        return 5

    assert bare.plugins == (Torch(),)
    assert optioned.plugins == (Torch("gloo", 2),)
    assert over.plugins == (Torch("mpi"),)
    assert wrapped.plugins == (Torch(),)
    assert without.plugins == ()
    assert all(plugin.collective for plugin in bare.plugins)
    assert [bare.local(), over.local()] == [1, 3]


def test_every_plugin_has_its_decorator() -> None:
    @compute
    @integrations.keras("torch")
    @integrations.huggingface
    def function() -> None: ...

    assert [plugin.name for plugin in function.plugins] == ["huggingface", "keras"]
    assert {"accelerate", "huggingface", "jax", "keras", "tensorflow", "torch", "using"} <= set(dir(integrations))
    unknown: Any = integrations
    with pytest.raises(AttributeError, match="did you mean torch"):
        unknown.troch()


@pytest.mark.parametrize(("name", "arguments"), [
    ("dask", ()), ("joblib", ()), ("mig", ("1g.5gb",)), ("mps", ()), ("ray", ()), ("sklearn", ()),
])  # fmt: skip
def test_a_plugin_that_works_on_whole_nodes_is_no_decorator(name: str, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SpecError, match=rf"{name} plugin works on whole nodes.*Pool\(plugins=\[plugins\.{name}\("):
        getattr(integrations, name)(*arguments or (lambda: None,))


def test_the_last_of_several_decorators_with_one_plugin_wins() -> None:
    @compute
    @integrations.torch(backend="nccl")
    @integrations.torch(backend="gloo")
    def function() -> None: ...

    assert function.plugins == (Torch("nccl"),)
