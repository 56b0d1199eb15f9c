"""A trainer whose rounds take as long as a file says: ``python paced.py CONFIG.json PACE.json``.

The file is ``{"seconds": of a round, "synchronous": whether the client waits for the next global model after each round}``,
and may be replaced at any time. It stands for machines of different speeds on one whose processors all share.
"""

import json
import sys
import time
from pathlib import Path

from tfdpbc.federated import trainer


class Paced(trainer.Trainer):
    pace, ended = None, 0.0

    def step(self):
        while (left := self.ended + self.told["seconds"] - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
        self.ended = time.monotonic()
        update = super().step()
        if self.told["synchronous"]:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self.mailbox.newest > update.base_version)
            self.ended = time.monotonic()
        return update

    @property
    def told(self):
        return json.loads(self.pace.read_text())


if __name__ == "__main__":
    Paced.pace = Path(sys.argv[2])
    trainer.Trainer = Paced
    sys.exit(trainer.main(sys.argv[1:2]))
