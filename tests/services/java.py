"""Services that run in a JVM."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from services.jars import classpath
from services.service import Service


class JavaService(Service):
    """A server in a small JVM: several servers share one machine."""

    #: The class to run.
    main: str
    #: The product whose jars contain the class, by its name in `jars`; None means PySpark's jars.
    product: str | None = None
    heap = "512m"
    jvm_options: Sequence[str] = ()

    @abstractmethod
    def arguments(self) -> Sequence[str]:
        """The arguments of the class."""

    def classpath(self) -> str:
        return classpath(self.product)

    def command(self) -> Sequence[str]:
        return self.java(self.main, *self.arguments())

    def java(self, main: str, *arguments: str) -> Sequence[str]:
        """The command that runs a class of the product."""
        memory = (f"-Xmx{self.heap}", "-XX:+UseSerialGC")
        return ["java", *memory, *self.jvm_options, "-cp", self.classpath(), main, *arguments]
