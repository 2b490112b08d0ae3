"""A dnncore backend with its own device: the engine `remote`, whose device is another process."""

from dnncore import backend

TABLES = {
    backend.EltwiseForward: "TABLE",
    backend.EltwiseBackward: "TABLE",
    backend.Binary: "TABLE",
    backend.MatMul: "TABLE",
    backend.Reorder: "COPIES",
}


@backend.hookimpl
def dnncore_backends() -> backend.Backend:
    """Describe the backend. The modules in the strings are imported on first use."""
    return backend.Backend(
        "remote",
        "1.1",
        engines={"remote": "dnncore_remote.engine:RemoteEngine"},
        implementations={
            ("remote", operation): f"dnncore_remote.implementations:{table}"
            for operation, table in TABLES.items()
        },
    )
