from review_agents.probes.dependencies import Import, declared_names, is_declared, namespace_shared, unused
from review_agents.probes.prepared import Distribution, Prepared


def an_import(module: str) -> Import:
    return Import(
        path="a.py", module=module, line=1, function="", lazy=False, guarded=False, typing=False, conditional=False
    )


def test_an_import_is_declared_under_the_distributions_other_name():
    one = Distribution(
        name="a", requires=("PyYAML>=6", "python-dateutil ; python_version < '4'", "zope.event", 'x ; extra == "y"')
    )
    declared = declared_names(one)
    assert all(is_declared(name, declared, {}) for name in ("yaml", "dateutil", "zope.event", "x"))
    assert not is_declared("requests", declared, {})
    assert is_declared("cv2", {"opencv-contrib-python"}, {"cv2": ["opencv-contrib-python"]})


def test_a_namespace_shared_with_another_distribution_is_foreign():
    prepared = Prepared(distributions=(Distribution(name="zope.interface", import_packages=("zope.interface",)),))
    assert namespace_shared(an_import("zope.event"), prepared)
    assert not namespace_shared(an_import("zope.interface.adapter"), prepared)


def test_a_declared_dependency_that_nothing_imports_is_named_when_it_is_installed():
    one = Distribution(name="a", requires=("click", "rich", "colorama ; sys_platform == 'win32'"))
    provided = {"click": ["click"], "rich": ["rich"]}
    assert unused(one, [an_import("click")], provided) == ["rich"]
