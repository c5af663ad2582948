"""python -m engramctl"""

from engramctl.cli.main import main

main()
