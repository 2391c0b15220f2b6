"""Writers: where metrics go during a run.

One file each; `conf/writers/<name>.yaml` selects it.
"""
