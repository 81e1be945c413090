"""A Python Array API standard namespace over PyOpenCL.

An empty shell: the package's name and place are settled, its contents are not written yet.
`tensorops` refuses PyOpenCL arrays with that reason.
"""

__all__: list[str] = []
