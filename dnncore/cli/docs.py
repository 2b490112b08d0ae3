"""`dnncore docs` lists the documents, or prints one of them."""

from __future__ import annotations

import click

from dnncore.documents import documents, folder, title

__all__ = ["docs"]


@click.command()
@click.argument("name", required=False)
@click.option("--folder", "shows_folder", is_flag=True,
              help="Print the folder of documents, examples and templates.")  # fmt: skip
def docs(name: str | None, shows_folder: bool) -> None:
    """List the documents, or print the document NAME."""
    found = documents()
    if shows_folder:
        click.echo(str(folder()))
    elif name is None:
        width = max(map(len, found))
        for known, path in found.items():
            click.echo(f"{known:{width}}  {title(path)}")
    elif name in found:
        click.echo(found[name].read_text(encoding="utf-8"), nl=False)
    else:
        raise click.BadParameter(f"there is no {name!r}; there are {', '.join(found)}")
