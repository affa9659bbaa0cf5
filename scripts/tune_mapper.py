"""``flexlegion tune`` for the legate command, on the processors that will train:

legate --cpus 2 --gpus 0 scripts/tune_mapper.py --model lenet --out s.json
legate --cpus 2 --gpus 0 scripts/train.py --model lenet --strategy s.json
"""

from flexlegion.cli.main import run

if __name__ == "__main__":
    run("tune")
