"""Training of drafters, with the module that serves them.

arm.py says what is trained and how; sample.py holds texts and features.py the target's states over them; batch.py packs
both and draws anchors; attention.py, loss.py and step.py are the arithmetic of a step; run.py is the loop and
checkpoint.py what it keeps; evaluate.py measures; export.py writes the files that the node and others load.
"""
