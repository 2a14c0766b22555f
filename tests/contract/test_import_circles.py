"""No two files import each other, directly or round a circle; imports for types alone do not count."""

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
