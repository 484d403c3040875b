"""Builds gemm.so with the C compiler, and a wheel that says: any Python 3, this platform."""

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class Library(build_ext):
    def get_ext_filename(self, name):  # no Python version in its name: ctypes loads it
        return name.replace(".", "/") + ".so"


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


library = Extension("convdispatch_native.gemm", ["convdispatch_native/gemm.c"], extra_compile_args=["-O3"])
setup(ext_modules=[library], cmdclass={"build_ext": Library, "bdist_wheel": Wheel})
