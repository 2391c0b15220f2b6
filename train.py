"""Entry point of a checkout: `python train.py [group=choice ...] [key=value ...]`.

An installed Steadfast has the command `steadfast`.
"""

from trainer.main import main

if __name__ == "__main__":
    main()
