"""Power cuts while a stage trains: at a step, or after a checkpoint is published."""

from contextlib import contextmanager

import pytest

from hardneg.training import stage
from hardneg.training.stage import Stage


class Power(BaseException):
    """Raised when the power goes."""


@contextmanager
def power_cut(at):
    """Cut the power within the block once ``at`` steps are made: after a turn, or before the next step."""
    advance, watch = Stage.advance, Stage.watch

    def advancing(self, name, until, **options):
        advance(self, name, until, **options)
        if self.made[name] == at:
            raise Power

    def watching(name, step, batch):
        if step == at:
            raise Power

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "advance", advancing)
        patch.setattr(Stage, "watch", staticmethod(watching))
        with pytest.raises(Power):
            yield
    assert (Stage.advance, Stage.watch) == (advance, watch)


@contextmanager
def power_cut_after_checkpoint(step=None):
    """Cut the power within the block after the retriever's checkpoint of ``step`` is saved (None: the first)."""
    save = stage.save_checkpoint

    def failing(folder, made, *args, **named):
        save(folder, made, *args, **named)
        if step is None or made == {"retriever": step}:
            raise Power

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "save_checkpoint", failing)
        with pytest.raises(Power):
            yield
    assert stage.save_checkpoint is save


def assert_resumes(execute, tmp_path, *, after, files):
    """Check that ``execute(path=…)``, cut after a step's checkpoint and begun again, leaves the same bytes."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for path in (whole, broken):
        path.mkdir()
    execute(path=whole)
    with power_cut_after_checkpoint(after):
        execute(path=broken)
    assert not (broken / files[0]).exists()
    execute(path=broken)
    for name in files:
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


@contextmanager
def power_cut_at(model, step, *, after=False):
    """Cut the power within the block at a step of one of several models: before it, or after a turn up to it."""
    advance = Stage.advance

    def advancing(self, name, until, **options):
        advance(self, name, until, **options)
        if after and (name, self.made[name]) == (model, step):
            raise Power

    def watching(name, number, batch):
        if not after and (name, number) == (model, step):
            raise Power

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "advance", advancing)
        patch.setattr(Stage, "watch", staticmethod(watching))
        with pytest.raises(Power):
            yield
