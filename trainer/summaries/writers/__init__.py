"""Writers: where metrics go while a run goes on.

One file each; `conf/writers/<name>.yaml` selects it.
"""
