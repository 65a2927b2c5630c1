def add_parser(s): pass
def run(a): return 0
