"""The Ray room: the only one that imports Ray."""

from raysts.models.kernels import one_heap

one_heap()  # on import: before Ray starts the threads that train, for a thread keeps the heap that it begins with
