import pytest

from tools import normalise


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def test_neighbouring_streams_are_merged_and_others_kept_in_order():
    figure = {"output_type": "display_data", "data": {"text/plain": "Figure"}, "metadata": {}, "transient": {"id": "x"}}
    raw = [stream("a\n"), stream("b\n"), figure, stream("c\n"), stream("d\n", "stderr")]
    assert normalise.outputs(raw, 1) == [
        stream("a\nb\n"),
        {"output_type": "display_data", "data": {"text/plain": "Figure"}, "metadata": {}},
        stream("c\n"),
        stream("d\n", "stderr"),
    ]
    assert raw[0] == stream("a\n")


def test_widget_views_go_and_what_stands_beside_them_stays():
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "f00"}}
    raw = [
        {"output_type": "display_data", "data": dict(view), "metadata": {}},
        {"output_type": "display_data", "data": {**view, "text/html": "<b>8</b>"}, "metadata": {}},
        {"output_type": "execute_result", "data": {"text/plain": "3"}, "metadata": {}, "execution_count": 41},
    ]
    assert normalise.outputs(raw, 7) == [
        {"output_type": "display_data", "data": {"text/html": "<b>8</b>"}, "metadata": {}},
        {"output_type": "execute_result", "data": {"text/plain": "3"}, "metadata": {}, "execution_count": 7},
    ]


@pytest.mark.parametrize("text", ["0x3C00", "code 0x3C000000", "at 0x1F position", "1 at 0x"])
def test_bit_patterns_are_no_addresses(text):
    expected = 1 if text == "at 0x1F position" else 0
    output = {"output_type": "execute_result", "data": {"text/plain": " " + text}, "metadata": {}}
    assert len(normalise.problems([output])) == expected


def test_stderr_and_addresses_are_problems():
    assert "UserWarning: careful" in normalise.problems([stream("\nUserWarning: careful\n", "stderr")])[0]
    assert "an address" in normalise.problems([stream("<Foo at 0x7f00aa>")])[0]


def test_the_digest_sees_outputs_and_counts_but_no_sources():
    cell = {"cell_type": "code", "source": "x", "execution_count": 1, "outputs": [stream("a")]}
    base = normalise.digest({"cells": [cell]})
    assert normalise.digest({"cells": [cell | {"source": "y"}]}) == base
    assert normalise.digest({"cells": [cell | {"outputs": [stream("b")]}]}) != base
    assert normalise.digest({"cells": [cell | {"execution_count": 2}]}) != base
