"""The kit on implementations with a private workspace, whose format only they know."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest
from dnncore_reference import pooling

import dnncore as dnn
from dnncore import backend
from dnncore.problem import read
from dnncore.testing import run_case

FORWARD = "--pool --dir=FWD_D mb2ic5_ih7kh3sh2ph1"
BACKWARD = "--pool --dir=BWD_D mb2ic5_ih7kh3sh2ph1"
CHECKS = ("integers", "random", "special", "golden", "in_flight", "fences", "guards", "workspaces")


class PrivatePooling(backend.Implementation):
    """The reference's pooling. Its workspace has the public contents in an opaque format.

    slip: is added to the first index that the forward implementation writes.
    """

    name = "private:pooling"
    slip = 0

    def __init__(self, own):
        self.own = own

    def accept(self, op, attr, engine, hint):
        """Without a hint, the gradient reads a public workspace."""
        given, public = op.workspace_desc(hint), op.workspace_desc(None)
        accepted = self.own.accept(op, attr, engine, None)
        is_gradient = op.forward_op is not None
        if public is None or isinstance(accepted, backend.Refused):
            return accepted
        if is_gradient and given == public:
            return replace(accepted, efficiency=1.0)
        private = public.with_format("private:workspace", nbytes=public.nbytes)
        if is_gradient and given != private:
            return backend.Refused("format", f"takes the workspace {private}; got {given}")
        place = [row.name for row, _ in accepted.op.tensors(public)].index("workspace")

        def build():
            slip = 0 if is_gradient else self.slip
            return Translated(accepted.build(), place, public, slip)

        return backend.Accepted(accepted.op, build, efficiency=1.0, workspace=private)


class Translated(backend.Executable):
    """An executable on the public descriptor of the workspace."""

    def __init__(self, inner, place, public, slip):
        self.inner, self.place, self.public, self.slip = inner, place, public, slip

    def bind(self, memories, scratchpad):
        memories = list(memories)
        workspace = memories[self.place]
        memories[self.place] = backend.Memory(self.public, workspace.engine, workspace.buffer)
        run = self.inner.bind(memories, scratchpad)

        def slipping(stream, wait_for=()):
            event = run(stream, wait_for)
            workspace.buffer[0] += self.slip
            return event

        return slipping


@pytest.fixture
def private(monkeypatch):
    """Register the backend."""
    module = types.ModuleType("private_pooling")
    module.FORWARD = [PrivatePooling(pooling.FORWARD[0])]
    module.BACKWARD = [PrivatePooling(pooling.BACKWARD[0])]
    tables = {
        ("cpu", backend.PoolingForward): "private_pooling:FORWARD",
        ("cpu", backend.PoolingBackward): "private_pooling:BACKWARD",
    }

    @backend.hookimpl
    def dnncore_backends():
        return backend.Backend("private", backend.API_VERSION, implementations=tables)

    module.dnncore_backends = dnncore_backends
    monkeypatch.setitem(sys.modules, "private_pooling", module)
    dnn.register(module)
    yield
    dnn.unregister(module)


def failures(text):
    (problem,) = read(text)
    result = run_case(problem, dnn.engine("cpu"), impl="private:*", checks=CHECKS)
    assert result.executed
    return [f"{failure.check}: {failure.message}" for failure in result.failures]


@pytest.mark.parametrize("text", [FORWARD, BACKWARD])
def test_private_workspaces_pass(private, text):
    assert not failures(text)


def test_wrong_contents_are_found_by_the_gradient(private, monkeypatch):
    """Only the gradient of the same owner reads them."""
    monkeypatch.setattr(PrivatePooling, "slip", 1)
    assert not failures(FORWARD)
    (found,) = failures(BACKWARD)
    assert found.startswith("workspaces: with private:pooling's workspace: diff_src: WRONG")
