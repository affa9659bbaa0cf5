"""``flexlegion train`` for the legate command, which starts Legion on the processors it is given:

legate --cpus 2 --gpus 0 scripts/train.py --model lenet --data digits --strategy data
"""

from flexlegion.cli.main import run

if __name__ == "__main__":
    run("train")
