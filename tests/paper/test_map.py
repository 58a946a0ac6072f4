"""docs/paper-map.md and the equation numbers in the source are the same set."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def in_source() -> dict[int, set[str]]:
    """Files by equation number, from the comments that end a line of code."""
    found: dict[int, set[str]] = {}
    for path in (ROOT / "src/dvrl").rglob("*.py"):
        for line in path.read_text().splitlines():
            if match := re.search(r"# Eq\. (\d+)$", line):
                name = str(path.relative_to(ROOT / "src/dvrl"))
                found.setdefault(int(match[1]), set()).add(name)
    return found


def in_map() -> dict[int, set[str]]:
    """Files by equation number, from the table's rows `| 16 | content | files |`."""
    found = {}
    for line in (ROOT / "docs/paper-map.md").read_text().splitlines():
        if match := re.match(r"\| (\d+) \|.*\|(.*)\|$", line):
            found[int(match[1])] = set(re.findall(r"`([\w/]+\.py)", match[2]))
    return found


def test_every_equation_in_the_source_is_mapped_to_its_file_and_no_other():
    source, mapped = in_source(), in_map()
    commented = {number: files for number, files in mapped.items() if number in source}
    assert commented == source
    assert len(source) >= 12


def test_every_mapped_file_exists_and_every_mapped_function_is_in_it():
    text = (ROOT / "docs/paper-map.md").read_text()
    references = re.findall(r"`([\w/]+\.py)(?:: (\w+))?`", text)
    assert references
    for name, function in references:
        source = (ROOT / "src/dvrl" / name).read_text()
        assert not function or re.search(rf"(def|class) {function}\b", source), (name, function)


def test_all_numbered_equations_of_the_paper_have_a_row():
    assert set(in_map()) == set(range(1, 23))
