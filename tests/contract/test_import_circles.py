"""No two files import each other, directly or round a circle; imports for types alone do not count."""

import tomllib
from pathlib import Path

import grimp
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def test_no_files_import_each_other_in_a_circle():
    graph = grimp.build_graph("weft", exclude_type_checking_imports=True, cache_dir=None)
    names = sorted(graph.modules)
    place = {name: at for at, name in enumerate(names)}
    edges = [(place[one], place[other]) for one in names for other in graph.find_modules_directly_imported_by(one)]
    rows, columns = zip(*edges, strict=True)
    matrix = coo_array(([1] * len(edges), (rows, columns)), shape=(len(names), len(names)))
    _, circle = connected_components(matrix, connection="strong")
    members = {}
    for name, number in zip(names, circle.tolist(), strict=True):
        members.setdefault(number, []).append(name)
    circles = [each for each in members.values() if len(each) > 1]
    assert circles == [], "\n".join(map(str, circles))


def test_packages_import_one_way_even_for_types():
    """A reader follows imports for types, too; and nothing imports an extension but an extension."""
    graph = grimp.build_graph("weft", exclude_type_checking_imports=False, cache_dir=None)
    contracts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(each["layers"] for each in contracts["contracts"] if each["type"] == "layers")
    floor = {name.strip(): -at for at, names in enumerate(layers) for name in names.split("|")}

    def package(name):
        return name.split(".")[1] if "." in name else None

    wrong = [
        f"{one} imports {other}"
        for one in graph.modules
        for other in graph.find_modules_directly_imported_by(one)
        if package(one) in floor and package(other) in floor and package(one) != package(other)
        if floor[package(other)] >= floor[package(one)]
    ]
    assert wrong == []
