"""torch.save and torch.load of device tensors: to their device, to another one, and to the host."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch


def main() -> None:
    """Save a model with its optimizer, and load it three ways."""
    model = torch.nn.Linear(8, 8).to("cuda:1")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 8, device="cuda:1")).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        torch.save(state, path)
        for place, device in ((None, "cuda:1"), ("cuda:0", "cuda:0"), ("cpu", "cpu")):
            loaded = torch.load(path, map_location=place, weights_only=True)
            assert str(loaded["model"]["weight"].device) == device
            assert torch.equal(loaded["model"]["weight"].cpu(), model.weight.cpu())
    print("done")


if __name__ == "__main__":
    main()
