"""Files of a trace as people write them: what is wrong is refused with its place and a way out."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from aliquot.cli.simulate_app import explain, simulate_app
from aliquot.model.errors import InvalidValueError
from aliquot.simulate.openb import read_nodes as read_openb_nodes
from aliquot.simulate.trace import GANGS as GANG_COLUMNS
from aliquot.simulate.trace import NODES as NODE_COLUMNS
from aliquot.simulate.trace import QUEUES as QUEUE_COLUMNS
from aliquot.simulate.trace import read_gangs, read_nodes, read_queues
from simulate.test_openb import NODES as OPENB_NODES
from simulate.test_openb import PODS as OPENB_PODS

app = typer.Typer()
app.add_typer(simulate_app, name="simulate")
app.command()(explain)

READERS = {"nodes": read_nodes, "gangs": read_gangs, "queues": read_queues}
NODES = "name,gpus\na,2\nb,2\n"
GANGS = "gang,submitted,seconds\ng,0,60\n"


def refused(folder: Path, kind: str, text: str) -> str:
    path = folder / f"{kind}.csv"
    path.write_text(text)
    with pytest.raises(InvalidValueError) as caught:
        READERS[kind](path)
    return str(caught.value).removeprefix(f"{path}")


def trace(folder: Path, **texts: str) -> list[str]:
    """The options for files with these texts."""
    words = []
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)
        words += [f"--{name}", str(folder / f"{name}.csv")]
    return words


def wrong_use(*words: str) -> str:
    with pytest.raises(InvalidValueError) as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("column", "value", "allowed"),
    [
        ("gpus", "2.5", "Write a whole number from 0 to 64."),
        ("gpus", "-4", "Write a whole number from 0 to 64."),
        ("gpus", "inf", "Write a whole number from 0 to 64."),
        ("gpus", "1000", "Write a whole number from 0 to 64."),
        ("gpus", "many", "Write a whole number from 0 to 64."),
        ("gpus", "", "Write a whole number from 0 to 64."),
        ("name", "", "Write a name."),
        ("strength", "nan", "or leave it empty for 0."),
        ("cpu_milli", "-1", "Write a whole number from 0 to 1000000000, or leave it empty for 0."),
        ("links", "nvlink", "Write nvswitch, nvlink-pairs or pcie, or leave it empty."),
    ],
)
def test_a_wrong_value_of_a_node_is_refused(
    tmp_path: Path, column: str, value: str, allowed: str
) -> None:
    cells = {"name": "a", "gpus": "2", column: value}
    said = refused(tmp_path, "nodes", f"{','.join(cells)}\n{','.join(cells.values())}\n")
    shown = repr(value) if value else "empty"
    assert said.startswith(f", line 2, column {column}: it cannot be {shown}\n")
    assert said.endswith(allowed)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("gang", ""),
        ("submitted", ""),
        ("submitted", "nan"),
        ("submitted", "inf"),
        ("submitted", "-1"),
        ("seconds", "1e300"),
        ("members", "1.5"),
        ("members", "1000000000"),
        ("gpus", "2.5"),
        ("milli", "0"),
        ("milli", "1001"),
        ("kind", "half"),
        ("gpu_memory_mib", "-5"),
        ("thrifty", "maybe"),
        ("min_strength", "nan"),
        ("min_strength", "-1"),
        ("alone", "yes"),
        ("priority", "1.5"),
    ],
)
def test_a_wrong_value_of_a_gang_is_refused(tmp_path: Path, column: str, value: str) -> None:
    cells = {"gang": "g", "submitted": "0", "seconds": "60", column: value}
    said = refused(tmp_path, "gangs", f"{','.join(cells)}\n{','.join(cells.values())}\n")
    shown = repr(value) if value else "empty"
    assert said.startswith(f", line 2, column {column}: it cannot be {shown}")
    assert "\n  Write " in said


@pytest.mark.parametrize(
    ("head", "lines", "wrong"),
    [
        ("kind,milli", "whole,500", "column milli: it cannot be '500' for kind whole"),
        ("gpus,min_strength", "0,5", "column min_strength: it cannot be '5' where gpus is 0"),
        ("gpus,label", "0,x", "column label: it cannot be 'x' where gpus is 0"),
        ("alone,with", "1,x", "column with: it cannot be 'x' where alone is 1"),
        ("apart_from,with", "y|x,x", "column with: it cannot be 'x': apart_from names it too"),
        ("gpus,milli", "0,500", "column milli: it cannot be '500' where gpus is 0"),
        ("queue", "a\ng,0,60,b", "line 3, column queue: it cannot be 'b': gang 'g' is in line 2"),
        ("ran", "30\ng,0,60,40", "line 3, column ran: it cannot be '40'"),
        ("ran", "30\ng,9,60,30", "line 3, column submitted: it cannot be '9'"),
        ("gpus,most", "1,4\ng,0,60,2,", "line 2, column most: it cannot be '4': the gang's"),
    ],
)
def test_what_does_not_go_together_in_a_gang_is_refused(
    tmp_path: Path, head: str, lines: str, wrong: str
) -> None:
    text = f"gang,submitted,seconds,{head}\ng,0,60,{lines}\n"
    assert wrong in refused(tmp_path, "gangs", text)


def test_below_its_first_line_a_gang_need_not_say_it_again(tmp_path: Path) -> None:
    path = tmp_path / "gangs.csv"
    path.write_text("gang,submitted,seconds,gpus,queue\ng,5,60,2,a\ng,,,1,\ng,5.0,60,1,a\n")
    (one,) = read_gangs(path)
    assert [member.gpus for member in one.gang.members] == [2, 1, 1]
    assert (one.gang.submitted, one.gang.queue) == (5, "a")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("a,nan,,", "column weight: it cannot be 'nan'"),
        ("a,1,5,4", "column quota_gpus: it cannot be '5': limit_gpus is 4"),
        ("a,1,,,9", "line 2: it has 5 cells, and there are 4 columns: '9' is in none"),
        ("", "has no queues: there is nothing below its first line"),
    ],
)
def test_a_wrong_queue_is_refused(tmp_path: Path, line: str, wrong: str) -> None:
    assert wrong in refused(tmp_path, "queues", f"name,weight,quota_gpus,limit_gpus\n{line}\n")


@pytest.mark.parametrize(
    ("kind", "text", "wrong"),
    [
        ("nodes", "", "is empty"),
        ("nodes", "name,gpus\n", "has no nodes: there is nothing below its first line"),
        ("gangs", "gang,submitted,seconds\n\n", "has no gangs"),
        ("nodes", "name,gpus\na,1\na,1\n", "line 3, column name: it cannot be 'a': line 2 has"),
        ("nodes", "name,gpus,gpus\na,1,1\n", "column gpus is there twice"),
        ("nodes", "name,gpus,\na,1,\n", "column without a name is not known"),
        ("nodes", "name,gpu\na,1\n", "column gpu is not known: did you mean gpus?"),
        ("queues", "name,quota_gpu\na,1\n", "quota_gpu is not known: did you mean quota_gpus?"),
        ("queues", "name,colour\na,red\n", "colour is not known\n  There are: name, weight"),
        ("gangs", "gang,submitted\ng,0\n", "has no column seconds"),
    ],
)
def test_a_file_that_is_no_list_is_refused(
    tmp_path: Path, kind: str, text: str, wrong: str
) -> None:
    assert wrong in refused(tmp_path, kind, text)


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_bytes("name,gpus\nkäfer,1\n".encode("latin-1"))
    with pytest.raises(
        InvalidValueError, match=r"nodes.csv cannot be read: it is not UTF-8 \(byte 12"
    ):
        read_nodes(path)


def test_a_mark_at_the_start_and_spaces_are_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("\ufeffname, gpus , model\r\n a, 2, H100 \r\n", encoding="utf-8")
    (node,) = read_nodes(path)
    assert (node.name, node.gpus, node.model) == ("a", 2, "H100")


def test_openbs_lists_are_read_with_the_same_care(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(OPENB_NODES.replace("8192,2", "8192,2.5"))
    with pytest.raises(InvalidValueError, match=r"line 2, column gpu: it cannot be '2.5'"):
        read_openb_nodes(path)


def test_two_formats_in_one_run_are_refused(tmp_path: Path) -> None:
    mixed = trace(tmp_path, nodes=OPENB_NODES, pods=GANGS)
    assert "nodes.csv is a list of openb, and" in wrong_use("simulate", *mixed)
    mixed = trace(tmp_path, nodes=NODES, pods=OPENB_PODS)
    assert "pods.csv is a list of openb, and" in wrong_use("simulate", *mixed)
    mixed = trace(tmp_path, nodes=NODES, pods=GANGS)
    assert "explain accepts only openb's list of pods" in wrong_use("explain", *mixed)


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        ("on", "3 nodes: too few of the GPUs that it may use (on z/)"),
        ("models", "3 nodes: another GPU model (there are: H100, L40S)"),
        ("gpus", "3 nodes: fewer GPUs than asked for (there are 4 at most)"),
        ("gpu_memory_mib", "not enough GPU memory (it asks for 97.6 GiB, and there is 80 GiB at"),
        ("cpu_milli", "3 nodes: their CPU is not known, and it asks for 100"),
        (
            "memory_mib",
            "3 nodes: not enough memory of the node (it asks for 97.6 GiB, and there is 64",
        ),
    ],
)
def test_a_gang_that_can_never_run_is_told_what_the_nodes_lack(
    tmp_path: Path, asks: str, why: str
) -> None:
    value = {"models": "V100", "gpus": "8", "on": "z"}.get(asks, "100000")
    words = trace(
        tmp_path,
        nodes="name,gpus,model,gpu_memory_mib,memory_mib\n"
        "a,4,H100,81920,65536\nb,4,H100,81920,65536\nc,2,L40S,40960,\n",
        pods=f"gang,submitted,seconds,{asks}\ng,0,60,{value}\nfits,0,60,\n",
    )
    found = CliRunner().invoke(app, ["simulate", *words, "--json"], catch_exceptions=False)
    (refusal,) = json.loads(found.stdout)["refused_gangs"]
    assert refusal["gang"] == "g"
    assert "fits no node, even an empty one: " in refusal["reason"]
    assert why in refusal["reason"]


def test_a_gang_that_asks_for_more_strength_than_there_is_is_told_the_most(tmp_path: Path) -> None:
    words = trace(
        tmp_path,
        nodes="name,gpus,model,strength\na,4,T4,26.1\nb,4,A100,100\n",
        pods="gang,submitted,seconds,min_strength\ng,0,60,286.3\nfits,0,60,100\n",
    )
    found = CliRunner().invoke(app, ["simulate", *words, "--json"], catch_exceptions=False)
    (refusal,) = json.loads(found.stdout)["refused_gangs"]
    assert refusal["gang"] == "g"
    assert (
        "2 nodes: GPUs that are weaker than asked for (it asks for strength 286.3, and the"
        " strongest has 100)" in refusal["reason"]
    )


def test_quotas_above_what_there_is_are_told(tmp_path: Path) -> None:
    words = trace(
        tmp_path,
        nodes=NODES,
        pods="gang,submitted,seconds,queue\ng,0,60,x\n",
        queues="name,quota_gpus\nx,3\ny,2\n",
    )
    found = CliRunner().invoke(app, ["simulate", *words, "--json"], catch_exceptions=False)
    assert "are 5 GPUs, and the nodes have 4" in found.stderr
    assert json.loads(found.stdout)["placed"] == 1


CELLS = st.one_of(
    st.sampled_from(["", "0", "1", "-1", "2.5", "nan", "inf", "1e9", "1e400", "0x1", "1_0", "٣"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(sorted(READERS)), data=st.data())
def test_any_cells_are_read_or_refused(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    known = {"nodes": NODE_COLUMNS, "gangs": GANG_COLUMNS, "queues": QUEUE_COLUMNS}[kind].known
    lines = data.draw(st.lists(st.lists(CELLS, max_size=len(known)), max_size=3))
    path = tmp_path / "any.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([known, *lines])
    try:
        assert READERS[kind](path)
    except InvalidValueError as error:
        assert str(path) in error.message
        assert error.hint


def test_the_sample_of_the_documentation_runs_as_it_is(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "placement.md").read_text()
    begin = text.index("    cat > nodes.csv")
    sample = textwrap.dedent(text[begin : text.index("\n\n", begin)])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", sample],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "never ran" not in done.stdout
    assert (tmp_path / "run.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    "words", [["--pods", "/nowhere.csv"], ["--pods", "/"], ["--plot", "run.png"]]
)
def test_wrong_use_of_the_program_ends_with_2(words: list[str], tmp_path: Path) -> None:
    nodes = trace(tmp_path, nodes=NODES)
    done = subprocess.run(
        [sys.executable, "-m", "aliquot", "simulate", *nodes, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert words[-1] in done.stderr
