"""Frozen digests of the self-test, by kernel, case and part: see `selftest`.

The numpy oracle made KX1's, after its agreement with independent builds. They change only with the version of
docs/kx1.md; a difference is a fault of the build, never a reason to edit this file.
"""

FROZEN_DIGESTS: dict[str, dict[str, dict[str, str]]] = {
    "kx1": {
        "Q4_K Q4_K Q6_K": {
            "encoded rows": "d4d8ede321a7848aa3fe75439cd113de21bd297fb9234fdd8c9735db4eec8329",
            "outputs of the first expert (plain)": "af8498ed31f4f4825a5c5b92ffc1e46f48429da475d95118021310e3abf4c3a1",
            "outputs of the second expert (wild)": "f10f6b458cd7bebf53d25454fb3d2252017fd13ea07443a1d2c036f7ee23717c",
        },
        "Q5_K Q5_K Q5_K": {
            "encoded rows": "d9f51dda158d0c07e1b67b88b86a6961d2108ec3491d25d27442bd610a87558f",
            "outputs of the first expert (plain)": "a6e1f5775e5b153f60bca82b820cf10e643487d52e3a407d4ad6e203b680f953",
            "outputs of the second expert (high)": "2f5bad2dc759ec7ec744e1c98b99242a877dc77af9e514d973d9efd76a8b6c7c",
        },
        "Q6_K Q6_K Q4_K": {
            "encoded rows": "77febbb83eb6779d78c14867cfde4c87a814bf16eae93843a68f709156837bf7",
            "outputs of the first expert (plain)": "e74ac21ee8740eb3830d8e705faeb48f984a67cb1e9b3631ceb2970ab7f20477",
            "outputs of the second expert (low)": "37c63e58ff9e8ff41b2b13029d213b30dfcfa669992c87d224856b52b3590088",
        },
        "Q8_0 Q8_0 Q8_0": {
            "encoded rows": "db4c4e998d78d3c530e8070a5aca68984345c58d080a2ef9ddbeed41a6a6bc9c",
            "outputs of the first expert (plain)": "2d70d0f766102825a6aaf31a1d35f1cb00c6716f534918a21a398c13c0ad7775",
            "outputs of the second expert (wild)": "ed0e4b69e07baa565eb03b5659b19f8d3c645018a25431afbbf8bc87bcbc2f05",
        },
    },
}
