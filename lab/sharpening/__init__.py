"""A softmax over four labels that sharpens until one right answer is left: ``entrostat lab sharpening``.

The toy of Over-sharpening (Sec. 2.4, App. G, H): inputs that are all Persian, where "Cat" and "Persian" are both right.
"""
