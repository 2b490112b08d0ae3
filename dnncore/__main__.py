"""`python -m dnncore` is the command `dnncore`."""

from dnncore.cli import main

main(prog_name="python -m dnncore")
