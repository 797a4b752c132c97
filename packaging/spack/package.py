"""A recipe for Spack, for the file py_monarch_tiering/package.py of a package repository. It has
never been tried, because Spack was not available."""

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyMonarchTiering(PythonPackage):
    """Transparent storage tiering for deep-learning training."""

    pypi = "monarch-tiering/monarch_tiering-0.1.0.tar.gz"
    license("Apache-2.0")

    # The release is not in the package index yet. Until it is, run
    # `spack dev-build py-monarch-tiering@0.1.0` in the directory of the sources.
    version("0.1.0")

    variant("mpi", default=True, description="Bring up daemons on several nodes with MPI")
    variant("demo", default=False, description="Build the slow source of `monarch demo`")

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
