"""``flexlegion tune`` for the legate command, on the processors that will train:

legate --cpus 2 --gpus 0 scripts/tune_mapper.py --model lenet --out s.json
legate --cpus 2 --gpus 0 scripts/train.py --model lenet --strategy s.json
"""

import sys

from flexlegion.cli import main
from flexlegion.tools.launch import leave

if __name__ == "__main__":
    leave(main(["tune", *sys.argv[1:]]))
