"""What is kept over the agent's death, and files that an agent must not start on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from aliquot.kubernetes.node.agent import KEPT
from aliquot.kubernetes.node.store import FORM, Kept, KeptCard, Store
from aliquot.model.errors import StateError
from kubernetes.builders import make_pod
from kubernetes.node.builders import SGPU, make_card, make_held
from kubernetes.node.rig import a_node

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "node.json")
    assert store.load() == Kept()
    card = make_card(0)
    held = make_held("shared", [card], units={SGPU: ["s0"]})
    kept = Kept(cards=(KeptCard(card.uuid, 0, card.memory),), held=(held,))
    store.write(kept)
    assert store.load() == kept


@pytest.mark.parametrize(
    "text",
    [
        msgspec.json.encode(Kept(form=FORM + 1)),
        b'{"form": 2, "held": {"another": "shape"}}',
        b'{"form": 1, "held": {"another": "shape"}}',
        b'{"form": 1, "cards": [',
        b'{"form": 1, "cards": [{"uuid": "\xff", "index": 0, "memory": 1}]}',
        b"{}",
        b"",
    ],
)
def test_a_file_that_cannot_be_read_is_refused_and_left_alone(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(text)
    with pytest.raises(StateError) as caught:
        Store(path).load()
    assert str(path) in caught.value.message
    assert "drain the node" in str(caught.value.hint)
    assert path.read_bytes() == text
    assert [one.name for one in tmp_path.iterdir()] == ["node.json"]


def test_an_agent_of_another_version_ends_no_grant(short_tmp: Path) -> None:
    async def go() -> None:
        async with a_node(short_tmp, shape="t4:1") as node:
            await node.run(make_pod("a", memory=5))
            grants = set(node.grants())
            node.kill_agent()
            path = node.home / KEPT
            ours = path.read_bytes()
            path.write_bytes(ours.replace(b'"form":1', b'"form":99'))
            node.start_agent()
            assert await node.agent_ends() != 0
            assert f"{path}, which says what running containers hold, has form 99" in node.log()
            assert set(node.grants()) == grants
            path.write_bytes(ours)
            node.start_agent()
            await node.ready()
            await node.until(lambda: set(node.holders()) == {"a"})
            assert set(node.grants()) == grants

    asyncio.run(go())
