"""The same job as guide_globals.py in a script that keeps everything as locals of main()."""

import torch
from guide_trainer import Trainer, make_loader, make_model, parse_arguments


def main() -> None:
    torch.set_num_threads(1)
    arguments = parse_arguments()
    train_loader = make_loader(arguments.num_workers)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    trainer = Trainer(model, optimizer, train_loader)
    trainer.fit(arguments)
    trainer.report()


if __name__ == "__main__":
    main()
