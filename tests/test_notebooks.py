"""What every notebook must be: one story, a tagged parameters cell, short cells, a cell that nbval compares."""

import ast

import nbformat
import pytest
from notebook_outputs import CHECKED, problems_of

from lad_utils.params import DEFAULTS, REPOSITORY, Study

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda p: p.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def code(notebook):
    return [c for c in notebook.cells if c.cell_type == "code"]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 10


def test_it_opens_with_a_title_that_asks_a_question(notebook):
    first = notebook.cells[0]
    assert first.cell_type == "markdown" and first.source.startswith("# ") and "?" in first.source.splitlines()[0]


def test_its_parameters_cell_is_tagged_and_opens_as_resolve_expects(notebook):
    tagged = [c for c in code(notebook) if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1 and tagged[0].source.startswith(DEFAULTS) and 'study = "smoke"' in tagged[0].source


def test_no_import_bears_the_name_of_a_parameter_which_would_overwrite_it(notebook):
    imported = set()
    for cell in code(notebook):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported |= {a.asname or a.name.split(".")[0] for a in node.names}
    assert not imported & set(Study.model_fields)


def test_outputs_are_stored_just_where_nbval_compares_them(notebook):
    assert problems_of(notebook) == []


def test_checked_outputs_are_one_to_three_lines(notebook):
    checked = [c for c in code(notebook) if CHECKED in c.metadata.get("tags", [])]
    assert all(1 <= len(o["text"].splitlines()) <= 3 for c in checked for o in c.outputs)


def test_cells_are_short_and_define_nothing_long(notebook):
    for cell in code(notebook):
        assert len(cell.source.splitlines()) <= 25 and "def " not in cell.source
