"""Files of a run: whole or as they were, never in between."""

import os
from pathlib import Path

import pytest

from dvrl.records.layout import RunFiles, read_json, write_atomic, write_json


class DiskFull(OSError):
    pass


def refuse(*args, **kwargs):
    raise DiskFull


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "status.json"
    path.write_bytes(b"old")
    return path


def test_content_is_written_whole_and_nothing_else_is_left(file):
    write_atomic(file, b"new\x00\xff\n")
    assert file.read_bytes() == b"new\x00\xff\n"
    assert list(file.parent.iterdir()) == [file]


def test_missing_directories_are_made(tmp_path):
    write_atomic(tmp_path / "a" / "b" / "file", b"content")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"content"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_when_writing_fails_the_old_content_stands_and_nothing_else_is_left(
    file, call, monkeypatch
):
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(DiskFull):
        write_atomic(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(file.parent.iterdir()) == [file]


def test_a_kill_before_the_rename_leaves_the_old_content(file, monkeypatch):
    def die(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(file, b"new")
    assert file.read_bytes() == b"old"


def test_the_new_content_is_durable_before_it_takes_the_old_ones_name(file, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        events.append(f"fsync with {file.read_bytes().decode()} in place")
        fsync(descriptor)

    def noted_replace(source, target):
        assert Path(source).read_bytes() == b"new"
        assert Path(source).parent == Path(target).parent  # a rename within one file system
        events.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_atomic(file, b"new")
    assert events == ["fsync with old in place", "replace", "fsync with new in place"]


def test_json_comes_back_as_it_was_written(tmp_path):
    value = {"name": "é = 3 <b>", "list": [1, 2.5, None, True], "nested": {"x": {}}}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    assert (tmp_path / "x.json").read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("content", [b"", b'{"step": 12', b"\xff\xfe", b"{'step': 1}"])
def test_damaged_json_is_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        read_json(path)


def test_a_value_that_is_not_json_leaves_the_old_file(file):
    with pytest.raises(TypeError):
        write_json(file, {"set": {1, 2}})
    assert file.read_bytes() == b"old"


def test_every_file_of_a_run_has_its_own_place_inside_its_directory(tmp_path):
    files = RunFiles(tmp_path)
    names = [name for name, kind in vars(RunFiles).items() if isinstance(kind, property)]
    paths = [getattr(files, name) for name in names]
    assert len(set(paths)) == len(paths) > 8
    assert all(path.parent == tmp_path for path in paths)
