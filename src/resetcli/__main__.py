"""``python -m resetcli``: the same program as ``reset``."""

from resetcli.cli.main import run

if __name__ == "__main__":
    run()
