"""An engine whose device is lost is opened anew by its name."""

import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
import toy
from toy import Relu, ToyEngine, registered, relu_op

import dnncore as dnn


class Losable(ToyEngine):
    """An engine that notes how many there were."""

    kind = "losable"
    opened = 0

    def __init__(self, index=0):
        super().__init__(index)
        Losable.opened += 1


@pytest.fixture
def losable(monkeypatch):
    monkeypatch.setattr(toy, "Losable", Losable, raising=False)
    monkeypatch.setattr(Losable, "opened", 0)
    with registered(Relu("toybackend:a"), kind="losable", engines={"losable": "toy:Losable"}):
        yield dnn.engine("losable")


def relu(engine):
    src = dnn.Memory.from_numpy(np.array([[-1, 2]], np.float32), engine=engine)
    pd = dnn.PrimitiveDesc(relu_op((1, 2)), engine)
    dst = dnn.Memory(pd.dst_desc, engine)
    pd.primitive().execute(engine.stream(), src=src, dst=dst).wait()
    return dst


def test_the_name_of_a_lost_engine_opens_a_new_one(losable):
    assert dnn.engine("losable") is dnn.engine("losable:0") is losable
    kept = relu(losable)
    losable.is_lost = True
    new = dnn.engine("losable:0")
    assert new is not losable
    assert dnn.engine("losable") is new
    assert (relu(new).numpy() == [[0, 2]]).all()
    assert Losable.opened == 2
    with pytest.raises(dnn.DescriptorError, match="must be one of losable:0"):
        kept.numpy(new.stream())


def test_primitives_of_a_lost_engine_are_dropped(losable):
    relu(losable)
    executable = weakref.ref(dnn.PrimitiveDesc(relu_op((1, 2)), losable).primitive().executable)
    gc.collect()
    assert executable() is not None
    losable.is_lost = True
    dnn.engine("losable")
    gc.collect()
    assert executable() is None


def test_threads_that_open_it_at_once_get_one_engine(losable):
    losable.is_lost = True
    start = threading.Barrier(8)
    found = []

    def look():
        start.wait()
        found.append(dnn.engine("losable"))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert set(found) == {dnn.engine("losable")}
    assert Losable.opened == 2


def test_a_device_that_is_lost_at_once_is_unavailable(losable, monkeypatch):
    monkeypatch.setattr(Losable, "is_lost", True)
    with pytest.raises(dnn.EngineUnavailable, match="its device was lost at once"):
        dnn.engine("losable")
    monkeypatch.undo()


def test_a_lost_engine_is_not_pickled(losable):
    assert pickle.loads(pickle.dumps(losable)) is losable
    losable.is_lost = True
    with pytest.raises(dnn.DescriptorError, match=r"open it again with dnncore.engine\('losable:0"):
        pickle.dumps(losable)


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ("no", "is_lost must be True or False; got 'no'"),
        (property(lambda self: 1 / 0), "is_lost raised ZeroDivisionError"),
    ],
)
def test_an_engine_that_lies_about_its_loss_is_an_error(losable, monkeypatch, bad, match):
    monkeypatch.setattr(Losable, "is_lost", bad)
    with pytest.raises(dnn.PluginError, match=match):
        dnn.engine("losable")
