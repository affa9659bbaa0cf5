"""``flexlegion train`` for the legate command, which starts Legion on the processors it is given:

legate --cpus 2 --gpus 0 scripts/train.py --model lenet --data digits --strategy data
"""

import sys

from flexlegion.cli import main
from flexlegion.tools.launch import leave

if __name__ == "__main__":
    leave(main(["train", *sys.argv[1:]]))
