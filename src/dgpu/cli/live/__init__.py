"""The live terminal view of `dgpu top`. Imported by that verb alone: textual takes longer to load than most verbs to
run.
"""
