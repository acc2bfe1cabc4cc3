"""What takes too long for `make test`: `make nightly` runs every test below this folder."""
