"""The Marin mixture-of-experts model as pure mathematics: Flax modules, transport, loss and optimizer."""
