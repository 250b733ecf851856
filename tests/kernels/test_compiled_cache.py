"""What was compiled before: kept, damaged, crowded out."""

import os
from pathlib import Path

import pytest

from kernels.compiled_cache import DRAFT, DRAFT_SECONDS, CompiledCache

RECORD = {"kernel": "flash_forward", "registers": 128, "texts": {"ptx": "mov.u32 %r1, %tid.x;\n" * 9}}


def test_a_record_comes_back_as_it_was_put(tmp_path: Path) -> None:
    cache = CompiledCache(tmp_path / "made")
    assert cache.get("a") is None
    cache.put("a", RECORD)
    assert CompiledCache(tmp_path / "made").get("a") == RECORD


@pytest.mark.parametrize("damage", [0x01, 0x55, 0xFF])
def test_a_damaged_file_is_compiled_again(tmp_path: Path, damage: int) -> None:
    cache = CompiledCache(tmp_path)
    cache.put("a", RECORD)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ damage]) + whole[place + 1 :])
        assert cache.get("a") in (None, RECORD)  # gzip's header has bytes that mean nothing
    path.write_bytes(whole[:-1])
    assert cache.get("a") is None


def test_the_least_recently_used_makes_room(tmp_path: Path) -> None:
    cache = CompiledCache(tmp_path)
    cache.put("a", RECORD)
    cache.max_bytes = 2 * next(tmp_path.iterdir()).stat().st_size
    cache.put("b", RECORD)
    for age, key in enumerate("ab"):
        os.utime(tmp_path / f"{key}.json.gz", (age, age))
    assert cache.get("a") == RECORD  # used now
    cache.put("c", RECORD)
    assert [cache.get(key) is None for key in "abc"] == [False, True, False]


def test_drafts_of_the_dead_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / f"{DRAFT}old", tmp_path / f"{DRAFT}new"
    for draft in (old, new):
        draft.write_bytes(b"half")
    age = old.stat().st_mtime - DRAFT_SECONDS - 1
    os.utime(old, (age, age))
    CompiledCache(tmp_path).put("a", RECORD)
    assert not old.exists()
    assert new.exists()
