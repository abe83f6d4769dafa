"""Small programs that run inside the sandbox, never here: standard library only, any Python from 3.8 on.

Each takes its arguments from the command line and writes one JSON file. They are package data in all but name:
`within.run_inside` sends the text of one into the workspace and reads what it wrote.
"""
