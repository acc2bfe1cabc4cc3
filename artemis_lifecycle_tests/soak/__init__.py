"""What takes too long for `make test`: `make soak` runs every test below this folder."""
