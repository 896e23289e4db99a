"""The live terminal view of `dgpu top`. Only that verb imports it: loading textual takes longer than most verbs run."""
