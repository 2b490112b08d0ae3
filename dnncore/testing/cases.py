"""Stand-in for the kit's cases."""

from dnncore.problem import Problem, read

SIZES = ("smoke", "tiny", "full", "networks", "random")


def cases(size: str) -> list[Problem]:  # noqa: ARG001
    """All of a size."""
    return read(
        "--conv --dir=FWD_B,FWD_D,BWD_D,BWD_WB --stag=abx,axb --wtag=any --dtag=any"
        " mb2ic4oc8ih5kh3 mb1ic3oc5ih7kh3ph1"
    )
