"""Entry point of a checkout: `python train.py [group=choice ...] [key=value ...]`.

An installed Steadfast has the command `steadfast`.
"""

import sys

try:
    from trainer.main import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    main()
