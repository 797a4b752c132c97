"""A recipe for Spack: the file py_monarch_tiering/package.py of a repository of packages. Untried:
Spack was not to be had where this was written."""

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyMonarchTiering(PythonPackage):
    """Storage tiering for deep-learning training that a job does not notice."""

    pypi = "monarch-tiering/monarch_tiering-0.1.0.tar.gz"
    license("Apache-2.0")

    # Until the index has the release: `spack dev-build py-monarch-tiering@0.1.0` in its sources.
    version("0.1.0")

    variant("mpi", default=True, description="Daemons of many nodes find each other with MPI")
    variant("demo", default=False, description="`monarch demo` has its slow source")

    depends_on("c", type="build")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-cffi@1.15.1:", type=("build", "run"))
    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-msgspec@0.19:", type=("build", "run"))
    depends_on("py-numpy@1.23.2:", type=("build", "run"))
    depends_on("py-prometheus-client@0.17:", type=("build", "run"))
    depends_on("py-psutil@5.9.4:", type=("build", "run"))
    depends_on("py-pyyaml@6.0:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-xxhash@3.2:", type=("build", "run"))
    depends_on("py-mpi4py", when="+mpi", type=("build", "run"))
    depends_on("libfuse@3:", when="+demo")
    depends_on("pkgconfig", when="+demo", type="build")
